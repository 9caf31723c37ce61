"""Which running jobs stop so that another one starts or grows. Who may stop: `policy`, `promises.promise_victims`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from math import ceil, fsum
from typing import Final, NamedTuple

from coda.cache.array_capacity import ArrayCapacity
from coda.cache.running_jobs import RunningJobs
from coda.model.decision import Grant, Stop, StopCause, WaitCode, WaitReason
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING, Resources
from coda.nodes.node_search import RankClass
from coda.policy.arrays import Victim, stopped_at_s
from coda.policy.preemption_rules import RESTART_S, lost_work
from coda.policy.reclaim import WINDOW_S
from coda.tenants.fair_share import Takings
from coda.wording import clock_text, counted, numbers_of

_ANYWHERE: Final = ""
_TRIED: Final = 8
"""The nodes that are tried for a gang of one rank when guests must move. Our choice: it bounds what a cycle costs."""


class _Choice(NamedTuple):
    """Nodes for a gang, and who must stop on them."""

    shares: list[tuple[int, int]]  # nodes by number, and how many ranks each gets
    victims: list[Victim]

    def cost(self, now_s: float) -> tuple[float, int]:
        """Work that jobs lose which move, with their restarts, in GPU-seconds; and millicores that are freed."""
        moved = {held.job.id: held.job for held, cause in self.victims if cause is StopCause.MIGRATE}
        lost = fsum(lost_work(job, now_s) for job in moved.values()) + RESTART_S * len(moved)
        return lost, sum(held.amount.cpu_m for held, _ in self.victims)


class Delay(NamedTuple):
    """A gang gets room on these nodes by a reclaim that is not allowed before `until_s`. Nobody else may take it."""

    until_s: float
    shares: list[tuple[int, int]]  # as of a start
    borrowers: int  # that must stop
    spared: int  # of these, those that have not run for their minimum time; 0: there were too many evictions

    def reason(self) -> WaitReason:
        """Why the gang waits, with numbers that stay the same until it starts."""
        count = counted(self.borrowers, "CPU job")
        if self.spared:
            which = "which has" if self.borrowers == 1 else f"{self.spared} of which have"
            why = f"{which} not run for the minimum time of borrowers yet"
        else:
            why = f"and the number of evictions in {WINDOW_S:g} s is used up"
        until = clock_text(self.until_s)
        return WaitReason(
            code=WaitCode.RECLAIM_DELAYED,
            message=f"the cores that it needs are lent to {count}, {why}: they are given back from {until} on",
            numbers=numbers_of(borrowers=self.borrowers, spared=self.spared, not_before_s=ceil(self.until_s)),
        )


class Reclaim(NamedTuple):
    """Who stops in the arrays so that a gang fits; or when somebody may; or neither."""

    stops: tuple[Stop, ...] = ()
    delay: Delay | None = None


_NOBODY: Final = Reclaim()


def preempted_for(
    running: RunningJobs, job: Job, rank_class: RankClass, now_s: float, *, is_overdue: bool
) -> tuple[Stop, ...]:
    """Return who is preempted so that the job fits, by id; nobody if it would not fit even then.

    Jobs in reach are chosen in order until the job fits. Then, in the opposite order, each is spared if the job
    fits without stopping it. O(jobs in reach x their nodes); O(nodes) more for a job that needs one domain. If it would
    fit with those that are spared for it by their index, they are spared for the jobs after it, too."""
    stops = stopped_in_turn(running.in_order(job, now_s, is_overdue=is_overdue), job, rank_class, running.takings(job))
    lowers = not stops and not is_overdue and running.may_lower_bar(job)
    if lowers and stopped_in_turn(running.in_reach(job, now_s, by_index=False), job, rank_class, running.takings(job)):
        running.lower_bar(job)
    return stops


def stopped_in_turn(
    runners: Iterable[tuple[Job, tuple[str, ...]]],
    job: Job,
    rank_class: RankClass,
    takings: Takings | None = None,
    cause: StopCause = StopCause.PREEMPT,
) -> tuple[Stop, ...]:
    """Return who of these running jobs stops so that the job fits, as `preempted_for`.

    `takings`: leaves out whoever must not be taken from its tenant, after those taken before."""
    what_if = WhatIf(rank_class, job.replicas)
    chosen: list[tuple[Job, tuple[str, ...]]] = []
    for runner, nodes in runners:
        if takings is not None and not takings.may_take(runner):
            continue
        if what_if.remove(runner, nodes):
            chosen.append((runner, nodes))
            if takings is not None:
                takings.take(runner)
            if what_if.fits() and (takings is None or takings.respects_limits()):
                break
    else:
        return ()
    for number, (runner, nodes) in reversed(list(enumerate(chosen))):
        what_if.restore(runner, nodes)
        if takings is not None:
            takings.give_back(runner)
        if what_if.fits() and (takings is None or takings.respects_limits()):
            del chosen[number]
        else:
            what_if.remove(runner, nodes)
            if takings is not None:
                takings.take(runner)
    stops = (Stop(job=runner.id, attempt=runner.attempt, cause=cause, by=job.id) for runner, _ in chosen)
    return tuple(sorted(stops, key=lambda stop: stop.job))


class StopRules(NamedTuple):
    """Who may be stopped in the arrays for a gang, and when.

    stays: true for a guest that would be tried before the gang: it would come back at once, and so for ever
    next_reclaim_s: before that moment no borrower is stopped, because too many were (`policy.reclaim`)"""

    moves: bool  # guests migrate, if all of them fit elsewhere at once
    stays: Callable[[Job], bool]
    now_s: float
    next_reclaim_s: float


def stopped_in_arrays(arrays: ArrayCapacity, job: Job, rank_class: RankClass, rules: StopRules) -> Reclaim:
    """Return who is reclaimed or migrated so that the job fits, by id; nobody if it would not fit even then.

    `rank_class`: of an AFTER_* view. A gang of one rank goes where jobs that move lose least work; ties: fewest cores
    freed in vain, then the first node by name. For moves only the nodes with most GPUs free are tried. If everybody who
    could help must be spared for now, the `delay` is the shortest. O(nodes) for one rank, and to spare somebody."""
    choices = _choices(arrays, job, rank_class, rules)
    found = _best(arrays, job, choices, rules)
    if found.delay is None or job.replicas == 1 or rules.next_reclaim_s > rules.now_s:
        return found
    # A gang goes where it is tightest. Look again without those that must be spared: others may give enough.
    kept = arrays.kept_on_nodes(lambda held: held.kept_until_s > rules.now_s)
    arrays.spare(kept)
    again = _best(arrays, job, _choices(arrays, job, rank_class, rules), rules)
    arrays.refresh_stops(kept)
    return again if again.stops else found


def _best(arrays: ArrayCapacity, job: Job, choices: list[_Choice], rules: StopRules) -> Reclaim:
    later: list[tuple[float, int]] = []
    for number, choice in enumerate(choices):
        until_s = stopped_at_s(choice.victims)
        if any(cause is StopCause.RECLAIM for _, cause in choice.victims):
            until_s = max(until_s, rules.next_reclaim_s)
        if until_s > rules.now_s:
            later.append((until_s, number))
        elif _may_move(arrays, choice, rules):
            return Reclaim(_stops(job, choice.victims))
    for until_s, number in nsmallest(_TRIED, later):
        choice = choices[number]
        if _may_move(arrays, choice, rules):
            spared = sum(held.kept_until_s > rules.now_s for held, _ in choice.victims)
            borrowers = sum(cause is StopCause.RECLAIM for _, cause in choice.victims)
            return Reclaim(delay=Delay(until_s, choice.shares, borrowers, spared))
    return _NOBODY


def _may_move(arrays: ArrayCapacity, choice: _Choice, rules: StopRules) -> bool:
    """True if every guest that must stop there has another place."""
    guests = {held.job.id: held.job for held, cause in choice.victims if cause is StopCause.MIGRATE}
    if any(map(rules.stays, guests.values())):
        return False
    return not guests or _have_other_places(arrays, guests.values(), tuple(number for number, _ in choice.shares))


def _choices(arrays: ArrayCapacity, job: Job, rank_class: RankClass, rules: StopRules) -> list[_Choice]:
    """Where the job could go and who would stop there, best first."""
    moves, now_s = rules.moves, rules.now_s
    rank_class.candidates.refresh()
    if job.replicas == 1:
        groups = rank_class.groups
        amounts = groups.capacity.amounts
        enough = {amount for amount in groups.nodes_by_amount if job.request.fits_in(amounts[amount])}
        numbers = sorted([number for number, amount in groups.amount_by_node.items() if amount in enough])
        if moves:
            numbers = nsmallest(_TRIED, numbers, key=lambda number: -arrays.free_for_growth(number).gpus)
            numbers = [number for number in numbers if _may_leave(arrays, job, [(number, 1)])]
        found = [(number, arrays.victims_on(job, 1, number, moves=moves, now_s=now_s)) for number in numbers]
        return sorted([_Choice([(number, 1)], victims) for number, victims in found], key=lambda one: one.cost(now_s))
    choice = _choice_of_gang(arrays, job, rank_class, rules)
    return [] if choice is None else [_without_needless(arrays, job, rank_class, rules, choice)]


def _choice_of_gang(arrays: ArrayCapacity, job: Job, rank_class: RankClass, rules: StopRules) -> _Choice | None:
    """Where a gang of several ranks is tightest if all borrowers and guests were gone, and who would stop there."""
    moves, now_s = rules.moves, rules.now_s
    shares = rank_class.candidates.place(job.replicas, rank_class.within) or []
    if moves and not _may_leave(arrays, job, shares):
        return None
    every = [one for number, ranks in shares for one in arrays.victims_on(job, ranks, number, moves=moves, now_s=now_s)]
    return _Choice(shares, every)


def _without_needless(
    arrays: ArrayCapacity, job: Job, rank_class: RankClass, rules: StopRules, choice: _Choice
) -> _Choice:
    """The choice, or one that stops fewer of the same borrowers: where it is tightest is not where fewest must stop.

    Each is spared in turn, the largest first, if the gang fits with the others gone and nobody else. O(borrowers), and
    O(nodes) for one that may be spared."""
    moved = {held.job.id for held, cause in choice.victims if cause is not StopCause.RECLAIM}
    chosen = {held.job.id: held.job for held, cause in choice.victims if cause is StopCause.RECLAIM}
    nodes = {one.id: one.placement.nodes for one in chosen.values() if one.placement is not None}
    if len(chosen) < 2:
        return choice
    what_if = WhatIf(arrays.gpu_rank_class(job), job.replicas)
    for borrower in chosen.values():
        what_if.remove(borrower, nodes[borrower.id])
    for spared in sorted(chosen.values(), key=lambda one: (-one.request.cpu_m, one.id)):
        if spared.id not in chosen:
            continue
        rest = frozenset(chosen.keys() - {spared.id})
        what_if.restore(spared, nodes[spared.id])
        again = _choice_without(arrays, job, rank_class, rules, rest) if what_if.fits() else None
        stopped = {held.job.id for held, _ in again.victims} if again is not None and again.shares else None
        if again is None or stopped is None or not stopped <= rest | moved:
            what_if.remove(spared, nodes[spared.id])
            continue
        for needless in rest - stopped:
            what_if.restore(chosen[needless], nodes[needless])
        choice, chosen = again, {one: chosen[one] for one in rest & stopped}
    return choice


def _choice_without(
    arrays: ArrayCapacity, job: Job, rank_class: RankClass, rules: StopRules, stopped: frozenset[JobId]
) -> _Choice | None:
    """As `_choice_of_gang` if no borrower but `stopped` could be stopped."""
    kept = arrays.kept_on_nodes(lambda held: held.job.id not in stopped)
    arrays.spare(kept)
    rank_class.candidates.refresh()
    found = _choice_of_gang(arrays, job, rank_class, rules)
    arrays.refresh_stops(kept)
    rank_class.candidates.refresh()
    return found


def _may_leave(arrays: ArrayCapacity, job: Job, shares: Sequence[tuple[int, int]]) -> bool:
    """False if guests would have to give more GPUs there than are free elsewhere. Cheaper than to look for places."""
    needed = [job.request.gpus * ranks - arrays.free_for_growth(number).gpus for number, ranks in shares]
    return arrays.may_leave(sum(max(0, gpus) for gpus in needed), [number for number, _ in shares])


def _have_other_places(arrays: ArrayCapacity, guests: Iterable[Job], taken: tuple[int, ...]) -> bool:
    """True if all ranks of these guests fit together on nodes that are not `taken`, largest guest first.

    What borrowing CPU jobs hold there counts as free, since they give it back. A gang that needs one domain must fit
    on one node. O(guests x nodes that hold a rank)."""
    used: dict[int, Resources] = {}
    return all(
        _settle(guest, arrays.guest_rank_class(guest), taken, used)
        for guest in sorted(guests, key=lambda guest: (-guest.request.gpus, -guest.request.cpu_m, guest.id))
    )


def _settle(guest: Job, rank_class: RankClass, taken: tuple[int, ...], used: dict[int, Resources]) -> bool:
    """Count the guest's ranks as `used` where they fit. False if some do not."""
    groups, request, missing = rank_class.groups, guest.request, guest.replicas
    rank_class.candidates.refresh()
    if not rank_class.candidates.may_hold(missing):
        return False
    amounts = groups.capacity.amounts
    enough = {amount for amount in groups.nodes_by_amount if request.times_in(amounts[amount])}
    for number, amount in groups.amount_by_node.items():
        if amount not in enough or number in taken:
            continue
        free = amounts[amount] - used[number] if number in used else amounts[amount]
        ranks = min(missing, request.times_in(free))
        if not ranks or (rank_class.within is not None and ranks < guest.replicas):
            continue
        used[number] = used.get(number, NOTHING) + request * ranks
        missing -= ranks
        if not missing:
            return True
    return False


