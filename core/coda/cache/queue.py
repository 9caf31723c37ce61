"""The queue: waiting jobs in order, and by what they ask for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter
from typing import Final

from coda.cache.gang_class import GangClass, QueuedJob
from coda.model.constraints import key_of_constraints
from coda.model.job import Job, JobId
from coda.model.live_placement import is_waiting
from coda.model.resources import key_of_amount
from coda.model.world import World
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.locality import LevelHold
from coda.nodes.preferred_levels import PreferredLevels, RunS
from coda.policy.config import PolicyConfig
from coda.policy.order import Order, by_arrival

Party = Callable[[Job], Hashable]
"""The party that a job counts for."""

_FEW: Final = 32
"""Up to this many new jobs are inserted one by one; with more, the whole list is sorted again."""


_KEPT: Final = 512
"""Classes without a job that are remembered. Our choice: most jobs start at once, and the next alike comes soon."""


def waiting_jobs(world: World) -> list[Job]:
    """Return the jobs that wait for a placement, in the order they are tried. O(jobs log jobs)."""
    return sorted((job for job in world.jobs if is_waiting(job)), key=by_arrival)


def wake_s(world: World, now_s: float) -> float | None:
    """Return the next moment at which time alone lets a waiting job start, or None."""
    return min((job.not_before_s for job in world.jobs if job.not_before_s > now_s and is_waiting(job)), default=None)


def waits_since_s(job: Job) -> float:
    """Return since when a waiting job waits: since its last attempt ended, or an edit enlarged it."""
    return job.waiting_s or job.queued_s  # `queued_s` is its place in the queue, which another clock may have written


def within_tenant(party: Party | None, job: Job) -> Hashable:
    """Return the job's party inside its tenant: jobs of two tenants are never of one class."""
    return (job.virtual_cluster, party(job) if party is not None else None)


_Place = tuple[float, JobId, QueuedJob]
"""Longest wait first, then by id."""


