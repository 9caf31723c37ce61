"""How long a job can be overtaken: nodes are kept for the first of those that waited too long. What must not live here:
what starts (`starting`).

Whoever starts while a large job waits may take what it waits for, again and again. So after `overtaking_limit_s` (W) a
job that does not fit gets a reservation: nodes that hold it once the jobs have ended that started before it was
overdue. Others start there only beside what it needs. Nothing is remembered: nodes that hold it in this way are looked
for anew in every round, and the ones of the round before still do, since nobody took anything of them. So, with R the
longest time that a job runs, it starts at most W + R after it began to wait. While it has the reservation, nobody else
has one. A job whose turn comes later, when jobs that started after it was overdue are everywhere, gets whole nodes,
by their sizes alone, therefore always the same: the k-th in line starts at most W + k * R after it began to wait.

This holds for jobs that fit the nodes without any job of ours, while these nodes stay, among jobs of one priority, and
but for cores that are granted to running jobs meanwhile (they end all the same; it costs R once more at most).
Source: ours; backfilling with a reservation for the head needs run times, which are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from coda.cache.queue import QueuedJob, waits_since_s
from coda.cache.reservable_nodes import Distances, ReservableNodes
from coda.cache.world_index import WorldIndex
from coda.model.job import Job
from coda.model.resources import NOTHING, Resources
from coda.nodes.node_search import RankClass

_REMEMBERED: Final = 8
"""For so many of the jobs asked for last, what nodes would hold is remembered. Our choice: most rounds ask for one."""

LeftForOthers = Mapping[int, Resources]
"""What others may take of each of these nodes, by number."""


class Reservation(NamedTuple):
    """Nodes kept for a job. `unstopped`: where nobody may be stopped for another job, though somebody can be, since the
    place that leaves would make these nodes better than the ones kept, and be kept itself."""

    job: Job
    left_for_others: LeftForOthers
    protected: frozenset[int]


def limit_s(index: WorldIndex) -> float | None:
    """How long a job may be overtaken under this policy and configuration; None: for ever.

    Without borrowing there is no limit: a job can then be too large for its array, though it fits the cluster."""
    if not index.policy.limits_overtaking or (index.arrays is not None and not index.arrays.borrowing):
        return None
    return index.config.overtaking_limit_s


def overdue(index: WorldIndex, now_s: float) -> Iterator[QueuedJob]:
    """The jobs that have waited too long: higher priority, longest wait, id."""
    limit = limit_s(index)
    return iter(()) if limit is None else index.queue.waiting_since(now_s - limit, now_s)


def reserve(index: WorldIndex, job: Job, rank_class: RankClass) -> Reservation | None:
    """The nodes for a job that does not fit now; None where it would not fit the nodes without any job of ours.

    Those where most ranks fit already, then where least must end (GPUs, cores), then the first by name; with a required
    level, in the domain where most ranks fit. O(domains + nodes kept), and O(log nodes) for each node that changed
    since the last call for the job; O(running jobs + nodes log nodes) at the first."""
    if index.search.ranks_when_empty(rank_class, rank_class.within) < job.replicas:
        return None
    due_s = waits_since_s(job) + (index.config.overtaking_limit_s or 0.0)
    nearest = _reservable(index, rank_class, due_s)
    capacity = index.capacity
    chosen = nearest.chosen(job.replicas)
    if chosen is not None:
        left = {
            number: _least(capacity.free(number), nearest.capacity(number) - job.request * ranks)
            for number, ranks, _ in chosen
        }
        return Reservation(job, left, _protected(index, rank_class, nearest.distances, left))
    whole = _reservable(index, rank_class, None).chosen(job.replicas)
    if whole is None:
        return None
    return Reservation(job, {site.number: NOTHING for site in whole}, _evictable(index))


def _reservable(index: WorldIndex, rank_class: RankClass, due_s: float | None) -> ReservableNodes:
    """The nodes as they are once those have ended that began by then; None: whole nodes, whoever is there."""
    key = (rank_class, due_s)
    reservable = index.reservable.pop(key, None)
    if reservable is None:
        reservable = ReservableNodes(index.capacity, index.holdings, rank_class, due_s)
    index.reservable[key] = reservable
    if len(index.reservable) > _REMEMBERED:
        del index.reservable[next(iter(index.reservable))]
    reservable.refresh()
    return reservable


def _protected(index: WorldIndex, rank_class: RankClass, distances: Distances, left: LeftForOthers) -> frozenset[int]:
    """Of the nodes kept, and of those that could become as good by stops, were the former used by others as far as may
    be, those where anybody can be stopped."""
    arrays, capacity = index.arrays, index.capacity
    if arrays is None or rank_class.within is not None:
        return _evictable(index)
    last = max((distances.to(capacity.free(number) - others), number) for number, others in left.items())
    return frozenset(
        number
        for number in arrays.evictable
        if number in left or (distances.to(arrays.free_after_stops(number)), number) < last
    )


def _evictable(index: WorldIndex) -> frozenset[int]:
    """The nodes that stops would leave more room on."""
    return frozenset() if index.arrays is None else frozenset(index.arrays.evictable)


def _least(one: Resources, other: Resources) -> Resources:
    """Of each resource the smaller amount."""
    names = one.other.keys() | other.other.keys()
    return Resources(
        cpu_m=min(one.cpu_m, other.cpu_m),
        memory_bytes=min(one.memory_bytes, other.memory_bytes),
        gpus=min(one.gpus, other.gpus),
        pods=min(one.pods, other.pods),
        other={name: min(one.other.get(name, 0), other.other.get(name, 0)) for name in sorted(names)},
    )


class ReservationHold:
    """From its making to `give_back` others find there what the reservation leaves them, and stop only who may be."""

    def __init__(self, index: WorldIndex, reservation: Reservation) -> None:
        self.job = reservation.job
        self._index = index
        self._left = reservation.left_for_others
        self._free = {number: index.capacity.free(number) for number in self._left}
        self._put(self._left)
        if index.arrays is not None:
            index.arrays.keep(reservation.protected)

    def give_back(self) -> None:
        """Put back what was kept, less what others took of the rest."""
        capacity = self._index.capacity
        left = self._left
        self._put({number: self._free[number] - (left[number] - capacity.free(number)) for number in left})
        if self._index.arrays is not None:
            self._index.arrays.unprotect_nodes()

    def _put(self, room_by_number: LeftForOthers) -> None:
        for number, capacity in room_by_number.items():
            self._index.capacity.put(number, capacity)
        if self._index.arrays is not None:
            self._index.arrays.follow(room_by_number)
