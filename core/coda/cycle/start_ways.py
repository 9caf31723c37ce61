"""The three ways to start a gang: plainly, by stopping running jobs, and in the arrays. A policy has one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import inf
from typing import NamedTuple

from coda.cache.array_capacity import ArrayCapacity
from coda.cache.gang_class import CapacityView, GangClass, QueuedJob, StartOption
from coda.cache.quotas import QuotaLedger
from coda.cache.running_jobs import RunningJobs
from coda.cache.world_index import WorldIndex
from coda.cycle.victims import Delay, Reclaim, StopRules, preempted_for, returned_in_arrays, stopped_in_arrays
from coda.model.decision import Grant, Stop
from coda.model.job import Job
from coda.model.resources import Resources
from coda.nodes.node_groups import NodeGroups
from coda.nodes.node_search import RankClass
from coda.policy.arrays import GPU_ARRAYS, Array
from coda.policy.order import SortKey, rank_by_slices

Shares = list[tuple[int, int]]
"""Nodes by number, and how many ranks each gets, in rank order."""


class Attempt(NamedTuple):
    """What came of trying a job: nodes, or who must stop for it, or when somebody may; or nothing."""

    shares: Shares | None = None
    borrows: bool = False  # what it takes belongs to another array
    stops: tuple[Stop, ...] = ()
    delay: Delay | None = None  # nobody may stop for it yet
    returns: tuple[Grant, ...] = ()  # who must shrink for it


NO_START = Attempt()


class PlainStart:
    """A gang starts where it fits."""

    def __init__(self, index: WorldIndex) -> None:
        self._index = index

    def batches(self) -> Iterator[list[GangClass]]:
        """All classes together."""
        inadmissible = self._index.inadmissible
        inadmissible.wake(are_protected=False)
        yield [gang_class for array in Array for gang_class in inadmissible.to_try(array)]

    def may_start(self, gang_class: GangClass) -> bool:
        """O(nodes that changed)."""
        return _may_hold(self._index.rank_class(gang_class), gang_class)

    def attempt(self, queued: QueuedJob, *, is_overdue: bool) -> Attempt:
        """Find nodes for the job."""
        shares = _place(self._index.rank_class(queued.gang_class), queued)
        return NO_START if shares is None else Attempt(shares)

    def park(self, gang_class: GangClass) -> None:
        """Do not try the class again before a node gains free capacity for it."""
        self._index.inadmissible.park(gang_class, [self._index.rank_class(gang_class)])

    def wake_s(self) -> float | None:
        """Nobody is stopped."""
        return None


class PreemptingStart:
    """A gang starts where it fits; if it does not, the policy's rule says which running jobs stop for it."""

    def __init__(self, index: WorldIndex, running: RunningJobs, now_s: float) -> None:
        self._index = index
        self._plain = PlainStart(index)
        self._running = running
        self._now_s = now_s

    def batches(self) -> Iterator[list[GangClass]]:
        """All classes together."""
        return self._plain.batches()

    def may_start(self, gang_class: GangClass) -> bool:
        """Of equal gangs, the first may stop every job that the others may."""
        return self._plain.may_start(gang_class) or self._may_stop_for(gang_class)

    def _may_stop_for(self, gang_class: GangClass) -> bool:
        first = next(gang_class.startable(self._now_s), None)
        return first is not None and self._running.may_stop_for(first.job, self._now_s)

    def attempt(self, queued: QueuedJob, *, is_overdue: bool) -> Attempt:
        """Find nodes for the job, or who must stop for it.

        Only where `may_start` says so too: the cache knows more of what does not fit, and who is asked and spared sets
        when the next cycle is due."""
        found = self._plain.attempt(queued, is_overdue=is_overdue)
        if found.shares is not None or not (is_overdue or self._may_stop_for(queued.gang_class)):
            return found
        rank_class = self._index.rank_class(queued.gang_class)
        return Attempt(stops=preempted_for(self._running, queued.job, rank_class, self._now_s, is_overdue=is_overdue))

    def park(self, gang_class: GangClass) -> None:
        """Nothing: time alone can let the class stop a job, so it is tried in every cycle."""

    def wake_s(self) -> float | None:
        """When time alone lets a waiting job stop another, or None."""
        waiting = (queued.job for queued in _left_waiting(self._index, tuple(Array), self._now_s))
        return self._running.wake_s(waiting, self._now_s)


