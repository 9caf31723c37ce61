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
    kept_for: JobId | None = None
    wake_s: float | None = None


def starts_of_cycle(known: WorldIndex, quotas: QuotaLedger, now_s: float) -> CycleStarts:
    """What starts, in order, and what must stop."""
    this = _StartPhase(known, quotas, now_s)
    starts = (*this.starts_of_overdue(), *this.starts())
    return CycleStarts(starts, this.stops, this.kept_for, this.wake_s())


class _StartPhase:
    def __init__(self, known: WorldIndex, quotas: QuotaLedger, now_s: float) -> None:
        self._known = known
        self._quotas = quotas
        self._now_s = now_s
        self._lines: list[_Line] = []
        self._may_borrow = True  # nobody waits in the arrays before this one
        self._early: set[JobId] = set()  # those that started before everybody else
        self._is_early = True  # what starts now has waited too long: what it takes is its own
        self._kept: ReservationHold | None = None
        self.stops: tuple[Stop, ...] = ()

    @property
    def kept_for(self) -> JobId | None:
        """The job for which nodes are kept."""
        return None if self._kept is None else self._kept.job.id

    def starts_of_overdue(self) -> Iterator[Start]:
        """Those that waited too long go before all others, up to the first that fits nowhere: nodes are kept for it."""
        hopeless: set[GangClass] = set()
        for waiter in overdue(self._known, self._now_s):
            job = waiter.job
            if waiter.shape in hopeless or self._is_barred(job) or self._quotas.shortage(job) is not None:
                continue
            start = self._start(waiter)
            if self.stops:
                return
            if start is not None:
                self._early.add(job.id)
                yield start
                continue
            reservation = reserve(self._known, job, self._known.kind(waiter.shape))
            if reservation is not None:
                self._kept = ReservationHold(self._known, reservation)
                return
            hopeless.add(waiter.shape)

    def starts(self) -> Iterator[Start]:
        """In arrays one after the other: whether small jobs may be guests can hang on who waits in the one before."""
        self._is_early = False
        if self.stops:
            return
        sleepers, lending = self._known.sleepers, self._known.lending
        sleepers.rouse(are_kept=lending is not None and lending.are_kept)
        if lending is None:
            yield from self._starts_of([shape for array in _ARRAYS for shape in sleepers.awake(array)])
        else:
            for array in _ARRAYS:
                shapes = sleepers.awake(array, may_borrow=self._may_borrow)
                if shapes and not self.stops:
                    yield from self._starts_of(shapes)
                if array is Array.LARGE and lending.minds_waiters:
                    self._may_borrow = not self._has_waiters(array)
        if self._kept is not None:
            self._kept.give_back()

    def wake_s(self) -> float | None:
        """When time alone lets somebody be stopped."""
        known = self._known
        if known.preempting is None or self.stops:
            return None
        return known.preempting.wake_s((waiter.job for waiter in self._left_waiting()), self._now_s)

    def _starts_of(self, shapes: Sequence[GangClass]) -> Iterator[Start]:
        """Within a round room and quotas only shrink: a shape that was refused once is done with."""
        lines = self._lines
        blocks = self._known.policy.blocks
        blocked: set[Hashable] = set()
        if len(shapes) == 1 and blocks is None and self._known.preempting is None:
            yield from self._starts_of_one(shapes[0])
            return
        for shape in shapes:
            if blocks is not None or self._may_start(shape) or self._may_stop_others(shape):
                self._line_up(self._turns(shape))
            else:
                self._sleep(shape)
        while lines and not self.stops:
            key, waiter, turns = heappop(lines)
            if self._is_late(key, waiter, turns):
                continue
            queue = blocks(waiter.job) if blocks is not None else None
            if queue in blocked or self._quotas.shortage(waiter.job) is not None:
                continue
            start = self._start(waiter)
            if start is not None:
                yield start
                self._line_up(turns)
            elif blocks is not None:
                blocked.add(queue)

    def _starts_of_one(self, shape: GangClass) -> Iterator[Start]:
        """As `_starts_of`: alone, its jobs need no line, and the first tells whether there is room."""
        if self._is_barred(shape.job):
            self._sleep(shape)
            return
        for waiter in self._turns(shape):
            start = None if self._quotas.shortage(waiter.job) is not None else self._start(waiter)
            if start is None:
                break
            yield start
        else:
            return
        if not self.stops and not self._may_start(shape):
            self._sleep(shape)

    def _line_up(self, turns: Iterator[QueuedJob]) -> None:
        waiter = next(turns, None)
        if waiter is not None:
            heappush(self._lines, (self._known.turn(waiter), waiter, turns))

    def _is_late(self, key: Any, waiter: QueuedJob, turns: Iterator[QueuedJob]) -> bool:
        """True when starts since it was lined up have put it further back: lined up again. Shares only grow."""
        if self._known.shares is None or (turn := self._known.turn(waiter)) == key:
            return False
        heappush(self._lines, (turn, waiter, turns))
        return True

    def _turns(self, shape: GangClass) -> Iterator[QueuedJob]:
        turns = shape.turns(self._now_s)
        return (waiter for waiter in turns if waiter.job.id not in self._early) if self._early else turns

    def _is_barred(self, job: Job) -> bool:
        """True where it must stay within a level that nobody configured."""
        return job.within is not None and self._known.config.level_index(job.within) is None

    def _may_stop_others(self, shape: GangClass) -> bool:
        """Of equal gangs, the first may stop whomever the others may."""
        preempting = self._known.preempting
        if preempting is None or self._is_barred(shape.job):
            return False
        first = next(shape.turns(self._now_s), None)
        return first is not None and preempting.may_stop_for(first.job, self._now_s)

    def _may_start(self, shape: GangClass) -> bool:
        known, job = self._known, shape.job
        if self._is_barred(job):
            return False
        if known.lending is None:
            candidates = known.kind(shape).candidates
            candidates.refresh()
            return candidates.may_hold(job.replicas)
        for _, kind in known.lending.ways(shape, may_borrow=self._may_borrow):
            candidates = kind.candidates
            candidates.refresh()
            if candidates.may_hold(job.replicas):
                return True
        return False

    def _start(self, waiter: QueuedJob) -> Start | None:
        """Start the job if it fits; else find who must stop for it."""
        known = self._known
        if known.lending is not None:
            return self._start_in_arrays(known.lending, waiter)
        kind = known.kind(waiter.shape)
        kind.candidates.refresh()
        shares = kind.candidates.place(waiter.job.replicas, kind.within)
        if shares is not None:
            return self._begin(waiter.job, shares)
        if known.preempting is not None:
            self.stops = known.preempting.stops_for(waiter.job, kind, self._now_s)
        return None

    def _start_in_arrays(self, lending: ArrayCapacity, waiter: QueuedJob) -> Start | None:
        job = waiter.job
        for option, kind in lending.ways(waiter.shape, may_borrow=self._may_borrow):
            kind.candidates.refresh()
            if option.stops:
                if kind.candidates.may_hold(job.replicas):
                    self.stops = lending.stops_for(job, kind)
            else:
                shares = kind.candidates.place(job.replicas, kind.within)
                if shares is not None:
                    return self._begin(job, shares, option)
        return None

    def _sleep(self, shape: GangClass) -> None:
        """Not to be asked about again before a node gains room for it; where others may be stopped, time counts too."""
        known = self._known
        if known.lending is not None:
            kinds = [kind for _, kind in known.lending.ways(shape, may_borrow=self._may_borrow)]
            known.sleepers.sleep(shape, kinds, may_borrow=self._may_borrow)
        elif known.preempting is None:
            known.sleepers.sleep(shape, [known.kind(shape)])

    def _has_waiters(self, array: Array) -> bool:
        started = self._known.started()
        return any(
            waiter.job.id not in started
            for shape in self._known.queue.shape_by_key.values()
            if shape.array is array
            for waiter in shape.turns(self._now_s)
        )

    def _left_waiting(self) -> Iterator[QueuedJob]:
        started = self._known.started()
        for shape in self._known.queue.shape_by_key.values():
            yield from (waiter for waiter in shape.turns(self._now_s) if waiter.job.id not in started)

    def _begin(self, job: Job, shares: list[tuple[int, int]], option: StartOption | None = None) -> Start:
        self._quotas.take(job)
        return Start(
            job=job.id,
            attempt=job.attempt,
            generation=job.generation,
            nodes=self._known.start(job, shares),
            cpus_per_replica=job.cpus_per_replica,
            borrows=option is not None and option.borrows and not self._is_early,
        )