def returned_in_arrays(arrays: ArrayCapacity, job: Job, rank_class: RankClass) -> tuple[Grant, ...]:
    """Return which GPU jobs shrink so that the CPU job fits on cores that its array owns, by id; none if it would not.

    `rank_class`: of AFTER_RETURNS. A gang of one rank goes where fewest cores are taken; ties: as in `Candidates`.
    O(nodes) for it."""
    shares: Sequence[tuple[int, int]]
    if job.replicas == 1:
        groups = rank_class.groups
        lacking = (
            (arrays.returns_cpu_m(job.request, number), number in groups.disliked, number)
            for number in groups.amount_by_node
            if job.request.fits_in(groups.capacity.free(number))
        )
        best = min(lacking, default=None)
        shares = () if best is None else ((best[2], 1),)
    else:
        shares = rank_class.candidates.place(job.replicas, rank_class.within) or ()
    cores_by_job: dict[JobId, tuple[Job, int]] = {}
    for number, ranks in shares:
        for job_id, (giver, cores) in arrays.returns_on(job.request * ranks, number).items():
            if job_id not in cores_by_job or cores_by_job[job_id][1] < cores:
                cores_by_job[job_id] = (giver, cores)
    return tuple([_return(giver, cores, job) for _, (giver, cores) in sorted(cores_by_job.items())])