class ArrayStart:
    """A gang starts in its array, then by borrowing, then by stopping jobs that borrowed, then those of lower rank."""

    def __init__(
        self, index: WorldIndex, arrays: ArrayCapacity, quotas: QuotaLedger, now_s: float, next_reclaim_s: float
    ) -> None:
        self._index = index
        self._arrays = arrays
        self._quotas = quotas
        self._running = index.running
        self._now_s = now_s
        self._next_reclaim_s = next_reclaim_s
        self._may_borrow = True  # nobody waits in the arrays before this one

    def batches(self) -> Iterator[list[GangClass]]:
        """One array after the other: whether small jobs may borrow can depend on who waits in the one before.

        Where jobs are stopped by rank, all GPU jobs together: who stops others is tried before whoever ranks lower."""
        index, arrays = self._index, self._arrays
        index.inadmissible.wake(are_protected=arrays.are_protected)
        if self._running is not None:
            to_try = {each: None for array in GPU_ARRAYS for each in index.inadmissible.to_try(array)}
            if not self._running.is_empty:
                to_try |= {each: None for each in index.queue.class_by_key.values() if self._may_stop_for(each)}
            yield list(to_try)
            yield index.inadmissible.to_try(Array.CPU)
            return
        for array in Array:
            yield index.inadmissible.to_try(array, may_borrow=self._may_borrow)
            if array is Array.LARGE and arrays.borrowing_depends_on_queue:
                self._may_borrow = next(_left_waiting(index, (array,), self._now_s), None) is None

    def may_start(self, gang_class: GangClass) -> bool:
        """O(nodes that changed) for each way."""
        ways = self._arrays.ways(gang_class, may_borrow=self._may_borrow)
        return any(_may_hold(rank_class, gang_class) for _, rank_class in ways) or self._may_stop_for(gang_class)

    def _may_stop_for(self, gang_class: GangClass) -> bool:
        """Of equal gangs, the first may stop every job that the others may."""
        if self._running is None or self._running.is_empty or gang_class.array is Array.CPU:
            return False
        first = next(gang_class.startable(self._now_s), None)
        if first is None or not self._running.may_stop_for(first.job, self._now_s):
            return False
        return first.job.replicas > 1 or self._leaves_enough_gpus(self._running, first.job.request.gpus)

    def _leaves_enough_gpus(self, running: RunningJobs, gpus: int) -> bool:
        """True if some node has so many GPUs, free or held by jobs whose slice is over. O(nodes of these jobs)."""
        capacity = self._index.capacity
        for name, held in running.gpus_in_reach(self._now_s).items():
            number = capacity.number_by_name.get(name)
            if number is not None and capacity.free(number).gpus + held >= gpus:
                return True
        return False

    def _leaves_room(self, running: RunningJobs, job: Job, rank_class: RankClass) -> bool:
        """False if the gang would not fit even if all jobs were gone whose slice is over: nobody needs to be tried.

        O(nodes of these jobs). The domain of a gang is left to the attempt."""
        request = job.request
        rank_class.candidates.refresh()
        capacity, eligible = self._index.capacity, rank_class.groups.amount_by_node
        ranks = rank_class.candidates.ranks
        for name, held_gpus in running.gpus_in_reach(self._now_s).items():
            number = capacity.number_by_name.get(name)
            if number is None or number not in eligible:
                continue
            free = capacity.free(number)
            if free.gpus + held_gpus >= request.gpus:
                ranks += request.times_in(free + running.held_in_reach(name)) - request.times_in(free)
                if ranks >= job.replicas:
                    return True
        return ranks >= job.replicas

    def attempt(self, queued: QueuedJob, *, is_overdue: bool) -> Attempt:
        """Find nodes for the job, or who must stop for it. If borrowers must be spared for now, nobody is preempted."""
        delay: Delay | None = None
        for option, rank_class in self._arrays.ways(queued.gang_class, may_borrow=self._may_borrow):
            if not (option.stops or option.takes_back):
                shares = _place(rank_class, queued)
                if shares is not None:
                    return Attempt(shares, option.borrows)
                continue
            if not _may_hold(rank_class, queued.gang_class):
                continue
            found = self._with_others_help(queued, option, rank_class, is_overdue=is_overdue)
            if found is NO_START or found.stops or found.returns:
                return found
            if found.delay is not None and (delay is None or found.delay.until_s < delay.until_s):
                delay = found.delay
        if delay is not None:
            return Attempt(delay=delay)
        if self._running is None or not (is_overdue or self._may_stop_for(queued.gang_class)):
            return NO_START
        rank_class = self._index.rank_class(queued.gang_class)
        if not self._leaves_room(self._running, queued.job, rank_class):
            return Attempt()
        return Attempt(stops=preempted_for(self._running, queued.job, rank_class, self._now_s, is_overdue=is_overdue))

    def _with_others_help(
        self, queued: QueuedJob, option: StartOption, rank_class: RankClass, *, is_overdue: bool
    ) -> Attempt:
        """Find who stops, or shrinks, so that the job starts this way; an empty attempt if it is no way for it, and
        `NO_START` if it would be in vain."""
        if option.takes_back:
            return Attempt(returns=returned_in_arrays(self._arrays, queued.job, rank_class))
        moves = option.view is CapacityView.AFTER_MIGRATION
        stays = partial(self._would_go_before, queued.job, is_overdue=is_overdue)
        rules = StopRules(moves, stays, self._now_s, self._next_reclaim_s)
        found = stopped_in_arrays(self._arrays, queued.job, rank_class, rules)
        if moves and not is_overdue and self._small_job_goes_before(queued.job, found):
            return NO_START if found.stops else Attempt()
        return Attempt(stops=found.stops, delay=None if found.stops else found.delay)

    def _would_go_before(self, job: Job, guest: Job, *, is_overdue: bool) -> bool:
        """True if a guest, once stopped, is tried before the job that it was stopped for."""
        return self._running is not None and not is_overdue and guest.priority > job.priority

    def _small_job_goes_before(self, job: Job, found: Reclaim) -> bool:
        """True if a small job waits that would take what others leave for this one. O(nodes that they leave) for each
        distinct constraints, and O(classes x distinct amounts there)."""
        if self._running is None or not (found.stops or found.delay):
            return False
        left = _LeftByGuests(self._index, self._arrays, self._quotas, found)
        rank, started = self._rank(job), self._index.started()
        for gang_class in self._index.queue.class_by_key.values():
            if gang_class.array is Array.SMALL:
                startable = gang_class.startable(self._now_s)
                first = next((queued.job for queued in startable if queued.job.id not in started), None)
                if first is not None and self._rank(first) < rank and left.may_go_to(gang_class, first):
                    return True
        return False

    def _rank(self, job: Job) -> SortKey:
        tenants = self._index.tenants
        return rank_by_slices(job, (), borrows=tenants is not None and tenants.borrows(job))

    def park(self, gang_class: GangClass) -> None:
        """Do not try the class again before a node gains free capacity for it, in any way that it may start."""
        rank_classes = [rank_class for _, rank_class in self._arrays.ways(gang_class, may_borrow=self._may_borrow)]
        self._index.inadmissible.park(gang_class, rank_classes, may_borrow=self._may_borrow)

    def wake_s(self) -> float | None:
        """When time alone lets a waiting job stop another, or None."""
        if self._running is None:
            return None
        waiting = (queued.job for queued in _left_waiting(self._index, GPU_ARRAYS, self._now_s))
        return self._running.wake_s(waiting, self._now_s)


