"""Where a gang that does not fit now can start first, if running jobs end when they are expected to."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from coda.cache.world_index import WorldIndex
from coda.model.job import Job
from coda.model.resources import Resources
from coda.nodes.node_search import RankClass
from coda.promises.expected_ends import ExpectedEnds, limit_of
from coda.promises.node_ends import NodeEnds


class EarliestStart(NamedTuple):
    """The nodes, by number, with the ranks that each will hold; and when the last of these fits."""

    ranks_by_node: Mapping[int, int]
    start_s: float


Slot = tuple[float, int]
"""From when on a node holds one more rank, and the node."""


def earliest_start(
    index: WorldIndex, job: Job, rank_class: RankClass, node_ends: NodeEnds, now_s: float
) -> EarliestStart | None:
    """Return the nodes where the gang can start first; None if nobody knows when enough jobs end.

    Of the nodes that hold ranks in time those that hold most; ties: those that hold them first, then by name. With a
    required level, in the domain where it starts first. O(running jobs + nodes log nodes)."""
    slots_by_domain = _slots_by_domain(index, job, rank_class, node_ends, now_s)
    best: tuple[float, str] | None = None
    for domain, slots in slots_by_domain.items():
        if len(slots) >= job.replicas:
            slots.sort()
            found = (slots[job.replicas - 1][0], domain)
            best = found if best is None or found < best else best
    if best is None or best[0] == inf:
        return None
    start_s, domain = best
    return EarliestStart(_fullest(slots_by_domain[domain], start_s, job.replicas), start_s)


def _slots_by_domain(
    index: WorldIndex, job: Job, rank_class: RankClass, node_ends: NodeEnds, now_s: float
) -> dict[str, list[Slot]]:
    """The slots of each domain of the required level; without one, of all nodes.

    Most nodes are alike, so how many ranks an amount holds is found once for each distinct one."""
    capacity, within = index.capacity, rank_class.within
    domains = None if within is None else capacity.levels[within].domain_by_node
    amounts, whole_amounts, free_amounts = capacity.amounts, capacity.whole_amounts, capacity.free_amounts
    request, most = rank_class.request, job.replicas
    ranks_by_amount: dict[int, int] = {}
    slots_by_domain: dict[str, list[Slot]] = {}
    node_ends.refresh(index)
    for number in sorted(rank_class.groups.amount_by_node):
        domain = "" if domains is None else domains[number]
        if domain is None:
            continue
        for amount in (whole_amounts[number], free_amounts[number]):
            if amount not in ranks_by_amount:
                ranks_by_amount[amount] = request.times_in(amounts[amount])
        if not ranks_by_amount[whole_amounts[number]]:
            continue
        slots = slots_by_domain.setdefault(domain, [])
        ranks = min(most, ranks_by_amount[free_amounts[number]])
        slots += [(now_s, number)] * ranks
        for end_s, free in node_ends.steps(index, number, now_s):
            if ranks >= most:
                break
            more = min(most, request.times_in(free)) - ranks
            if more > 0:
                slots += [(end_s, number)] * more
                ranks += more
    return slots_by_domain


def _fullest(slots: list[Slot], start_s: float, replicas: int) -> dict[int, int]:
    """Choose of the nodes with slots by that time those with most, until all ranks have one."""
    times_by_node: dict[int, list[float]] = {}
    for moment_s, number in slots:
        if moment_s <= start_s:
            times_by_node.setdefault(number, []).append(moment_s)
    chosen: dict[int, int] = {}
    ranked = sorted((-len(times), times[-1], number) for number, times in times_by_node.items())
    for minus_ranks, _, number in ranked:
        chosen[number] = min(-minus_ranks, replicas)
        replicas += minus_ranks
        if replicas <= 0:
            break
    return chosen


def expected_idle(index: WorldIndex, job: Job, start: EarliestStart, ends: ExpectedEnds, now_s: float) -> float:
    """Return what is kept idle for the gang on these nodes until it starts, in GPU-seconds (or core-seconds)."""
    total = 0.0
    for number, ranks in start.ranks_by_node.items():
        need, free = amount_for(job, job.request) * ranks, amount_for(job, index.capacity.free(number))
        moment_s = now_s
        leaving = [
            (ends.end_s(holder, now_s), amount_for(job, holder.request) * count)
            for holder, count in index.holdings.at(index.capacity.nodes[number].name)
        ]
        for end_s, amount in (*sorted(leaving), (start.start_s, 0.0)):
            end_s = min(end_s, start.start_s)
            total += max(0.0, min(need, free)) * (end_s - moment_s)
            moment_s, free = end_s, free + amount
    return total


def amount_for(job: Job, amount: Resources) -> float:
    """Return the GPUs of an amount, or the cores for a job without GPUs."""
    return float(amount.gpus) if job.request.gpus else amount.cpu_m / 1000


def free_later(index: WorldIndex, number: int, ends: ExpectedEnds, start_s: float, now_s: float) -> Resources:
    """Return what is free on a node once all have ended that are expected to end by `start_s`."""
    free = index.capacity.free(number)
    for job, ranks in index.holdings.at(index.capacity.nodes[number].name):
        if ends.end_s(job, now_s) <= start_s:
            free = free + job.request * ranks
    return free


def free_at_latest(index: WorldIndex, number: int, latest_s: float) -> Resources:
    """Return what is free on a node once all have ended that are ended by `latest_s`."""
    free = index.capacity.free(number)
    for job, ranks in index.holdings.at(index.capacity.nodes[number].name):
        limit_s = limit_of(job)
        if limit_s is not None and limit_s <= latest_s:
            free = free + job.request * ranks
    return free


def latest_start(index: WorldIndex, job: Job, ranks_by_node: Mapping[int, int], now_s: float) -> float | None:
    """Return when these nodes hold their ranks at the latest: their jobs are ended then. None: some may go on."""
    latest_s = now_s
    for number, ranks in ranks_by_node.items():
        free = index.capacity.free(number)
        limits: list[tuple[float, str, Resources]] = []
        for holder, count in index.holdings.at(index.capacity.nodes[number].name):
            limit_s = limit_of(holder)
            if limit_s is not None:
                limits.append((limit_s, holder.id, holder.request * count))
        for limit_s, _, amount in sorted(limits, key=lambda one: one[:2]):
            if job.request.times_in(free) >= ranks:
                break
            free = free + amount
            latest_s = max(latest_s, limit_s)
        if job.request.times_in(free) < ranks:
            return None
    return latest_s
