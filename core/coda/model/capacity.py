"""The free capacity of the nodes of a world.

free = allocatable - used - in flight - withheld. Withheld: placed ranks without a bound pod, granted cores that no pod
has yet, and cores that a job's search tries without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from coda.model.job import Job
from coda.model.live_placement import may_lack_pods, withheld_growth, withheld_ranks
from coda.model.resources import NOTHING, Resources
from coda.model.world import Node, World


def after_stops(world: World) -> World:
    """Return the world after all ordered stops: decisions are about this one. O(nodes) if there are any."""
    if not world.leaving:
        return world
    used = dict(world.used)
    for node, amount in world.leaving.items():
        used[node] = used.get(node, NOTHING) - amount
    return replace(world, used=used, leaving={})


def withheld(world: World) -> dict[str, Resources]:
    """Return, by node name, what placements and unbound pods withhold; other nodes are absent.

    O(jobs + ranks withheld)."""
    held: dict[str, Resources] = {}
    for job in world.jobs:
        _sum(held, withheld_shares(job))
    return held


def withheld_shares(job: Job) -> dict[str, Resources]:
    """Return, by node name, what one job's placement, unbound pods, granted growth and search withhold."""
    if job.placement is not None and (job.placement.answer is not None or job.pod_cpu_m or job.held_cores):
        growth = {node: Resources(cpu_m=cpu_m) for node, cpu_m in withheld_growth(job).items()}
        return _sum(_shares_of_ranks(job), growth)
    if not job.unbound and (job.placement is None or not may_lack_pods(job)):
        return {}
    return _shares_of_ranks(job)


def _shares_of_ranks(job: Job) -> dict[str, Resources]:
    ranks_by_node = Counter(node for _, node in withheld_ranks(job))
    return {node: job.request * ranks for node, ranks in ranks_by_node.items()}


def _sum(shares: dict[str, Resources], more: Mapping[str, Resources]) -> dict[str, Resources]:
    for node, share in more.items():
        shares[node] = shares[node] + share if node in shares else share
    return shares


def free_by_node(world: World) -> dict[str, Resources]:
    """Return the free capacity by node name. Negative on an over-committed node."""
    takers = tuple(taker for taker in (world.used, world.in_flight, withheld(world)) if taker)
    return {node.name: free_on(node, takers) for node in world.nodes}


def free_on(node: Node, takers: Iterable[Mapping[str, Resources]]) -> Resources:
    """Return what one node can allocate, less what each of the `takers` has there."""
    free = node.allocatable
    for taker in takers:
        taken = taker.get(node.name)
        if taken is not None:
            free = free - taken
    return free