class _LeftByGuests:
    """What those leave who stop for a large job: whether a small one could use it, instead of that one."""

    def __init__(self, index: WorldIndex, arrays: ArrayCapacity, quotas: QuotaLedger, found: Reclaim) -> None:
        self._index = index
        self._arrays = arrays
        self._quotas = quotas
        capacity, delay = index.capacity, found.delay
        stopped = [holding for stop in found.stops if (holding := index.holdings.of(stop.job)) is not None]
        names = {name for holding in stopped for name in holding.nodes}
        self._leavers = [holding.job for holding in stopped]
        if not stopped and delay is not None:  # any of those there
            names = {capacity.nodes[number].name for number, _ in delay.shares}
            self._leavers = [held for name in sorted(names) for held, _ in index.holdings.at(name)]
        self._numbers = [number for name in names if (number := capacity.number_by_name.get(name)) is not None]
        self._amounts_by_groups: dict[NodeGroups, set[Resources]] = {}

    def may_go_to(self, gang_class: GangClass, first: Job) -> bool:
        """True if a gang of this class, with this job first, might get some of it. A class that was not tried might."""
        level = first.within
        if gang_class.fault is not None or (level is not None and self._index.config.level_index(level) is None):
            return False
        ways = next(iter(gang_class.ways.values()), None)
        if ways is None:
            return True
        anywhere = ways[-1][1]  # on nodes of all arrays
        if self._is_short(first):  # of what they leave, wherever it goes
            search = self._index.search
            fits = search.ranks_when_empty(anywhere, anywhere.within) >= first.replicas
            return fits and not self._is_barred(first)
        groups = anywhere.groups
        amounts = self._amounts_by_groups.get(groups)
        if amounts is None:
            accepted = [number for number in self._numbers if number in groups.amount_by_node]
            amounts = self._amounts_by_groups[groups] = {self._arrays.free_after_stops(number) for number in accepted}
        return any(map(first.request.fits_in, amounts))

    def _is_short(self, job: Job) -> bool:
        """True if it lacks a quota of its namespace, or a limit of its tenant."""
        tenants = self._index.tenants
        return self._quotas.shortage(job) is not None or (tenants is not None and tenants.shortage(job) is not None)

    def _is_barred(self, job: Job) -> bool:
        """True if of a quota that it lacks these leave too little, too: none of it, as far as is looked at."""
        tenants = self._index.tenants
        short = self._quotas.shortage(job)
        if short is not None and (short.is_whole or all(one.namespace != job.namespace for one in self._leavers)):
            return True
        limit = None if tenants is None else tenants.shortage(job)
        if tenants is None or limit is None:
            return False
        mine, tree = limit.virtual_cluster, tenants.tree
        return limit.is_whole or all(mine not in tree.path(one.virtual_cluster) for one in self._leavers)


