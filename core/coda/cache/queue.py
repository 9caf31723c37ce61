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

    __slots__ = ("gang_class", "is_held", "job", "reason", "refusal", "sort_key")

    def __init__(self, job: Job, gang_class: GangClass, sort_key: SortKey) -> None:
        self.job = job
        self.gang_class = gang_class
        self.sort_key = sort_key
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

    __slots__ = ("anywhere", "array", "case", "job", "key", "queued_jobs", "rank_class", "ways")

    def __init__(self, key: Hashable, job: Job) -> None:
        self.key = key
        self.job = job  # any of them, to ask questions with
        self.queued_jobs: list[QueuedJob] = []
        self.rank_class: Any = None  # the search's, found when it is asked for
        self.array = array_of(job)
        self.ways: dict[Hashable, Any] = {}  # the same for every way to start in the arrays, by what these hang on
        self.anywhere: Any = None  # the same without a required level
        self.case: Any = None  # what is known about why they wait

    def startable(self, now_s: float) -> Iterator[QueuedJob]:
        """Those that may start now, in order."""
        return (queued for queued in self.queued_jobs if queued.may_start(now_s))


class Queue:
    """The waiting jobs in order, and by shape, kept while jobs come and go.

    `limited`: the namespaces with ResourceQuotas; only there does a job's use of them belong to its shape.
    `party`: where jobs of different ones are not equal, even if they ask for the same."""

    def __init__(self, limited: Collection[str] = (), order: Order = by_arrival, party: Party | None = None) -> None:
        self.limited = limited
        self._order = order
        self._party = party
        self.queued_jobs: list[QueuedJob] = []  # in order
        self.class_by_key: dict[Hashable, GangClass] = {}
        self._new_classes: list[GangClass] = []
        self._queued_by_job: dict[JobId, QueuedJob] = {}
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
            for queued in self.queued_jobs:
                lines.setdefault(queued.job.priority, []).append(_place(queued))
            for line in lines.values():
                line.sort()
        for priority in sorted(lines, reverse=True):
            for since_s, _, queued in lines[priority]:
                if since_s > moment_s:
                    break
                if queued.may_start(now_s):
                    yield queued

    def without(self, jobs: Collection[JobId]) -> list[QueuedJob]:
        """The waiting jobs in order but for these. O(log jobs) for each of a few, and a copy of the list."""
        if len(jobs) > _FEW:
            return [queued for queued in self.queued_jobs if queued.job.id not in jobs]
        left = self.queued_jobs.copy()
        for job in jobs:
            _remove(left, self._queued_by_job[job])
        return left

    def change(self, gone: Iterable[Job], come: Iterable[Job]) -> None:
        """Take waiting jobs out, and others in. O(log jobs) for each of a few, O(jobs log jobs) for many."""
        for job in gone:
            queued = self._queued_by_job.pop(job.id)
            _remove(self.queued_jobs, queued)
            _remove(queued.gang_class.queued_jobs, queued)
            if self._line_by_priority is not None:
                line = self._line_by_priority[queued.job.priority]
                del line[bisect_left(line, _place(queued))]
                if not line:
                    del self._line_by_priority[queued.job.priority]
            if not queued.gang_class.queued_jobs:
                del self.class_by_key[queued.gang_class.key]
        entered = [self._queued(job) for job in come]
        _insert(self.queued_jobs, entered)
        if self._line_by_priority is not None:
            for queued in entered:
                insort(self._line_by_priority.setdefault(queued.job.priority, []), _place(queued))
        entered_by_shape: dict[GangClass, list[QueuedJob]] = {}
        for queued in entered:
            entered_by_shape.setdefault(queued.gang_class, []).append(queued)
        for gang_class, queued_jobs in entered_by_shape.items():
            _insert(gang_class.queued_jobs, queued_jobs)

    def take_new_classes(self) -> list[GangClass]:
        """The shapes that were not there at the last call."""
        new, self._new_classes = self._new_classes, []
        return new

    def _queued(self, job: Job) -> QueuedJob:
        quota = (
            (job.namespace, frozenset(job.quota.items())) if self.limited and job.namespace in self.limited else None
        )
        party = self._party(job) if self._party else None
        key = (
            key_of_constraints(job.constraints),
            key_of_amount(job.request),
            job.replicas,
            job.within,
            job.avoid,
            quota,
            party,
        )
        gang_class = self.class_by_key.get(key)
        if gang_class is None:
            gang_class = self.class_by_key[key] = GangClass(key, job)
            self._new_classes.append(gang_class)
        self._oldest_s = min(self._oldest_s, waits_since_s(job))
        queued = self._queued_by_job[job.id] = QueuedJob(job, gang_class, self._order(job))
        return queued


def _place(queued: QueuedJob) -> _Place:
    return (waits_since_s(queued.job), queued.job.id, queued)


_sort_key = attrgetter("sort_key")


def _insert(queued_jobs: list[QueuedJob], entered: list[QueuedJob]) -> None:
    if len(entered) > _FEW:
        queued_jobs += entered
        queued_jobs.sort(key=_sort_key)
        return
    for queued in entered:
        insort(queued_jobs, queued, key=_sort_key)


def _remove(queued_jobs: list[QueuedJob], queued: QueuedJob) -> None:
    del queued_jobs[bisect_left(queued_jobs, queued.sort_key, key=_sort_key)]
