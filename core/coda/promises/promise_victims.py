"""Who stops for a promised job that cannot pay with idle nodes: small jobs that can resume, least work lost first."""

from __future__ import annotations

from coda.cache.world_index import WorldIndex
from coda.model.job import Job, Phase
from coda.model.live_placement import live_placement
from coda.policy.arrays import can_stop
from coda.policy.preemption_rules import lost_work
from coda.promises.promise_book import amount_of_promise

Victims = list[tuple[Job, tuple[str, ...]]]
"""Jobs that may be stopped, with their nodes."""


def stopped_for_promise(index: WorldIndex, job: Job, now_s: float) -> Victims:
    """Return the jobs that may be stopped for a promised job, in the order in which they are.

    Who loses least work goes first; ties: the newest, then by id.

    They declare that they resume, run, are smaller, and go not before it. O(jobs that hold nodes)."""
    amount = amount_of_promise(job)
    found: list[tuple[float, float, str, Job, tuple[str, ...]]] = []
    for holder, nodes in index.holdings.all():
        if not holder.resumable or holder.phase is not Phase.RUNNING or not can_stop(holder):
            continue
        placement = live_placement(holder)
        if placement is None or holder.priority > job.priority:
            continue
        if bool(holder.request.gpus) == bool(job.request.gpus) and amount_of_promise(holder) < amount:
            found.append((lost_work(holder, now_s), -placement.committed_s, holder.id, holder, nodes))
    return [(holder, nodes) for *_, holder, nodes in sorted(found, key=lambda one: one[:3])]
