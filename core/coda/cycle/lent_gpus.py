"""Lent GPUs go back to their owners, during one cycle: for whom, and who stops. The rules: `tenants.fair_share`.

Gangs are taken in their order over all nodes until the owner fits. That can use up what their tenants may lose before
there is enough on any node. Then the same is tried in other orders: node by node, or domain by domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice
from math import ceil
from typing import Final, NamedTuple

from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.world_index import WorldIndex
from coda.cycle.victims import stopped_in_turn
from coda.model.decision import Stop, WaitCode, WaitReason
from coda.model.job import Job, JobId, StopCause
from coda.model.resources import Resources
from coda.nodes.node_groups import NodeGroups
from coda.nodes.node_search import RankClass
from coda.promises.hold import PromiseHold
from coda.tenants import FairShareMemory, TenantLedger
from coda.tenants.fair_share import LentGangs, Runner, Takings, lent_gangs
from coda.tenants.memory import key_of_stop
from coda.wording import clock_text, counted, numbers_of

_TRIED: Final = 4
"""The orders that are tried. Our choice: it bounds what a cycle costs. For a gang of one rank the first one does,
unless a limit of its tenant is in its way."""

_Held = tuple[int, int]
"""The place of a gang in the order, and its ranks on one node."""


class LentGpus:
    """The lent GPUs of one cycle, once everything has started that can. `hold`: nobody is stopped on nodes that it
    keeps, and what it keeps is for one job only.

    `reasons`: why owners wait for them. `notes`: why nobody stops for them, by class. `wake_s`: when time alone lets
    somebody stop."""

    def __init__(self, index: WorldIndex, ledger: TenantLedger, now_s: float) -> None:
        self.hold = PromiseHold(index, None)
        self._index = index
        self._ledger = ledger
        self._config = index.config.fair_share
        self._now_s = now_s
        self._candidates: LentGangs | None = None
        self.reasons: dict[JobId, WaitReason] = {}
        self.wake_s: float | None = None
        self.notes: dict[GangClass, str] = {}
        self._use: dict[tuple[int, int, bool], tuple[int, int]] = {}  # of a kind of rank: usable, and in use
        self._nowhere: set[tuple[str, RankClass, int, int]] = set()  # kinds of jobs that nobody's stop helps

    def is_due(self, queued: QueuedJob) -> bool:
        """True if so many of the GPUs that the job could use are in use that gangs may stop for it. O(nodes) for the
        first job of each kind.

        GPUs count as in use if no rank of the job can have them: they are the rest of a node, or kept for another job.
        Nodes that it may not use, for one because it avoids them, do not count at all. If a limit of its tenant is
        reached, no idle GPU is for the job. A note says why nobody stops, if gangs would give what it needs."""
        from_use, job, gang_class = self._config.from_use, queued.job, queued.gang_class
        if from_use is None:
            return False
        if self._ledger.shortage(job) is not None:
            return bool(self._ledger.lacking(job))  # else what stops already leaves enough
        usable, used = self._use_for(job, self._index.rank_class(gang_class).groups)
        if usable > 0 and used >= from_use * usable:
            return True
        if usable > 0 and self._may_be_given(queued):
            self.notes[gang_class] = (  # without numbers that change from cycle to cycle
                f"what it needs is its VirtualCluster's own and lent: gangs give it back once at most "
                f"{1 - from_use:.0%} of {counted(usable, 'GPU')} are idle for ranks like its own"
            )
        return False

    def _may_be_given(self, queued: QueuedJob) -> bool:
        """True if the job would fit once gangs stop that it may take from, although not now.

        O(gangs that might stop x their nodes)."""
        ready, later = self._lent()
        return bool(self._taken_back([*ready, *((runner, nodes) for _, runner, nodes in later)], queued))

    def _taken_back(self, runners: Sequence[Runner], queued: QueuedJob) -> tuple[Stop, ...]:
        """Return who of these stops so that the job gets what it is owed. Jobs that differ only by user are looked for
        once in a cycle if nobody's stop helps them."""
        job, rank_class = queued.job, self._index.rank_class(queued.gang_class)
        kind = (job.virtual_cluster, rank_class, job.replicas, len(runners))
        if kind in self._nowhere:
            return ()
        stops = taken_back(runners, job, rank_class, self._ledger)
        if not stops:
            self._nowhere.add(kind)
        return stops

    def _use_for(self, job: Job, groups: NodeGroups) -> tuple[int, int]:
        """Return the GPUs of these nodes, and how many of them a rank of the job cannot have. O(nodes), once."""
        own, rank_gpus, capacity = self.hold.free_for(job.id), job.request.gpus, self._index.capacity
        key = (id(groups), rank_gpus, bool(own))
        if key not in self._use:
            usable = used = 0
            for number in groups.amount_by_node:
                gpus = capacity.nodes[number].allocatable.gpus
                idle = max(0, (own[number] if number in own else capacity.free(number)).gpus)
                usable += gpus
                used += gpus - idle + idle % rank_gpus
            self._use[key] = (usable, used)
        return self._use[key]

    def owed(self, early: Set[JobId]) -> list[QueuedJob]:
        """Return the first job of each class that still waits for GPUs its tenant owns, in order; none of `early`.

        O(classes log them)."""
        started = early | set(self._index.started())
        first: list[QueuedJob] = []
        for gang_class in self._index.queue.class_by_key.values():
            if not gang_class.job.request.gpus or not Takings(self._ledger, gang_class.job, owns=True).is_owed:
                continue
            startable: Iterator[QueuedJob] = gang_class.startable(self._now_s)
            queued = next((one for one in startable if one.job.id not in started), None)
            if queued is not None:
                first.append(queued)
        return sorted(first, key=self._index.sort_key)

    def stops_for(self, memory: FairShareMemory, queued: QueuedJob) -> tuple[Stop, ...]:
        """Return which gangs stop so that the job starts; nobody if it would not fit even then, or not yet.

        O(jobs that hold nodes) for the first job of a cycle, and the cost of `taken_back` for each kind of job."""
        job, (ready, later) = queued.job, self._lent()
        stops = self._taken_back(ready, queued)
        if stops:
            next_s = memory.next_stop_s(self._config, {key_of_stop(stop) for stop in stops}, self._now_s)
            if next_s is None:
                return stops
            self._wait(job.id, next_s, "and too many jobs stopped for others in the last minute")
            return ()
        spared = [(runner, nodes) for _, runner, nodes in later]
        stops = self._taken_back([*ready, *spared], queued) if spared else ()
        if stops:
            until_by_job = {runner.id: until_s for until_s, runner, _ in later}
            until_s = max([until_by_job.get(stop.job, self._now_s) for stop in stops])
            which, it, its = ("which has", "it", "its") if len(stops) == 1 else ("some of which have", "they", "their")
            since = f"since {it} began or {its} VirtualCluster came to own less"
            who = f"to {counted(len(stops), 'job')}, {which}"
            self._wait(job.id, until_s, f"{who} not run for the minimum time yet {since}")
        return ()

    def _lent(self) -> LentGangs:
        """The gangs that might stop for somebody: none on nodes that are kept. O(jobs that hold nodes), once."""
        if self._candidates is None:
            self._candidates = lent_gangs(self._ledger, self._index.holdings.all(), self._config, self._now_s)
        safe_nodes, found = self.hold.kept_nodes, self._candidates
        if not safe_nodes:
            return found
        return LentGangs(
            [runner for runner in found.ready if safe_nodes.isdisjoint(runner[1])],
            [one for one in found.later if safe_nodes.isdisjoint(one[2])],
        )

    def _wait(self, job: JobId, until_s: float, why: str) -> None:
        self.wake_s = until_s if self.wake_s is None else min(self.wake_s, until_s)
        owned = "the GPUs that it needs are its VirtualCluster's own and lent"
        self.reasons[job] = WaitReason(
            code=WaitCode.RECLAIM_DELAYED,
            message=f"{owned} {why}: they are given back from {clock_text(until_s)} on",
            numbers=numbers_of(not_before_s=ceil(until_s)),
        )


