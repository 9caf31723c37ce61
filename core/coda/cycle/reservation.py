"""A limit on how long a job can be overtaken: nodes are reserved for the first job that waited too long.

Jobs that start while a large job waits may take its capacity again and again. So after `overtaking_limit_s` (W) a job
that does not fit gets a reservation: nodes that hold it once the jobs have ended that started before it was overdue.
Others start there only beside what it needs. The reservation is not stored. Every cycle searches again and finds nodes
at least as good, because nobody could use the earlier ones. So, with R the longest run time of a job, it starts at most
W + R after it began to wait. Only one job has a reservation at a time. If every node has jobs that started after the
next job in line was overdue, that job gets whole nodes, chosen by size alone and therefore always the same: the k-th in
line starts at most W + k * R after it began to wait.

The bound holds if the gang fits the empty nodes, the nodes stay, and all jobs have the same priority. Cores granted to
running jobs meanwhile can add one more R.
Source: ours; backfilling with a reservation for the head needs run times, which are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from coda.cache.gang_class import QueuedJob
from coda.cache.queue import waits_since_s
from coda.cache.reservable_nodes import LeftForOthers, ReservableNodes
from coda.cache.world_index import WorldIndex
from coda.model.job import Job
from coda.nodes.node_search import RankClass


class Reservation(NamedTuple):
    """Nodes reserved for a job.

    `protected`: nodes where nobody may be stopped for another job. A stop there would make a node better than the
    reserved ones, and the next cycle would reserve that node instead."""

    job: Job
    left_for_others: LeftForOthers
    protected: frozenset[int]


def limit_s(index: WorldIndex) -> float | None:
    """Return how long a job may be overtaken; None: without limit.

    Without borrowing there is no limit: a job can be too large for its array though it fits the cluster."""
    if not index.policy.limits_overtaking or (index.arrays is not None and not index.arrays.borrowing):
        return None
    return index.config.overtaking_limit_s


def overdue(index: WorldIndex, now_s: float) -> Iterator[QueuedJob]:
    """The jobs that have waited too long, in order: higher priority, longest wait, id."""
    limit = limit_s(index)
    return iter(()) if limit is None else index.queue.waiting_since(now_s - limit, now_s)


def reserve(index: WorldIndex, job: Job, rank_class: RankClass) -> Reservation | None:
    """Return a reservation for a job that does not fit now; None if it would not fit the empty nodes.

    First the nodes where most ranks fit already, then those where least must end (GPUs, cores), then by name. With a
    required level, in the domain where most ranks fit. O(domains + reserved nodes), and O(log nodes) for each node that
    changed since the last call for the job; O(running jobs + nodes log nodes) at the first."""
    if index.search.ranks_when_empty(rank_class, rank_class.within) < job.replicas:
        return None
    overdue_s = waits_since_s(job) + (index.config.overtaking_limit_s or 0.0)
    for due_s in (overdue_s, None):  # nodes once the earlier jobs have ended; if that is too little, whole nodes
        reservable = index.reservable_nodes(rank_class, due_s)
        left = reservable.reserve(job.replicas)
        if left is not None:
            judges_by_free = due_s is not None and rank_class.within is None
            return Reservation(job, left, _protected(index, reservable if judges_by_free else None, left))
    return None


def _protected(index: WorldIndex, reservable: ReservableNodes | None, left: LeftForOthers) -> frozenset[int]:
    """Nodes where no job may be stopped for another: the reserved nodes, and every node that stopping jobs would make
    better than the worst reserved one; without `reservable`, every node. Nodes without a job to stop are left out."""
    arrays = index.arrays
    if arrays is None:
        return frozenset()
    if reservable is None:
        return frozenset(arrays.evictable)
    free_after_stops = {number: arrays.free_after_stops(number) for number in arrays.evictable}
    return reservable.are_better(free_after_stops, left) | (arrays.evictable & left.keys())


class ReservationHold:
    """While it is entered, others find on the reserved nodes only what is left for them, and protected nodes are safe.

    Without a reservation it does nothing."""

    def __init__(self, index: WorldIndex, reservation: Reservation | None) -> None:
        self._index = index
        self._reservation = reservation
        self._left: LeftForOthers = {} if reservation is None else reservation.left_for_others
        self._free = {number: index.capacity.free(number) for number in self._left}

    def __enter__(self) -> None:
        if self._reservation is None:
            return
        self._index.set_free(self._left)
        if self._index.arrays is not None:
            self._index.arrays.protect_nodes(self._reservation.protected)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put back what was reserved, less what others took beside it."""
        if self._reservation is None:
            return
        free, left, free_now = self._free, self._left, self._index.capacity.free
        self._index.set_free({number: free[number] - (left[number] - free_now(number)) for number in left})
        if self._index.arrays is not None:
            self._index.arrays.unprotect_nodes()
