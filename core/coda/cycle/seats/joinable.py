"""Which jobs with whole GPUs may be joined by opportunistic ones: those whose pods bring the files for it.

By these their agent hears how fast they are, and slows the others down. A node offers the files if its agent does."""

from __future__ import annotations

from dataclasses import replace

from coda.model.decision import Decision, Start
from coda.model.job import Job
from coda.model.seats import SHARING
from coda.model.world import World


def with_joinable(decision: Decision, world: World) -> Decision:
    """Return the decision; its starts with whole GPUs are joinable where all their nodes offer the files.

    O(starts + nodes)."""
    started = {start.job for start in decision.starts}
    job_by_id = {job.id: job for job in world.jobs if job.id in started}
    offering = {node.name for node in world.nodes if node.allocatable.other.get(SHARING, 0) > 0}
    starts = tuple(
        [
            replace(start, joinable=True) if _is_joinable(start, job_by_id[start.job], offering) else start
            for start in decision.starts
        ]
    )
    return replace(decision, starts=starts)


def _is_joinable(start: Start, job: Job, offering: set[str]) -> bool:
    return job.request.gpus > 0 and not start.gpus and not job.keeps_to_itself and offering.issuperset(start.nodes)