class Queue:
    """The waiting jobs in order, and by class, kept up to date.

    `limited`: the namespaces with ResourceQuotas. Only there the class depends on the quota that a job uses.
    `party`: jobs of different parties are in different classes, even if they ask for the same. `config`: the
    levels that gangs may prefer; None: they prefer nothing."""

    def __init__(
        self,
        limited: Collection[str] = (),
        order: Order = by_arrival,
        party: Party | None = None,
        config: PolicyConfig | None = None,
    ) -> None:
        self.limited = limited
        self._preferred = None if config is None else PreferredLevels(config)
        self._order = order
        self._party = party
        self.queued_jobs: list[QueuedJob] = []  # in order
        self.class_by_key: dict[Hashable, GangClass] = {}
        self._new_classes: list[GangClass] = []
        self._past_by_key: dict[Hashable, GangClass] = {}  # classes whose last job has left, the latest last
        self._queued_by_job: dict[JobId, QueuedJob] = {}
        self._oldest_s = inf  # no job waited since before this moment
        self._line_by_priority: dict[int, list[_Place]] | None = None  # from the first long wait on

    def waiting_since(self, moment_s: float, now_s: float) -> Iterator[QueuedJob]:
        """Those that may start now and wait since that moment or longer, in order: higher priority, longest wait, id.

        O(1) until a job has waited so; O(jobs log jobs) the first time; then O(priorities), and O(1) for each."""
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

    def job_ids(self) -> Collection[JobId]:
        """Return the ids of the waiting jobs, in no order."""
        return self._queued_by_job.keys()

    def get(self, job: JobId) -> QueuedJob | None:
        """Return a waiting job by its id; None if it does not wait."""
        return self._queued_by_job.get(job)

    def class_of(self, job: JobId) -> GangClass | None:
        """Return the class of a waiting job; None if it does not wait."""
        queued = self._queued_by_job.get(job)
        return None if queued is None else queued.gang_class

    def without(self, jobs: Collection[JobId]) -> list[QueuedJob]:
        """Return the waiting jobs in order, except these. O(log jobs) for each of a few, and a copy of the list."""
        if len(jobs) > _FEW:
            return [queued for queued in self.queued_jobs if queued.job.id not in jobs]
        left = self.queued_jobs.copy()
        for job in jobs:
            _remove(left, self._queued_by_job[job])
        return left

    def change(self, gone: Sequence[Job], come: Sequence[Job]) -> None:
        """Remove and add waiting jobs. O(log jobs) for each of a few, O(jobs log jobs) for many.

        Gangs that prefer to be close together enter with the level that they require, until `hold_to_levels`."""
        if self._preferred is not None:
            self._preferred.follow(gone, come)
        self._change(gone, come)

    def hold_to_levels(self, now_s: float, run_s: RunS, capacity: FreeCapacity, version: int) -> None:
        """Queue each gang with the level that it waits for now, see `PreferredLevels`."""
        if self._preferred is None:
            return
        for job, level in self._preferred.pop_moved(now_s, waits_since_s, run_s, capacity, version):
            self._change((job,), (replace(job, within=level),))

    def hold_of(self, job: JobId) -> LevelHold | None:
        """Return the level that a job prefers and waits for now; None if it waits for none."""
        return None if self._preferred is None else self._preferred.of(job)

    def holding_out(self) -> list[JobId]:
        """Return all jobs that wait for such a level, in no order. O(jobs that prefer one)."""
        return [] if self._preferred is None else self._preferred.holding_out()

    def next_level_s(self, now_s: float) -> float | None:
        """Return when time alone lets a job go on to another level, or None."""
        return None if self._preferred is None else self._preferred.next_s(now_s)

    def _change(self, gone: Sequence[Job], come: Sequence[Job]) -> None:
        for job in gone:
            queued = self._queued_by_job.pop(job.id)
            _remove(self.queued_jobs, queued)
            _remove(queued.gang_class.queued_jobs, queued)
            queued.gang_class.kinds = None
            if self._line_by_priority is not None:
                line = self._line_by_priority[queued.job.priority]
                del line[bisect_left(line, _place(queued))]
                if not line:
                    del self._line_by_priority[queued.job.priority]
            if not queued.gang_class.queued_jobs:
                self._remove_class(queued.gang_class)
        entered = [self._queued(job) for job in come]
        _insert(self.queued_jobs, entered)
        if self._line_by_priority is not None:
            for queued in entered:
                insort(self._line_by_priority.setdefault(queued.job.priority, []), _place(queued))
        entered_by_class: dict[GangClass, list[QueuedJob]] = {}
        for queued in entered:
            entered_by_class.setdefault(queued.gang_class, []).append(queued)
        for gang_class, queued_jobs in entered_by_class.items():
            _insert(gang_class.queued_jobs, queued_jobs)
            gang_class.kinds = None

    def pop_new_classes(self) -> list[GangClass]:
        """Return the classes that are new since the last call."""
        new, self._new_classes = self._new_classes, []
        return new

    def forget_nodes(self) -> None:
        """All nodes are numbered again, so nothing found on them holds."""
        self._past_by_key.clear()
        for gang_class in self.class_by_key.values():
            gang_class.forget_nodes()

    def _remove_class(self, gang_class: GangClass) -> None:
        del self.class_by_key[gang_class.key]
        past = self._past_by_key
        past[gang_class.key] = gang_class
        if len(past) > _KEPT:
            del past[next(iter(past))]

    def _queued(self, job: Job) -> QueuedJob:
        quota = None
        if self.limited and job.namespace in self.limited:
            quota = (job.namespace, frozenset(job.quota.items()), job.scopes)
        party = self._party(job) if self._party else None
        key = (
            key_of_constraints(job.constraints),
            key_of_amount(job.request),
            job.replicas,
            job.within,
            job.avoid,
            quota,
            party,
            job.may_borrow,
        )
        gang_class = self.class_by_key.get(key)
        if gang_class is None:
            gang_class = self.class_by_key[key] = GangClass(key, job)
            past = self._past_by_key.pop(key, None)
            if past is not None:
                gang_class.take_over(past)
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