def taken_back(runners: Sequence[Runner], job: Job, rank_class: RankClass, ledger: TenantLedger) -> tuple[Stop, ...]:
    """Return who of these gangs stops so that the job fits on what its tenant owns, by id; nobody if none is found.

    If it does not fit in turn, a gang of one rank goes where the order of the gangs ends first; ties: by node. For
    several ranks this second look is a good guess: to be sure, it would need all combinations. O(gangs x their nodes x
    levels) for each of the two looks; up to `_TRIED` times that where a limit of its tenant is in its way."""
    found = stopped_in_turn(runners, job, rank_class, Takings(ledger, job, owns=True), StopCause.FAIR_SHARE)
    if found:
        return found
    rest = runners if ledger.lacking(job) else ()
    for offers in islice(_orders(_offers(runners, job, rank_class, ledger), job, rank_class), _TRIED):
        first = {runner.id: (runner, nodes) for offer in offers for runner, nodes in offer.runners}
        order = [*first.values(), *(one for one in rest if one[0].id not in first)]
        found = stopped_in_turn(order, job, rank_class, Takings(ledger, job, owns=True), StopCause.FAIR_SHARE)
        if found:
            return found
    return ()


class _Offer(NamedTuple):
    """What some gangs leave on one node. Compares by how far back in the order of all gangs they go."""

    last: int  # the place of the last of them
    number: int  # the node
    ranks: int  # of the job that fit there then, and do not now
    gpus: int  # that these gangs hold, also elsewhere
    runners: tuple[Runner, ...]


