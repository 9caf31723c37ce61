"""What starts in one cycle, and in which order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from heapq import heappop, heappush
from typing import Final

from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.own_cores import OwnCores
from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.cycle.judging import Judging
from coda.cycle.lent_gpus import LentGpus
from coda.cycle.start_ways import NO_START, Attempt, start_way
from coda.cycle.victims import Delay, stopped_in_turn
from coda.model.decision import Grant, Start, Stop, WaitReason
from coda.model.job import Job, JobId
from coda.model.resources import key_of_amount
from coda.policy.order import SortKey
from coda.promises import (
    Kept,
    PromiseBook,
    PromiseHold,
    Withheld,
    in_turn,
    keep_nodes,
    overdue,
    stopped_for_promise,
)

_PROMISED: Final = 4
"""The overdue jobs, of different classes, that are looked at in every cycle; of those behind them one is, in turns. Our
choice: a look reads all nodes, who waited longer can pay more, and who never fits stands in nobody's way."""

_Line = tuple[SortKey, QueuedJob, Iterator[QueuedJob]]
"""The gangs of one class: when the first of them is tried, that one, and the others."""


class CycleStarts:
    """The starts of one cycle, in order, and the `stops` or `returns` for the first job that could start then.

    With the first of them nothing else starts, so that nobody takes what is being freed. Until `withheld` is
    released nobody takes what jobs need for which somebody stopped, or may stop later."""

    def __init__(
        self,
        index: WorldIndex,
        quotas: QuotaLedger,
        judging: Judging,
        now_s: float,
        next_reclaim_s: float,
        *,
        patient: Set[JobId] = frozenset(),
    ) -> None:
        self.starts: list[Start] = []
        self.stops: tuple[Stop, ...] = ()
        self.withheld = Withheld(index)
        self._delays: dict[JobId, Delay] = {}  # by jobs for which somebody may stop later
        self.returns: tuple[Grant, ...] = ()
        self._index = index
        self._quotas = quotas
        self._judging = judging
        self._now_s = now_s
        self._patient = patient  # nobody stops for these
        self._way = start_way(index, quotas, now_s, next_reclaim_s)
        self._lines: list[_Line] = []
        # Those that started before all others, since they are overdue or others stopped; or what they need is withheld.
        self._early: set[JobId] = set()
        self._own = None if index.arrays is None else OwnCores(index.arrays, index.capacity)
        self._lent: LentGpus | None = None
        if index.tenants is not None and index.config.returns_lent_gpus:
            self._lent = LentGpus(index, index.tenants, now_s)

    @property
    def reasons(self) -> dict[JobId, WaitReason]:
        """Why single jobs wait, instead of what is short: what they need is lent, and comes back later."""
        reasons = {} if self._lent is None else self._lent.reasons
        return reasons | {job: delay.reason() for job, delay in self._delays.items()}

    def start_claimed(self, book: PromiseBook) -> None:
        """Start the jobs first that others stopped for: what these leave is for nobody else.

        While only a limit of its tenants bars one, since it counts those until they are gone, its place is withheld."""
        if self.is_over:
            return
        for job_id in book.fair_shares.claims(self._index.queue.job_ids(), self._now_s):
            queued = self._index.queue.get(job_id)
            if queued is None or not queued.may_start(self._now_s):
                continue
            if self._is_barred(queued.job) or self._is_beyond_resource_quota(queued):
                continue
            if self._is_beyond_quota(queued):
                self._withhold(queued)
            elif self._start(queued, may_stop=False):
                self._early.add(job_id)

    def _withhold(self, queued: QueuedJob) -> None:
        """Let nobody take the place of a job that starts there once those are gone that leave its tenants enough."""
        job, tenants = queued.job, self._index.tenants
        if self._lent is None or tenants is None or not job.request.gpus or tenants.lacking(job):
            return
        shares = self._attempt(queued).shares
        if shares is not None:
            self.withheld.for_claim(job, shares)
            self._early.add(job.id)

    @property
    def notes(self) -> Mapping[GangClass, str]:
        """What the reasons of single classes say besides."""
        return {} if self._lent is None else self._lent.notes

    def return_lent_gpus(self, book: PromiseBook, hold: PromiseHold) -> None:
        """Stop gangs that hold lent GPUs for the first waiting job that is owed them, and then fits.

        Nobody stops on nodes that are kept."""
        if self.is_over or self._lent is None:
            return
        self._lent.hold = hold
        for queued in self._lent.owed(self._early):
            job = queued.job
            if (
                job.id in self._patient
                or self._is_barred(job)
                or self._is_beyond_resource_quota(queued)
                or self._merely_prefers(queued)
            ):
                continue
            if not self._judging.ask(queued.gang_class, self._lent.is_due, queued, False):
                continue
            self.stops = self._judging.ask(
                queued.gang_class, partial(self._lent.stops_for, book.fair_shares), queued, ()
            )
            if self.stops:
                return

    def start_overdue(self, book: PromiseBook, hold: PromiseHold) -> None:
        """Start the jobs that waited too long; keep nodes for the first that does not fit and can pay, of all that
        share nodes with it.

        For one that cannot pay with idle nodes, small jobs stop that resume."""
        line, hopeless, promised = overdue(self._index, self._now_s), set[GangClass](), 0
        for queued in self._beside(line, hopeless, hold):
            if self._is_passed_over(queued, hopeless):
                continue
            self._start_or_keep(queued, book, hold)
            if queued.job.id not in self._early:
                hopeless.add(queued.gang_class)
                promised += queued.job.id in book.promise_by_job
            if promised >= _PROMISED:
                break
        while behind := in_turn(self._beside(line, hopeless, hold), book, hopeless, self._now_s):
            for queued in self._beside(behind, hopeless, hold):
                book.looked_s_by_job[queued.job.id] = self._now_s
                if not self._is_passed_over(queued, hopeless):
                    self._start_or_keep(queued, book, hold)
            if not hold.kept:
                return

    def _beside(self, line: Iterable[QueuedJob], hopeless: set[GangClass], hold: PromiseHold) -> Iterator[QueuedJob]:
        """Those that share no nodes with a job that nodes are kept for. All others are hopeless. O(overdue jobs)."""
        for queued in line:
            if self.is_over or hold.is_full:
                return
            gang_class = queued.gang_class
            if hold.kept and (
                gang_class in hopeless or not self._judging.ask(gang_class, hold.is_beside, gang_class, False)
            ):
                hopeless.add(gang_class)
            else:
                yield queued

    def _is_passed_over(self, queued: QueuedJob, hopeless: set[GangClass]) -> bool:
        """True if an overdue job is not to be tried: it has started, since others stopped for it, or it may not now."""
        job = queued.job
        if job.id in self._early or self._comes_later(job) or queued.gang_class in hopeless:
            return True
        return self._is_barred(job) or self._is_beyond_quota(queued)

    def _start_or_keep(self, queued: QueuedJob, book: PromiseBook, hold: PromiseHold) -> None:
        """Start an overdue job; keep nodes for it if it does not fit. If none are, set who must stop."""
        if self._start(queued, is_overdue=True):
            self._early.add(queued.job.id)
            return
        if self.is_over:
            return
        kept = self._keep(queued, book)
        if kept is not None:
            hold.keep(kept)
        elif self._index.policy.limits_overtaking and queued.job.id not in self._patient:
            self.stops = self._judging.ask(queued.gang_class, self._stopped_for_promise, queued, ())

    def start_in_between(self, hold: PromiseHold, book: PromiseBook) -> None:
        """Start on the kept nodes, in order, the jobs that are expected to end before the promised ones can start.

        They start where the policy puts them, and nobody is stopped for them. O(waiting jobs) if something is idle."""
        if self.is_over:
            return
        queue, started = self._index.queue, set(self._index.started())
        promised = {kept.job.id for kept in hold.kept}
        mixed = {queue.class_of(job) for job in (*started, *promised)}  # some of their jobs are not to be tried
        keeps_idle: dict[Hashable, bool] = {}
        hopeful: set[GangClass] = set()
        for gang_class in queue.class_by_key.values():
            request = gang_class.job.request
            is_idle = keeps_idle.get(key := key_of_amount(request))
            if is_idle is None:
                is_idle = keeps_idle[key] = hold.keeps_idle(request)
            if is_idle and len(hold.kept) > 1:  # then it matters which of the kept nodes it could use
                self._judging.ask(gang_class, self._index.rank_class, gang_class, None)
            if is_idle and (gang_class in mixed or hold.may_end_in_time(gang_class, book, self._now_s)):
                hopeful.add(gang_class)
        if not hopeful:
            return
        for queued in [queued for queued in queue.queued_jobs if queued.gang_class in hopeful]:
            job, gang_class = queued.job, queued.gang_class
            if (
                gang_class not in hopeful  # any more
                or job.id in started
                or job.id in promised
                or not queued.may_start(self._now_s)
                or not hold.ends_in_time(queued, book, self._now_s)
            ):
                continue
            if self._is_barred(job) or self._is_beyond_quota(queued) or not self._start(queued, may_stop=False):
                hopeful.discard(gang_class)

    def start_in_order(self) -> None:
        """Start every other job that fits, in the order of the policy."""
        if self.is_over:
            return
        for gang_classes in self._way.batches():
            if len(gang_classes) == 1 and self._index.policy.blocks is None:
                self._start_class(gang_classes[0])
            elif gang_classes:
                self._start_classes(gang_classes)
            if self.is_over:
                return

    @property
    def is_over(self) -> bool:
        """True if nothing more may start in this cycle: what is being freed has its owner."""
        return bool(self.stops or self.returns)

    def wake_s(self) -> float | None:
        """When time alone lets a job be stopped, if nobody is stopped now."""
        if self.is_over:
            return None
        lent_s = None if self._lent is None else self._lent.wake_s
        moments_s = [self._way.wake_s(), lent_s, *(delay.until_s for delay in self._delays.values())]
        return min((moment_s for moment_s in moments_s if moment_s is not None), default=None)

    def _start_classes(self, gang_classes: Sequence[GangClass]) -> None:
        """Capacity and quotas only shrink within a cycle, so a class is done with its first job that does not fit."""
        lines, blocks = self._lines, self._index.policy.blocks
        blocked: set[Hashable] = set()
        for gang_class in gang_classes:
            if blocks is not None or self._may_start(gang_class):
                self._line_up(self._startable(gang_class))
            else:
                self._park(gang_class)
        while lines and not self.is_over:
            key, queued, startable = heappop(lines)
            if self._index.usage is not None and (sort_key := self._index.sort_key(queued)) != key:
                heappush(lines, (sort_key, queued, startable))  # starts since then put it further back
                continue
            queue = blocks(queued.job) if blocks is not None else None
            if queue in blocked or self._is_beyond_quota(queued):
                continue
            if self._start(queued):
                self._line_up(startable)
            elif blocks is not None:
                blocked.add(queue)

    def _start_class(self, gang_class: GangClass) -> None:
        """As `_start_classes`. A class alone needs no line, and its first job tells whether there is capacity."""
        if self._is_barred(gang_class.job):
            self._park(gang_class)
            return
        for queued in self._startable(gang_class):
            if self._is_beyond_quota(queued) or not self._start(queued):
                break
        else:
            return
        if not self.is_over and not self._may_start(gang_class):
            self._park(gang_class)

    def _park(self, gang_class: GangClass) -> None:
        """Do not try the class again for a while, if it was tried."""
        self._judging.ask(gang_class, self._way.park, gang_class, None)

    def _line_up(self, startable: Iterator[QueuedJob]) -> None:
        queued = next(startable, None)
        if queued is not None:
            heappush(self._lines, (self._index.sort_key(queued), queued, startable))

    def _startable(self, gang_class: GangClass) -> Iterator[QueuedJob]:
        startable = gang_class.startable(self._now_s)
        return (queued for queued in startable if queued.job.id not in self._early) if self._early else startable

    def _comes_later(self, job: Job) -> bool:
        """True for a CPU job after so many that this one starts in a later cycle."""
        return self._judging.many_cpu_jobs_start and not job.request.gpus

    def _is_barred(self, job: Job) -> bool:
        """True if it requires a level that is not configured."""
        return job.within is not None and self._index.config.level_index(job.within) is None

    def _may_start(self, gang_class: GangClass) -> bool:
        if self._is_barred(gang_class.job):
            return False
        return self._judging.ask(gang_class, self._way.may_start, gang_class, False)

    def _is_beyond_quota(self, queued: QueuedJob) -> bool:
        return self._judging.ask(queued.gang_class, self._is_short, queued.job, True)

    def _is_beyond_resource_quota(self, queued: QueuedJob) -> bool:
        """Limits of tenants are left to whoever stops gangs: these leave them, too."""
        return self._judging.ask(queued.gang_class, self._lacks_resource_quota, queued.job, True)

    def _lacks_resource_quota(self, job: Job) -> bool:
        return self._quotas.shortage(job) is not None

    def _is_short(self, job: Job) -> bool:
        tenants = self._index.tenants
        return self._quotas.shortage(job) is not None or (tenants is not None and tenants.shortage(job) is not None)

    def _attempt_overdue(self, queued: QueuedJob) -> Attempt:
        """As `_attempt`, but a CPU job tries first what its array owns: that nobody takes back."""
        attempt = partial(self._way.attempt, is_overdue=True)
        if self._own is not None and not queued.job.request.gpus:
            shares = self._judging.ask(queued.gang_class, self._own.place, queued.job, None)
            if shares is not None:
                return Attempt(shares)
        return self._judging.ask(queued.gang_class, attempt, queued, NO_START)

    def _attempt(self, queued: QueuedJob) -> Attempt:
        return self._judging.ask(queued.gang_class, partial(self._way.attempt, is_overdue=False), queued, NO_START)

    def _merely_prefers(self, queued: QueuedJob) -> bool:
        """True if the job could start at once, but prefers to be close together: nobody is stopped for that."""
        if self._index.queue.hold_of(queued.job.id) is None:
            return False
        candidates = self._index.rank_class_anywhere(queued.gang_class).candidates
        candidates.refresh()
        return candidates.may_hold(queued.job.replicas)

    def _keep(self, queued: QueuedJob, book: PromiseBook) -> Kept | None:
        def keep(queued: QueuedJob) -> Kept | None:
            job, arrays = queued.job, self._index.arrays
            is_of_array = arrays is not None and not job.request.gpus
            own = arrays.own_rank_class(job) if is_of_array and arrays is not None else None
            if is_of_array and own is None:
                return None
            rank_class = own or self._index.rank_class(queued.gang_class)
            return keep_nodes(self._index, book, job, rank_class, self._now_s)

        kept = self._judging.ask(queued.gang_class, keep, queued, None)
        if kept is not None:
            self._judging.reserves(queued.gang_class)
        return kept

    def _stopped_for_promise(self, queued: QueuedJob) -> tuple[Stop, ...]:
        victims = stopped_for_promise(self._index, queued.job, self._now_s)
        if not victims:
            return ()
        running, rank_class = self._index.running, self._index.rank_class(queued.gang_class)
        if self._index.arrays is not None and not (queued.job.request.gpus or queued.job.may_borrow):
            (_, rank_class), *_ = self._index.arrays.ways(queued.gang_class, may_borrow=False)  # on cores of its array
        return stopped_in_turn(
            victims, queued.job, rank_class, None if running is None else running.takings(queued.job)
        )

    def _start(self, queued: QueuedJob, *, is_overdue: bool = False, may_stop: bool = True) -> bool:
        """Start the job if it fits; if not, set who must stop for it. What an overdue GPU job takes is its own."""
        if self._comes_later(queued.job):
            return False
        job, found = queued.job, self._attempt_overdue(queued) if is_overdue else self._attempt(queued)
        if found.shares is None:
            if may_stop and not self._merely_prefers(queued):
                if job.id not in self._patient:
                    self.stops, self.returns = found.stops, found.returns
                # It needs what is free there besides what it will be given back. An overdue job is tried twice.
                if found.delay is not None and job.id not in self._delays:
                    self._delays[job.id] = found.delay
                    self.withheld.withhold(job, found.delay.shares)
            return False
        self._judging.starts(queued.gang_class)
        self._quotas.count_start(job)
        start = Start(
            job=job.id,
            attempt=job.attempt,
            generation=job.generation,
            nodes=self._index.assign(job, found.shares),
            cpus_per_replica=job.cpus_per_replica,
            borrows=found.borrows and not (is_overdue and job.request.gpus),
        )
        self.starts.append(start)
        return True
