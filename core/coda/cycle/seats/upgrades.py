"""A job of class Auto leaves its seats for GPUs of its own.

It stops and starts again, for nobody can give it the GPU on which it runs: the kubelet counts that as free. So only
jobs do that which go on where they were, and none before it has had its seats for a while."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from coda.cycle.seats.sharers import may_stop, without_sharers
from coda.model.capacity import free_by_node
from coda.model.decision import Decision, Stop, StopCause, WaitCode
from coda.model.job import Job, JobId, Phase
from coda.model.resources import NOTHING
from coda.model.seats import WHOLE_GPUS, is_sharer, wants_whole_gpus
from coda.model.world import World
from coda.nodes.eligibility import accepts
from coda.policy.config import PolicyConfig

WAITS_FOR_CAPACITY: Final = frozenset(
    {
        WaitCode.JUDGED_IN_TURNS,
        WaitCode.BACKING_OFF,
        WaitCode.INSUFFICIENT_GPUS,
        WaitCode.INSUFFICIENT_CPU,
        WaitCode.INSUFFICIENT_MEMORY,
        WaitCode.INSUFFICIENT_PODS,
        WaitCode.INSUFFICIENT_RESOURCES,
        WaitCode.NO_DOMAIN_FITS,
        WaitCode.WAITS_FOR_LOCALITY,
        WaitCode.HELD_BY_POLICY,
        WaitCode.RECLAIM_DELAYED,
    }
)
"""Who waits so takes free GPUs, now or soon."""

WAITS_A_MOMENT: Final = frozenset(
    {
        WaitCode.EDITED,
        WaitCode.STATUS_UNWRITABLE,
        WaitCode.STATUS_WRITE_SLOW,
        WaitCode.CHANGED_MEANWHILE,
        WaitCode.ROLLING_BACK,
    }
)
"""Who waits so starts in seconds as a rule, but some of it may last for ever: it counts for `auto_wait_s`. Any other
reason holds however many GPUs are free: such a job keeps nobody on seats."""


class Upgrades:
    """Whom a planner has tried in vain. Give one to every cycle of one planner; the next planner begins anew."""

    def __init__(self) -> None:
        self._tried: dict[JobId, int] = {}  # attempts, by job, the longest ago first
        self._since_s: dict[JobId, float] = {}  # when a job began to wait for a moment

    def with_upgrade(
        self, decision: Decision, world: World, config: PolicyConfig, now_s: float, decide: Callable[[World], Decision]
    ) -> Decision:
        """Return the decision with the stop of a job that would start on GPUs of its own now.

        One is tried in a cycle: who was not tried in vain yet, or else the longest ago; of these who has had its seats
        longest, then by name. Only if nobody else starts, stops or waits for whole GPUs that it can have soon
        (`WAITS_FOR_CAPACITY`, `WAITS_A_MOMENT`): all others go first. `decide`: about a world without jobs on seats.
        Cost: O(jobs log jobs), and one decision if enough is free on nodes that accept the job."""
        if not config.shares_gpus or decision.starts or decision.stops or decision.returns or decision.postponed:
            return decision
        wanting = [job for job in world.jobs if wants_whole_gpus(job)]
        attempt_by_id = {job.id: job.attempt for job in wanting}
        self._tried = {job: attempt for job, attempt in self._tried.items() if attempt_by_id.get(job) == attempt}
        if not wanting:
            return decision
        until_s = self._kept_until_s(decision, world, config, now_s)
        if until_s > now_s:
            return decision if until_s == math.inf else replace(decision, wake_s=_earlier(decision.wake_s, until_s))
        due_s = {job.id: _since_s(job) + config.auto_wait_s for job in wanting}
        later_s = min((moment_s for moment_s in due_s.values() if moment_s > now_s), default=None)
        others = without_sharers(world, yielding=False)
        for job in self._in_turn(wanting):
            asks = _asking_again(job, now_s)
            if due_s[job.id] > now_s or not may_stop(job) or not _may_fit(asks, others):
                continue
            answer = decide(replace(others, jobs=(*others.jobs, asks)))
            if any(start.job == job.id for start in answer.starts) and not answer.stops:
                stop = Stop(job=job.id, attempt=job.attempt, cause=StopCause.UPGRADE, by=job.id)
                return replace(decision, stops=(stop,))
            self._tried.pop(job.id, None)
            self._tried[job.id] = job.attempt
            break  # to try all would cost a decision for each
        return replace(decision, wake_s=_earlier(decision.wake_s, later_s))

    def _kept_until_s(self, decision: Decision, world: World, config: PolicyConfig, now_s: float) -> float:
        """Return until when others keep jobs on their seats; the past if nobody does.

        Who waits for a moment again and again, with starts in vain between, waits since the first time."""
        job_by_id = {job.id: job for job in world.jobs}
        self._since_s = {job: min(since_s, now_s) for job, since_s in self._since_s.items() if job in job_by_id}
        until_s = -math.inf
        for one in decision.refusals:
            job, code = job_by_id[one.job], one.reason.code
            if not job.request.gpus or is_sharer(job):
                continue
            if code in WAITS_A_MOMENT:
                until_s = max(until_s, self._since_s.setdefault(one.job, now_s) + config.auto_wait_s)
                continue
            self._since_s.pop(one.job, None)
            if code in WAITS_FOR_CAPACITY:
                until_s = math.inf
        return until_s

    def _in_turn(self, wanting: Iterable[Job]) -> list[Job]:
        turns = {job: turn for turn, job in enumerate(self._tried)}
        return sorted(wanting, key=lambda job: (turns.get(job.id, -1), _since_s(job), job.id))


def _earlier(first_s: float | None, second_s: float | None) -> float | None:
    moments_s = [moment_s for moment_s in (first_s, second_s) if moment_s is not None]
    return min(moments_s, default=None)


def _since_s(job: Job) -> float:
    return job.placement.committed_s if job.placement is not None else 0.0


def _asking_again(job: Job, now_s: float) -> Job:
    """The job as it will wait once it has stopped: it waits for a level that it prefers from then on."""
    return replace(
        job,
        phase=Phase.QUEUED,
        attempt=job.attempt + 1,
        placement=None,
        bound=frozenset(),
        gone=frozenset(),
        request=replace(job.request, gpus=1),
        quota={**job.quota, WHOLE_GPUS: 1000},
        returned=True,
        waiting_s=now_s,
    )


def _may_fit(asks: Job, world: World) -> bool:
    """True if enough ranks fit on nodes that accept the job: a cheap question before the dear one."""
    free = free_by_node(world)
    nodes = [node for node in world.nodes if accepts(asks.constraints, node)]
    return sum(asks.request.times_in(free.get(node.name, NOTHING)) for node in nodes) >= asks.replicas
