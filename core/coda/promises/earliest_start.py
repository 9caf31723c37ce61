"""Where a gang that does not fit now can start first, if running jobs end when they are expected to."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from coda.cache.world_index import WorldIndex
from coda.model.job import Job, JobId
from coda.model.resources import Resources
from coda.nodes.node_search import RankClass
from coda.promises.expected_ends import ExpectedEnds, limit_of
from coda.promises.node_ends import NodeEnds, Step
from coda.promises.own_share import OwnShare


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
    request, most, share = rank_class.request, job.replicas, OwnShare(index, job)
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
        ranks, steps = ranks_by_amount[free_amounts[number]], node_ends.steps(index, number, now_s)
        if share.is_limited:
            ranks = request.times_in(share.of(number, capacity.free(number)))
            steps = _own_steps(index, share, number, node_ends, now_s)
        ranks = min(most, ranks)
        slots += [(now_s, number)] * ranks
        for end_s, free in steps:
            if ranks >= most:
                break
            more = min(most, request.times_in(free)) - ranks
            if more > 0:
                slots += [(end_s, number)] * more
                ranks += more
    return slots_by_domain


def _own_steps(index: WorldIndex, share: OwnShare, number: int, node_ends: NodeEnds, now_s: float) -> tuple[Step, ...]:
    """As `NodeEnds.steps`, of what is the job's own. O(jobs there)."""
    free, given_m, steps = index.capacity.free(number), 0, list[Step]()
    for end_s, holder, amount in node_ends.ends(index, number, now_s):
        free, given_m = free + amount, given_m + share.given_m(number, holder, amount)
        steps.append((end_s, share.of(number, free, given_m)))
    return tuple(steps)


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
    total, share = 0.0, OwnShare(index, job)
    for number, ranks in start.ranks_by_node.items():
        need, moment_s = amount_for(job, job.request) * ranks, now_s
        free = amount_for(job, share.of(number, index.capacity.free(number)))
        leaving = [
            (ends.end_s(holder, now_s), amount_for(job, holder.request) * count)
            for holder, count in index.holdings.at(index.capacity.nodes[number].name)
            if share.has_from(number, holder.id)
        ]
        for end_s, amount in (*sorted(leaving), (start.start_s, 0.0)):
            end_s = min(end_s, start.start_s)
            total += max(0.0, min(need, free)) * (end_s - moment_s)
            moment_s, free = end_s, free + amount
    return total


def amount_for(job: Job, amount: Resources) -> float:
    """Return the GPUs of an amount, or the cores for a job without GPUs."""
    return float(amount.gpus) if job.request.gpus else amount.cpu_m / 1000


Holder = tuple[Job, int]
"""A job, and how many ranks of it are on a node."""


def ended_later(index: WorldIndex, number: int, ends: ExpectedEnds, start_s: float, now_s: float) -> list[Holder]:
    """Return who on a node is expected to have ended by `start_s`."""
    holders = index.holdings.at(index.capacity.nodes[number].name)
    return [(job, ranks) for job, ranks in holders if ends.end_s(job, now_s) <= start_s]


def ended_at_latest(index: WorldIndex, number: int, latest_s: float) -> list[Holder]:
    """Return who on a node is ended by `latest_s`."""
    holders = index.holdings.at(index.capacity.nodes[number].name)
    return [(job, ranks) for job, ranks in holders if (limit_s := limit_of(job)) is not None and limit_s <= latest_s]


def free_without(index: WorldIndex, number: int, ended: list[Holder], share: OwnShare) -> tuple[Resources, Resources]:
    """Return what is free on a node without these jobs, and what of that is the job's own."""
    free, given_m = index.capacity.free(number), 0
    for job, ranks in ended:
        amount = job.request * ranks
        free, given_m = free + amount, given_m + share.given_m(number, job.id, amount)
    return free, share.of(number, free, given_m)


def latest_start(index: WorldIndex, job: Job, ranks_by_node: Mapping[int, int], now_s: float) -> float | None:
    """Return when these nodes hold their ranks at the latest: their jobs are ended then. None: some may go on."""
    latest_s, share = now_s, OwnShare(index, job)
    for number, ranks in ranks_by_node.items():
        free, given_m = index.capacity.free(number), 0
        limits: list[tuple[float, JobId, Resources]] = []
        for holder, count in index.holdings.at(index.capacity.nodes[number].name):
            limit_s = limit_of(holder)
            if limit_s is not None:
                limits.append((limit_s, holder.id, holder.request * count))
        for limit_s, holder_id, amount in sorted(limits, key=lambda one: one[:2]):
            if job.request.times_in(share.of(number, free, given_m)) >= ranks:
                break
            free, given_m = free + amount, given_m + share.given_m(number, holder_id, amount)
            latest_s = max(latest_s, limit_s)
        if job.request.times_in(share.of(number, free, given_m)) < ranks:
            return None
    return latest_s
