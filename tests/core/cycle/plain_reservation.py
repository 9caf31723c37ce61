"""The reservation as it is defined, looked for anew by a walk over all nodes: what `reserving` must say too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from coda.cache.gang_class import QueuedJob
from coda.cache.job_facts import facts_of
from coda.cache.queue import waits_since_s
from coda.cache.world_index import WorldIndex
from coda.cycle.reservation import Reservation
from coda.model import NOTHING, Job, Resources, World
from coda.nodes import RankClass

Key = tuple[int, ...]


def plain_order(index: WorldIndex, moment_s: float, now_s: float) -> list[Job]:
    def place(waiter: QueuedJob) -> tuple[float, float, str]:
        return (-waiter.job.priority, waits_since_s(waiter.job), waiter.job.id)

    queued_jobs = sorted(index.queue.queued_jobs, key=place)
    return [one.job for one in queued_jobs if waits_since_s(one.job) <= moment_s and one.may_start(now_s)]


def plain_reservation(index: WorldIndex, world: World, job: Job, rank_class: RankClass) -> Reservation | None:
    """Nodes without anybody to stop need not be named as `unstopped`."""
    if index.search.ranks_when_empty(rank_class, rank_class.within) < job.replicas:
        return None
    due_s = waits_since_s(job) + (index.config.overtaking_limit_s or 0.0)
    capacity = index.capacity
    nodes = [*rank_class.groups.amount_by_node]

    def distance(number: int) -> Key:
        return _distance(job, capacity.free(number))

    def size(number: int) -> Key:
        return (-job.request.times_in(capacity.nodes[number].allocatable),)

    def began_by_then(holder: Job) -> bool:
        return holder.placement is not None and holder.placement.committed_s <= due_s

    evictable = set() if index.arrays is None else {n for n in range(len(capacity.nodes)) if _can_stop(index, n)}
    chosen = _chosen(index, world, job, rank_class, nodes, distance, began_by_then)
    if chosen is not None:
        left = {
            site.number: _least(capacity.free(site.number), site.capacity - job.request * site.ranks) for site in chosen
        }
        if rank_class.within is None and index.arrays is not None:
            last = max((_distance(job, capacity.free(number) - others), number) for number, others in left.items())
            nearer = {n for n in evictable if (_distance(job, index.arrays.free_after_stops(n)), n) < last}
            evictable = nearer | evictable & left.keys()
        return Reservation(job, left, frozenset(evictable))
    whole = _chosen(index, world, job, rank_class, nodes, size, lambda _: True)
    return None if whole is None else Reservation(job, {one.number: NOTHING for one in whole}, frozenset(evictable))


def _can_stop(index: WorldIndex, number: int) -> bool:
    return index.arrays is not None and index.arrays.free_after_stops(number) != index.capacity.free(number)


class _Site(NamedTuple):
    number: int
    ranks: int
    ready: int
    capacity: Resources


def _chosen(
    index: WorldIndex,
    world: World,
    job: Job,
    rank_class: RankClass,
    nodes: Iterable[int],
    rank: Callable[[int], Key],
    ends: Callable[[Job], bool],
) -> list[_Site] | None:
    numbers_by_domain: dict[str, list[int]] = {}
    for number in sorted(nodes, key=lambda number: (rank(number), number)):
        domain = "" if rank_class.within is None else index.capacity.levels[rank_class.within].domain_by_node[number]
        if domain is not None:
            numbers_by_domain.setdefault(domain, []).append(number)
    found: list[tuple[int, str, list[_Site]]] = []
    for domain, numbers in numbers_by_domain.items():
        sites: list[_Site] = []
        missing = job.replicas
        for number in numbers:
            site = _site(index, world, job, number, ends)
            if site.ranks and missing:
                sites.append(site._replace(ranks=min(missing, site.ranks)))
                missing -= sites[-1].ranks
        if not missing:
            found.append((sum(site.ranks - min(site.ranks, site.ready) for site in sites), domain, sites))
    return min(found, key=lambda one: one[:2])[2] if found else None


def _site(index: WorldIndex, world: World, job: Job, number: int, ends: Callable[[Job], bool]) -> _Site:
    name, capacity = index.capacity.nodes[number].name, index.capacity.free(number)
    ready = job.request.times_in(capacity)
    for holder in world.jobs:
        ranks = facts_of(holder).nodes.count(name)
        if ranks and ends(holder):
            capacity = capacity + holder.request * ranks
    return _Site(number, job.request.times_in(capacity), ready, capacity)


def _distance(job: Job, free: Resources) -> Key:
    request = job.request
    ready = request.times_in(free)
    return (
        -ready,
        max(0, request.gpus * (ready + 1) - free.gpus),
        max(0, request.cpu_m * (ready + 1) - free.cpu_m),
    )


def _least(one: Resources, other: Resources) -> Resources:
    names = one.other.keys() | other.other.keys()
    return Resources(
        cpu_m=min(one.cpu_m, other.cpu_m),
        memory_bytes=min(one.memory_bytes, other.memory_bytes),
        gpus=min(one.gpus, other.gpus),
        pods=min(one.pods, other.pods),
        other={name: min(one.other.get(name, 0), other.other.get(name, 0)) for name in names},
    )