StartWay = PlainStart | PreemptingStart | ArrayStart
"""How gangs start under one policy, during one cycle. Each way has the same five methods:

`batches` yields the classes to try, all of a batch before the next one is asked for. `may_start` is False if no gang of
a class can start now, nor any job be stopped for it. `attempt` finds nodes for a job, or who must stop for it. `park`
takes a class out until a node gains free capacity for it. `wake_s` is when time alone lets a waiting job stop another.
A union, no protocol: compiled calls of it are faster."""


def start_way(index: WorldIndex, quotas: QuotaLedger, now_s: float, next_reclaim_s: float = -inf) -> StartWay:
    """Return the way of the policy. `next_reclaim_s`: in the arrays, no borrower is stopped before it."""
    if index.arrays is not None:
        return ArrayStart(index, index.arrays, quotas, now_s, next_reclaim_s)
    return PlainStart(index) if index.running is None else PreemptingStart(index, index.running, now_s)


def _may_hold(rank_class: RankClass, gang_class: GangClass) -> bool:
    rank_class.candidates.refresh()
    return rank_class.candidates.may_hold(gang_class.job.replicas)


def _place(rank_class: RankClass, queued: QueuedJob) -> Shares | None:
    rank_class.candidates.refresh()
    return rank_class.candidates.place(queued.job.replicas, rank_class.within)


def _left_waiting(index: WorldIndex, arrays: Iterable[Array], now_s: float) -> Iterator[QueuedJob]:
    """The jobs of these arrays that may start now and do not."""
    started = index.started()
    for gang_class in index.queue.class_by_key.values():
        if gang_class.array in arrays:
            yield from (queued for queued in gang_class.startable(now_s) if queued.job.id not in started)
