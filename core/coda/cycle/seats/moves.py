"""Opportunistic jobs that leave a GPU on which there is no room for them any more.

A guaranteed job came there, or grew, and what an opportunistic one keeps between two mini-batches does not fit beside
it. Its agent lets it stand still, and says so after a while. It stops and waits for another seat, if it goes on there
where it was, or is a gang, which would fail. The others keep their work, and go on once there is room: they are
nobody's to throw away, unless the guaranteed job would fail: then they stop, too, and at once."""

from __future__ import annotations

from dataclasses import replace

from coda.cycle.seats.sharers import may_stop
from coda.model.decision import Decision, Stop, StopCause
from coda.model.job import Job, JobId
from coda.model.seats import should_move
from coda.model.world import World


def with_moves(decision: Decision, world: World) -> Decision:
    """Return the decision with the stops of jobs that should move; the same object if there are none. O(jobs)."""
    stopped = {stop.job for stop in decision.stops}
    moving = [job for job in world.jobs if should_move(job) and may_stop(job) and job.id not in stopped]
    if not moving:
        return decision
    stops = [Stop(job=job.id, attempt=job.attempt, cause=StopCause.PREEMPT, by=_owner(job, world)) for job in moving]
    return replace(decision, stops=(*decision.stops, *stops))


def _owner(job: Job, world: World) -> JobId:
    """Who has the GPU of its first crowded rank whole; the job itself, if that is no training job."""
    assert job.placement is not None, "only jobs with seats are crowded"
    rank = min(job.crowded)
    place = job.placement.nodes[rank], job.placement.gpus[rank]
    uses = world.gpu_uses.get(place[0], ())
    return next((use.job for use in uses if use.index == place[1] and use.job is not None), job.id)
