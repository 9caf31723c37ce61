"""The cluster as those see it who need not mind opportunistic jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coda.model.capacity import withheld_shares
from coda.model.job import Job
from coda.model.live_placement import live_placement
from coda.model.resources import NOTHING, Resources
from coda.model.seats import is_sharer, request_of_rank, sharers_of
from coda.model.world import World
from coda.policy.arrays import can_stop


def may_stop(job: Job) -> bool:
    """True if the opportunistic job can be ordered to stop now, and holds something."""
    return can_stop(job) and is_sharer(job) and live_placement(job) is not None


def held_by_pods(job: Job) -> dict[str, Resources]:
    """Return, by node name, what the bound pods of the job's ranks use, seats included. O(ranks)."""
    held: dict[str, Resources] = {}
    placement = live_placement(job)
    if placement is not None:
        for rank, node in enumerate(placement.nodes):
            if rank in job.bound and rank not in job.gone:
                add(held, {node: request_of_rank(job, placement, rank)})
    return held


def without_sharers(world: World, *, yielding: bool = True) -> World:
    """Return the world without opportunistic jobs, the same object if there are none.

    With `yielding`, what they hold counts as leaving, as far as they can be stopped now. O(jobs)."""
    sharers = sharers_of(world.jobs)
    if not sharers:
        return world
    used, leaving = dict(world.used), dict(world.leaving)
    for job in sharers:
        add(used, withheld_shares(job))
        if yielding and may_stop(job):
            add(leaving, held_by_pods(job))
    return replace(world, jobs=tuple([job for job in world.jobs if not is_sharer(job)]), used=used, leaving=leaving)


def add(amounts: dict[str, Resources], more: Mapping[str, Resources], sign: int = 1) -> None:
    """Add amounts by node name to others; with `sign` -1, take them away."""
    for node, amount in more.items():
        before = amounts.get(node, NOTHING)
        amounts[node] = before + amount if sign > 0 else before - amount
