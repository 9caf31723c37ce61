"""What starts in one round, in which order. What must not live here: any rule of order, of room or of place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from coda.arrays import Array
from coda.lending import Lending, Option
from coda.memory import Known
from coda.model import Job
from coda.ordering import Shape, Waiter
from coda.outcomes import Start, Stop
from coda.quotas import QuotaLedger

_Line = tuple[Any, Waiter, Iterator[Waiter]]
"""The equal gangs of one shape: when the first of them is tried, that one, and the others."""


def round_of(known: Known, quotas: QuotaLedger, now_s: float) -> tuple[tuple[Start, ...], tuple[Stop, ...]]:
    """What starts, in order, and what must stop for the first that could start then. There the round ends, so that
    nobody else takes what is being freed."""
    this = _Round(known, quotas, now_s)
    starts = tuple(this.starts())
    return starts, this.stops


class _Round:
    def __init__(self, known: Known, quotas: QuotaLedger, now_s: float) -> None:
        self._known = known
        self._quotas = quotas
        self._now_s = now_s
        self._lines: list[_Line] = []
        self._may_borrow = True  # nobody waits in the arrays before this one
        self.stops: tuple[Stop, ...] = ()

    def starts(self) -> Iterator[Start]:
        """In arrays one after the other: whether one may borrow hangs on who is left waiting in those before it."""
        shapes = self._known.queue.shape_by_key.values()
        if self._known.lending is None:
            yield from self._starts_of(shapes)
            return
        shapes_by_array: dict[Array, list[Shape]] = {array: [] for array in Array}
        for shape in shapes:
            shapes_by_array[shape.array].append(shape)
        for array in Array:
            yield from self._starts_of(shapes_by_array[array])
            self._may_borrow = self._may_borrow and not any(map(self._has_waiters, shapes_by_array[array]))

    def _starts_of(self, shapes: Iterable[Shape]) -> Iterator[Start]:
        """Within a round room and quotas only shrink: a shape that was refused once is done with."""
        lines = self._lines
        blocks = self._known.policy.blocks
        blocked: set[Hashable] = set()
        for shape in shapes:
            if blocks is not None or self._may_start(shape):
                self._line_up(shape.turns(self._now_s))
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

    def _line_up(self, turns: Iterator[Waiter]) -> None:
        waiter = next(turns, None)
        if waiter is not None:
            heappush(self._lines, (self._known.turn(waiter), waiter, turns))

    def _is_late(self, key: Any, waiter: Waiter, turns: Iterator[Waiter]) -> bool:
        """True when starts since it was lined up have put it further back: lined up again. Shares only grow."""
        if self._known.shares is None or (turn := self._known.turn(waiter)) == key:
            return False
        heappush(self._lines, (turn, waiter, turns))
        return True

    def _may_start(self, shape: Shape) -> bool:
        known, job = self._known, shape.job
        if job.within is not None and known.config.level_index(job.within) is None:
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

    def _start(self, waiter: Waiter) -> Start | None:
        """Start the job if it fits; else find who must stop for it."""
        known = self._known
        if known.lending is not None:
            return self._start_in_arrays(known.lending, waiter)
        kind = known.kind(waiter.shape)
        kind.candidates.refresh()
        shares = kind.candidates.place(waiter.job.replicas, kind.within)
        return None if shares is None else self._begin(waiter.job, shares)

    def _start_in_arrays(self, lending: Lending, waiter: Waiter) -> Start | None:
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

    def _has_waiters(self, shape: Shape) -> bool:
        started = self._known.started()
        return any(waiter.job.id not in started for waiter in shape.turns(self._now_s))

    def _begin(self, job: Job, shares: list[tuple[int, int]], option: Option | None = None) -> Start:
        self._quotas.take(job)
        return Start(
            job=job.id,
            attempt=job.attempt,
            generation=job.generation,
            nodes=self._known.start(job, shares),
            cpus_per_replica=job.cpus_per_replica,
            borrows=option is not None and option.borrows,
        )
