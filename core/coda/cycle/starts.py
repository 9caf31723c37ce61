"""What starts in one cycle, and in which order."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from heapq import heappop, heappush

from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.cycle.reservation import Reservation, overdue, reserve
from coda.cycle.start_ways import start_way
from coda.model.decision import Start, Stop
from coda.model.job import Job, JobId
from coda.policy.order import SortKey

_Line = tuple[SortKey, QueuedJob, Iterator[QueuedJob]]
"""The gangs of one class: when the first of them is tried, that one, and the others."""


class CycleStarts:
    """The starts of one cycle, in order, and the `stops` for the first job that could start then.

    With the first stops nothing else starts, so that nobody takes what is being freed."""

    def __init__(self, index: WorldIndex, quotas: QuotaLedger, now_s: float) -> None:
        self.starts: list[Start] = []
        self.stops: tuple[Stop, ...] = ()
        self._index = index
        self._quotas = quotas
        self._now_s = now_s
        self._way = start_way(index, now_s)
        self._lines: list[_Line] = []
        self._overdue: set[JobId] = set()  # those that started because they are overdue

    def start_overdue(self) -> Reservation | None:
        """Start the jobs that waited too long, up to the first that does not fit; return its reservation."""
        hopeless: set[GangClass] = set()
        for queued in overdue(self._index, self._now_s):
            job = queued.job
            if queued.gang_class in hopeless or self._is_barred(job) or self._quotas.shortage(job) is not None:
                continue
            if self._start(queued, is_overdue=True):
                self._overdue.add(job.id)
                continue
            if self.stops:
                return None
            reservation = reserve(self._index, job, self._index.rank_class(queued.gang_class))
            if reservation is not None:
                return reservation
            hopeless.add(queued.gang_class)
        return None

    def start_in_order(self) -> None:
        """Start every other job that fits, in the order of the policy."""
        if self.stops:
            return
        for gang_classes in self._way.batches():
            if len(gang_classes) == 1 and self._index.policy.blocks is None:
                self._start_class(gang_classes[0])
            elif gang_classes:
                self._start_classes(gang_classes)
            if self.stops:
                return

    def wake_s(self) -> float | None:
        """When time alone lets a job be stopped, if nobody is stopped now."""
        return None if self.stops else self._way.wake_s()

    def _start_classes(self, gang_classes: Sequence[GangClass]) -> None:
        """Capacity and quotas only shrink within a cycle, so a class is done with its first job that does not fit."""
        lines, blocks = self._lines, self._index.policy.blocks
        blocked: set[Hashable] = set()
        for gang_class in gang_classes:
            if blocks is not None or self._may_start(gang_class):
                self._line_up(self._startable(gang_class))
            else:
                self._way.park(gang_class)
        while lines and not self.stops:
            key, queued, startable = heappop(lines)
            if self._index.usage is not None and (sort_key := self._index.sort_key(queued)) != key:
                heappush(lines, (sort_key, queued, startable))  # starts since then put it further back
                continue
            queue = blocks(queued.job) if blocks is not None else None
            if queue in blocked or self._quotas.shortage(queued.job) is not None:
                continue
            if self._start(queued):
                self._line_up(startable)
            elif blocks is not None:
                blocked.add(queue)

    def _start_class(self, gang_class: GangClass) -> None:
        """As `_start_classes`. A class alone needs no line, and its first job tells whether there is capacity."""
        if self._is_barred(gang_class.job):
            self._way.park(gang_class)
            return
        for queued in self._startable(gang_class):
            if self._quotas.shortage(queued.job) is not None or not self._start(queued):
                break
        else:
            return
        if not self.stops and not self._way.may_start(gang_class):
            self._way.park(gang_class)

    def _line_up(self, startable: Iterator[QueuedJob]) -> None:
        queued = next(startable, None)
        if queued is not None:
            heappush(self._lines, (self._index.sort_key(queued), queued, startable))

    def _startable(self, gang_class: GangClass) -> Iterator[QueuedJob]:
        startable = gang_class.startable(self._now_s)
        return (queued for queued in startable if queued.job.id not in self._overdue) if self._overdue else startable

    def _is_barred(self, job: Job) -> bool:
        """True if it requires a level that is not configured."""
        return job.within is not None and self._index.config.level_index(job.within) is None

    def _may_start(self, gang_class: GangClass) -> bool:
        return not self._is_barred(gang_class.job) and self._way.may_start(gang_class)

    def _start(self, queued: QueuedJob, *, is_overdue: bool = False) -> bool:
        """Start the job if it fits; if not, set who must stop for it. What an overdue job takes is its own."""
        job, found = queued.job, self._way.attempt(queued)
        if found.shares is None:
            self.stops = found.stops
            return False
        self._quotas.count_start(job)
        start = Start(
            job=job.id,
            attempt=job.attempt,
            generation=job.generation,
            nodes=self._index.assign(job, found.shares),
            cpus_per_replica=job.cpus_per_replica,
            borrows=found.borrows and not is_overdue,
        )
        self.starts.append(start)
        return True
