"""What starts in one round, in which order. What must not live here: any rule of order, of room or of place."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from coda.cache.array_capacity import ArrayCapacity, StartOption
from coda.cache.queue import GangClass, QueuedJob
from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.cycle.reservation import ReservationHold, overdue, reserve
from coda.model.decision import Start, Stop
from coda.model.job import Job, JobId
from coda.policy.arrays import Array

_ARRAYS: Final = tuple(Array)
_Line = tuple[Any, QueuedJob, Iterator[QueuedJob]]
"""The equal gangs of one shape: when the first of them is tried, that one, and the others."""


class CycleStarts(NamedTuple):
    """`stops`: who must stop for the first job that could start then. There the round ends, so that nobody else takes
    what is being freed. `kept_for`: the job for which nodes are kept. `wake_s`: when time alone brings stops."""

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    reserved_for: JobId | None = None
    wake_s: float | None = None


def starts_of_cycle(index: WorldIndex, quotas: QuotaLedger, now_s: float) -> CycleStarts:
    """What starts, in order, and what must stop."""
    this = _StartPhase(index, quotas, now_s)
    starts = (*this.starts_of_overdue(), *this.starts())
    return CycleStarts(starts, this.stops, this.reserved_for, this.wake_s())


class _StartPhase:
    def __init__(self, index: WorldIndex, quotas: QuotaLedger, now_s: float) -> None:
        self._index = index
        self._quotas = quotas
        self._now_s = now_s
        self._lines: list[_Line] = []
        self._may_borrow = True  # nobody waits in the arrays before this one
        self._early: set[JobId] = set()  # those that started before everybody else
        self._is_early = True  # what starts now has waited too long: what it takes is its own
        self._hold: ReservationHold | None = None
        self.stops: tuple[Stop, ...] = ()

    @property
    def reserved_for(self) -> JobId | None:
        """The job for which nodes are kept."""
        return None if self._hold is None else self._hold.job.id

    def starts_of_overdue(self) -> Iterator[Start]:
        """Those that waited too long go before all others, up to the first that fits nowhere: nodes are kept for it."""
        hopeless: set[GangClass] = set()
        for queued in overdue(self._index, self._now_s):
            job = queued.job
            if queued.gang_class in hopeless or self._is_barred(job) or self._quotas.shortage(job) is not None:
                continue
            start = self._start(queued)
            if self.stops:
                return
            if start is not None:
                self._early.add(job.id)
                yield start
                continue
            reservation = reserve(self._index, job, self._index.rank_class(queued.gang_class))
            if reservation is not None:
                self._hold = ReservationHold(self._index, reservation)
                return
            hopeless.add(queued.gang_class)

    def starts(self) -> Iterator[Start]:
        """In arrays one after the other: whether small jobs may be guests can hang on who waits in the one before."""
        self._is_early = False
        if self.stops:
            return
        inadmissible, arrays = self._index.inadmissible, self._index.arrays
        inadmissible.wake(are_protected=arrays is not None and arrays.are_protected)
        if arrays is None:
            yield from self._starts_of([gang_class for array in _ARRAYS for gang_class in inadmissible.to_try(array)])
        else:
            for array in _ARRAYS:
                gang_classes = inadmissible.to_try(array, may_borrow=self._may_borrow)
                if gang_classes and not self.stops:
                    yield from self._starts_of(gang_classes)
                if array is Array.LARGE and arrays.minds_the_queue:
                    self._may_borrow = not self._has_queued(array)
        if self._hold is not None:
            self._hold.give_back()

    def wake_s(self) -> float | None:
        """When time alone lets somebody be stopped."""
        index = self._index
        if index.running is None or self.stops:
            return None
        return index.running.wake_s((queued.job for queued in self._left_waiting()), self._now_s)

    def _starts_of(self, gang_classes: Sequence[GangClass]) -> Iterator[Start]:
        """Within a round room and quotas only shrink: a shape that was refused once is done with."""
        lines = self._lines
        blocks = self._index.policy.blocks
        blocked: set[Hashable] = set()
        if len(gang_classes) == 1 and blocks is None and self._index.running is None:
            yield from self._starts_of_one(gang_classes[0])
            return
        for gang_class in gang_classes:
            if blocks is not None or self._may_start(gang_class) or self._may_stop_others(gang_class):
                self._line_up(self._startable(gang_class))
            else:
                self._sleep(gang_class)
        while lines and not self.stops:
            key, queued, startable = heappop(lines)
            if self._is_late(key, queued, startable):
                continue
            queue = blocks(queued.job) if blocks is not None else None
            if queue in blocked or self._quotas.shortage(queued.job) is not None:
                continue
            start = self._start(queued)
            if start is not None:
                yield start
                self._line_up(startable)
            elif blocks is not None:
                blocked.add(queue)

    def _starts_of_one(self, gang_class: GangClass) -> Iterator[Start]:
        """As `_starts_of`: alone, its jobs need no line, and the first tells whether there is room."""
        if self._is_barred(gang_class.job):
            self._sleep(gang_class)
            return
        for queued in self._startable(gang_class):
            start = None if self._quotas.shortage(queued.job) is not None else self._start(queued)
            if start is None:
                break
            yield start
        else:
            return
        if not self.stops and not self._may_start(gang_class):
            self._sleep(gang_class)

    def _line_up(self, startable: Iterator[QueuedJob]) -> None:
        queued = next(startable, None)
        if queued is not None:
            heappush(self._lines, (self._index.sort_key(queued), queued, startable))

    def _is_late(self, key: Any, queued: QueuedJob, startable: Iterator[QueuedJob]) -> bool:
        """True when starts since it was lined up have put it further back: lined up again. Shares only grow."""
        if self._index.shares is None or (sort_key := self._index.sort_key(queued)) == key:
            return False
        heappush(self._lines, (sort_key, queued, startable))
        return True

    def _startable(self, gang_class: GangClass) -> Iterator[QueuedJob]:
        startable = gang_class.startable(self._now_s)
        return (queued for queued in startable if queued.job.id not in self._early) if self._early else startable

    def _is_barred(self, job: Job) -> bool:
        """True where it must stay within a level that nobody configured."""
        return job.within is not None and self._index.config.level_index(job.within) is None

    def _may_stop_others(self, gang_class: GangClass) -> bool:
        """Of equal gangs, the first may stop whomever the others may."""
        running = self._index.running
        if running is None or self._is_barred(gang_class.job):
            return False
        first = next(gang_class.startable(self._now_s), None)
        return first is not None and running.may_stop_for(first.job, self._now_s)

    def _may_start(self, gang_class: GangClass) -> bool:
        index, job = self._index, gang_class.job
        if self._is_barred(job):
            return False
        if index.arrays is None:
            candidates = index.rank_class(gang_class).candidates
            candidates.refresh()
            return candidates.may_hold(job.replicas)
        for _, rank_class in index.arrays.ways(gang_class, may_borrow=self._may_borrow):
            candidates = rank_class.candidates
            candidates.refresh()
            if candidates.may_hold(job.replicas):
                return True
        return False

    def _start(self, queued: QueuedJob) -> Start | None:
        """Start the job if it fits; else find who must stop for it."""
        index = self._index
        if index.arrays is not None:
            return self._start_in_arrays(index.arrays, queued)
        rank_class = index.rank_class(queued.gang_class)
        rank_class.candidates.refresh()
        shares = rank_class.candidates.place(queued.job.replicas, rank_class.within)
        if shares is not None:
            return self._begin(queued.job, shares)
        if index.running is not None:
            self.stops = index.running.stops_for(queued.job, rank_class, self._now_s)
        return None

    def _start_in_arrays(self, arrays: ArrayCapacity, queued: QueuedJob) -> Start | None:
        job = queued.job
        for option, rank_class in arrays.ways(queued.gang_class, may_borrow=self._may_borrow):
            rank_class.candidates.refresh()
            if option.stops:
                if rank_class.candidates.may_hold(job.replicas):
                    self.stops = arrays.stops_for(job, rank_class)
            else:
                shares = rank_class.candidates.place(job.replicas, rank_class.within)
                if shares is not None:
                    return self._begin(job, shares, option)
        return None

    def _sleep(self, gang_class: GangClass) -> None:
        """Not to be asked about again before a node gains room for it; where others may be stopped, time counts too."""
        index = self._index
        if index.arrays is not None:
            rank_classes = [rank_class for _, rank_class in index.arrays.ways(gang_class, may_borrow=self._may_borrow)]
            index.inadmissible.park(gang_class, rank_classes, may_borrow=self._may_borrow)
        elif index.running is None:
            index.inadmissible.park(gang_class, [index.rank_class(gang_class)])

    def _has_queued(self, array: Array) -> bool:
        started = self._index.started()
        return any(
            queued.job.id not in started
            for gang_class in self._index.queue.class_by_key.values()
            if gang_class.array is array
            for queued in gang_class.startable(self._now_s)
        )

    def _left_waiting(self) -> Iterator[QueuedJob]:
        started = self._index.started()
        for gang_class in self._index.queue.class_by_key.values():
            yield from (queued for queued in gang_class.startable(self._now_s) if queued.job.id not in started)

    def _begin(self, job: Job, shares: list[tuple[int, int]], option: StartOption | None = None) -> Start:
        self._quotas.take(job)
        return Start(
            job=job.id,
            attempt=job.attempt,
            generation=job.generation,
            nodes=self._index.start(job, shares),
            cpus_per_replica=job.cpus_per_replica,
            borrows=option is not None and option.borrows and not self._is_early,
        )