def _return(giver: Job, cores: int, job: Job) -> Grant:
    answer = giver.placement.answer if giver.placement is not None else None
    last = (giver.resized, *([giver.wish.sequence] if giver.wish else []), *([answer.sequence] if answer else []))
    return Grant(
        job=giver.id,
        attempt=giver.attempt,
        sequence=max(last) + 1,
        cores=giver.cpus_per_replica - cores,
        by=job.id,
    )


def reclaimed_for_growth(
    arrays: ArrayCapacity, job: Job, growth_m: Mapping[int, int], now_s: float
) -> tuple[Stop, ...]:
    """Return which borrowing CPU jobs stop so that the GPU job gets these millicores on each node, by id.

    Empty if stops free too little, if none is needed, or if one of them must be spared for now."""
    if any(cpu_m > arrays.free_after_reclaim(number).cpu_m for number, cpu_m in growth_m.items()):
        return ()
    wanted = ((number, Resources(cpu_m=cpu_m)) for number, cpu_m in growth_m.items())
    found = [victim for number, amount in wanted for victim in arrays.borrowers_on(amount, number, now_s=now_s)]
    return () if stopped_at_s(found) > now_s else _stops(job, found)


def _stops(by: Job, found: list[Victim]) -> tuple[Stop, ...]:
    """One stop for each victim, by id; a victim may be on several nodes."""
    stop_by_job = {
        held.job.id: Stop(job=held.job.id, attempt=held.job.attempt, cause=cause, by=by.id) for held, cause in found
    }
    return tuple(stop_by_job[job_id] for job_id in sorted(stop_by_job))