def _orders(offers: list[_Offer], job: Job, rank_class: RankClass) -> list[list[_Offer]]:
    """Return which offers to take together, the first in the order of the gangs first.

    In a domain with enough: once those first whose order ends first, once those that take least for a rank."""
    if job.replicas == 1:
        return [[offer] for offer in sorted(offers, key=_standing)]
    domains = _domains(rank_class)
    fits_now = Counter[str | None]()
    for number in rank_class.groups.amount_by_node:
        fits_now[domains.get(number)] += job.request.times_in(rank_class.groups.capacity.free(number))
    by_domain: dict[str | None, list[_Offer]] = {}
    for offer in sorted(offers, key=_standing):
        by_domain.setdefault(domains.get(offer.number), []).append(offer)
    found: list[list[_Offer]] = []
    for domain, there in by_domain.items():
        lacking = job.replicas - fits_now[domain]
        if sum([offer.ranks for offer in there]) >= lacking:
            found += [_enough(there, lacking), _enough(sorted(there, key=_price), lacking)]
    return sorted(found, key=lambda order: max([offer.last for offer in order], default=0))


def _domains(rank_class: RankClass) -> Mapping[int, str | None]:
    """The domain of each node; without any, all ranks may be anywhere."""
    if rank_class.within is None:
        return {}
    return dict(enumerate(rank_class.groups.capacity.levels[rank_class.within].domain_by_node))


def _standing(offer: _Offer) -> tuple[int, int]:
    return offer.last, offer.number


def _price(offer: _Offer) -> float:
    return offer.gpus / offer.ranks


def _enough(offers: list[_Offer], lacking: int) -> list[_Offer]:
    """The first of them that leave so many ranks together."""
    for count, offer in enumerate(offers, 1):
        lacking -= offer.ranks
        if lacking <= 0:
            return offers[:count]
    return offers


def _offers(runners: Sequence[Runner], job: Job, rank_class: RankClass, ledger: TenantLedger) -> list[_Offer]:
    """Return what each node offers if nobody stops elsewhere. O(gangs x their nodes x levels)."""
    capacity, eligible = rank_class.groups.capacity, rank_class.groups.amount_by_node
    held_by_node: dict[int, list[_Held]] = {}
    for place, (_, nodes) in enumerate(runners):
        for name, ranks in ((nodes[0], 1),) if len(nodes) == 1 else Counter(nodes).items():
            number = capacity.number_by_name.get(name)
            if number is not None and number in eligible:
                held_by_node.setdefault(number, []).append((place, ranks))
    node = _Node(runners, job, Takings(ledger, job, owns=True))
    found: list[_Offer] = []
    for number, held in held_by_node.items():
        free = capacity.free(number)
        if free.gpus + sum([runners[place][0].request.gpus * ranks for place, ranks in held]) < job.request.gpus:
            continue  # the usual answer, and the cheapest to find
        ranks, taken = node.in_turn(held, free)
        if not taken:
            ranks, taken = node.with_largest(held, free)
        if taken:
            gpus = sum([_gpus(runners[place]) for place in taken])
            found.append(_Offer(max(taken), number, ranks, gpus, tuple([runners[place] for place in taken])))
    return found


class _Node:
    """Who might stop on a node, one node after the other. Whoever is taken there is given back at once."""

    def __init__(self, runners: Sequence[Runner], job: Job, takings: Takings) -> None:
        self._runners = runners
        self._job = job
        self._takings = takings

    def in_turn(self, held: Sequence[_Held], free: Resources) -> tuple[int, list[int]]:
        """Return how many more ranks fit there if gangs stop in turn, and the places of these gangs."""
        request = self._job.request
        before = ranks = request.times_in(free)
        taken: list[int] = []
        needed = 0
        for place, count in held:
            if ranks - before >= self._job.replicas:
                break
            if self._take(place):
                taken.append(place)
                free = free + self._runners[place][0].request * count
                now = request.times_in(free)
                if now > ranks:
                    ranks, needed = now, len(taken)
        self._give_back(taken)
        return ranks - before, taken[:needed]

    def with_largest(self, held: Sequence[_Held], free: Resources) -> tuple[int, list[int]]:
        """The same for one rank, with the largest gang last: its tenant may hold too much by less than all of it."""
        request = self._job.request
        wanted = request.times_in(free) + 1
        largest, ranks = max(held, key=lambda one: _gpus(self._runners[one[0]]))
        free = free + self._runners[largest][0].request * ranks
        taken: list[int] = []
        for place, count in held:
            if request.times_in(free) >= wanted:
                break
            if place != largest and self._take(place):
                taken.append(place)
                free = free + self._runners[place][0].request * count
        fits = request.times_in(free) >= wanted and self._takings.may_take(self._runners[largest][0])
        self._give_back(taken)
        return (1, [*taken, largest]) if fits else (0, [])

    def _take(self, place: int) -> bool:
        runner = self._runners[place][0]
        if not self._takings.may_take(runner):
            return False
        self._takings.take(runner)
        return True

    def _give_back(self, places: Sequence[int]) -> None:
        for place in places:
            self._takings.give_back(self._runners[place][0])


def _gpus(runner: Runner) -> int:
    return runner[0].request.gpus * runner[0].replicas
