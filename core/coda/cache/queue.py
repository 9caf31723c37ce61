"""The queue: waiting jobs in order, and by what they ask for. What must not live here: which order, and what fits."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from math import inf
from operator import attrgetter
from typing import Any, Final

from coda.model.constraints import key_of_constraints
from coda.model.job import Job, JobId
from coda.model.live_placement import is_waiting
from coda.model.resources import key_of_amount
from coda.model.world import World
from coda.policy.arrays import array_of
from coda.policy.order import Order, SortKey, by_arrival

Party = Callable[[Job], Hashable]
"""Whom a job counts for."""

_FEW: Final = 32
"""So many new jobs are put into their places one by one; of more, the whole list is sorted again."""


def waiting_jobs(world: World) -> list[Job]:
    """The jobs that wait for a placement, in the order they are tried. O(jobs log jobs)."""
    return sorted((job for job in world.jobs if is_waiting(job)), key=by_arrival)


def wake_s(world: World, now_s: float) -> float | None:
    """The next moment at which time alone lets a waiting job start, or None: decide again then, or on a change."""
    return min((job.not_before_s for job in world.jobs if job.not_before_s > now_s and is_waiting(job)), default=None)


def waits_since_s(job: Job) -> float:
    """Since when a waiting job waits: a job that was stopped, since then."""
    return max(job.queued_s, job.as_of_s)


class QueuedJob:
    """A waiting job in the queue, and what it was told last."""

    __slots__ = ("is_held", "job", "reason", "refusal", "shape", "turn")

    def __init__(self, job: Job, shape: GangClass, turn: SortKey) -> None:
        self.job = job
        self.shape = shape
        self.turn = turn
        self.is_held = bool(
            job.edited or job.not_before_s or job.bound or job.unbound
        )  # maybe; by more than want of room
        self.reason: Any = None  # what it was told last, and in which words
        self.refusal: Any = None

    def may_start(self, now_s: float) -> bool:
        """False while an edit is not accepted, while pods of an earlier plan are there, and during a back-off."""
        job = self.job
        return not self.is_held or not (job.edited or job.not_before_s > now_s or job.bound or job.unbound)


_Place = tuple[float, JobId, QueuedJob]
"""By the longest wait, then by id."""


class GangClass:
    """Waiting jobs that ask for the same: where one of them does not fit, none does. `waiters` in order of turn."""

    __slots__ = ("anywhere", "array", "case", "job", "key", "kind", "waiters", "ways")

    def __init__(self, key: Hashable, job: Job) -> None:
        self.key = key
        self.job = job  # any of them, to ask questions with
        self.waiters: list[QueuedJob] = []
        self.kind: Any = None  # the search's, found when it is asked for
        self.array = array_of(job)
        self.ways: dict[Hashable, Any] = {}  # the same for every way to start in the arrays, by what these hang on
        self.anywhere: Any = None  # the same without a required level
        self.case: Any = None  # what is known about why they wait

    def turns(self, now_s: float) -> Iterator[QueuedJob]:
        """Those that may start now, in order."""
        return (waiter for waiter in self.waiters if waiter.may_start(now_s))


class Queue:
    """The waiting jobs in order, and by shape, kept while jobs come and go.

    `limited`: the namespaces with ResourceQuotas; only there does a job's use of them belong to its shape.
    `party`: where jobs of different ones are not equal, even if they ask for the same."""

    def __init__(self, limited: Collection[str] = (), order: Order = by_arrival, party: Party | None = None) -> None:
        self.limited = limited
        self._order = order
        self._party = party
        self.waiters: list[QueuedJob] = []  # in order
        self.shape_by_key: dict[Hashable, GangClass] = {}
        self._new_shapes: list[GangClass] = []
        self._waiter_by_job: dict[JobId, QueuedJob] = {}
        self._oldest_s = inf  # nobody waited for longer than since then
        self._line_by_priority: dict[int, list[_Place]] | None = None  # once somebody waited long

    def waiting_since(self, moment_s: float, now_s: float) -> Iterator[QueuedJob]:
        """Those that may start now and have waited since that moment or longer: higher priority, longest wait, id.

        O(1) while nobody ever has; O(jobs log jobs) the first time; then O(priorities), and O(1) for each."""
        if moment_s < self._oldest_s:
            return
        lines = self._line_by_priority
        if lines is None:
            lines = self._line_by_priority = {}
            for waiter in self.waiters:
                lines.setdefault(waiter.job.priority, []).append(_place(waiter))
            for line in lines.values():
                line.sort()
        for priority in sorted(lines, reverse=True):
            for since_s, _, waiter in lines[priority]:
                if since_s > moment_s:
                    break
                if waiter.may_start(now_s):
                    yield waiter

    def without(self, jobs: Collection[JobId]) -> list[QueuedJob]:
        """The waiting jobs in order but for these. O(log jobs) for each of a few, and a copy of the list."""
        if len(jobs) > _FEW:
            return [waiter for waiter in self.waiters if waiter.job.id not in jobs]
        left = self.waiters.copy()
        for job in jobs:
            _remove(left, self._waiter_by_job[job])
        return left

    def change(self, gone: Iterable[Job], come: Iterable[Job]) -> None:
        """Take waiting jobs out, and others in. O(log jobs) for each of a few, O(jobs log jobs) for many."""
        for job in gone:
            waiter = self._waiter_by_job.pop(job.id)
            _remove(self.waiters, waiter)
            _remove(waiter.shape.waiters, waiter)
            if self._line_by_priority is not None:
                line = self._line_by_priority[waiter.job.priority]
                del line[bisect_left(line, _place(waiter))]
                if not line:
                    del self._line_by_priority[waiter.job.priority]
            if not waiter.shape.waiters:
                del self.shape_by_key[waiter.shape.key]
        entered = [self._waiter(job) for job in come]
        _insert(self.waiters, entered)
        if self._line_by_priority is not None:
            for waiter in entered:
                insort(self._line_by_priority.setdefault(waiter.job.priority, []), _place(waiter))
        entered_by_shape: dict[GangClass, list[QueuedJob]] = {}
        for waiter in entered:
            entered_by_shape.setdefault(waiter.shape, []).append(waiter)
        for shape, waiters in entered_by_shape.items():
            _insert(shape.waiters, waiters)

    def take_new_shapes(self) -> list[GangClass]:
        """The shapes that were not there at the last call."""
        new, self._new_shapes = self._new_shapes, []
        return new

    def _waiter(self, job: Job) -> QueuedJob:
        quota = (
            (job.namespace, frozenset(job.quota.items())) if self.limited and job.namespace in self.limited else None
        )
        party = self._party(job) if self._party else None
        key = (
            key_of_constraints(job.demand),
            key_of_amount(job.request),
            job.replicas,
            job.within,
            job.avoid,
            quota,
            party,
        )
        shape = self.shape_by_key.get(key)
        if shape is None:
            shape = self.shape_by_key[key] = GangClass(key, job)
            self._new_shapes.append(shape)
        self._oldest_s = min(self._oldest_s, waits_since_s(job))
        waiter = self._waiter_by_job[job.id] = QueuedJob(job, shape, self._order(job))
        return waiter


def _place(waiter: QueuedJob) -> _Place:
    return (waits_since_s(waiter.job), waiter.job.id, waiter)


_turn = attrgetter("turn")


def _insert(waiters: list[QueuedJob], entered: list[QueuedJob]) -> None:
    if len(entered) > _FEW:
        waiters += entered
        waiters.sort(key=_turn)
        return
    for waiter in entered:
        insort(waiters, waiter, key=_turn)


def _remove(waiters: list[QueuedJob], waiter: QueuedJob) -> None:
    del waiters[bisect_left(waiters, waiter.turn, key=_turn)]