class WhatIf:
    """Whether a gang would fit if some jobs were gone. Judges as `Candidates.place` does."""

    def __init__(self, rank_class: RankClass, replicas: int) -> None:
        self._rank_class = rank_class
        self._replicas = replicas
        self._capacity = rank_class.groups.capacity
        self._gained: dict[int, Resources] = {}
        rank_class.candidates.refresh()
        self._domains = None if rank_class.within is None else self._capacity.levels[rank_class.within].domain_by_node
        self._ranks: dict[str | None, int] = {_ANYWHERE: rank_class.candidates.ranks}
        if self._domains is not None:
            self._ranks = {}
            for number in rank_class.groups.amount_by_node:
                self._count(number, self._ranks_on(number))

    def fits(self) -> bool:
        """True if all ranks fit, in one domain if they must."""
        return max(self._ranks.values(), default=0) >= self._replicas

    def remove(self, job: Job, nodes: Iterable[str]) -> bool:
        """Count this job as gone. False if that changes nothing for the gang."""
        return self._change(nodes, job.request)

    def restore(self, job: Job, nodes: Iterable[str]) -> None:
        """Undo `remove` of this job."""
        self._change(nodes, NOTHING - job.request)

    def _change(self, nodes: Iterable[str], gain: Resources) -> bool:
        matters = False
        for name in nodes:
            number = self._capacity.number_by_name.get(name)
            if number is None or number not in self._rank_class.groups.amount_by_node:
                continue
            before = self._ranks_on(number)
            self._gained[number] = self._gained.get(number, NOTHING) + gain
            self._count(number, self._ranks_on(number) - before)
            matters = True
        return matters

    def _ranks_on(self, number: int) -> int:
        free = self._capacity.free(number)
        gained = self._gained.get(number)
        return self._rank_class.request.times_in(free if gained is None else free + gained)

    def _count(self, number: int, ranks: int) -> None:
        domain = _ANYWHERE if self._domains is None else self._domains[number]
        self._ranks[domain] = self._ranks.get(domain, 0) + ranks
