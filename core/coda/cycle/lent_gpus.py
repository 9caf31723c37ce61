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
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_groups import UsableGpus
from coda.nodes.node_search import RankClass
from coda.promises.hold import PromiseHold
from coda.tenants import FairShareMemory, TenantLedger
from coda.tenants.fair_share import Runner, Takings, lent_gangs
from coda.tenants.memory import key_of_stop
from coda.wording import clock_text, counted, numbers_of

_TRIED: Final = 4
"""The orders that are tried. Our choice: for one rank the first does, unless a limit of its tenant is in its way."""

_LOOKS: Final = 2000
"""Sets of gangs that are tried for one kind of job, where nodes give too little in turn. Our choice."""

_Held = tuple[int, int]
"""The place of a gang in the order, and its ranks on one node."""


class LentGpus:
    """The lent GPUs of one cycle, once everything has started that can. `hold`: nobody is stopped on nodes that it
    keeps, and what it keeps is for one job only.

    `reasons`: why owners wait for them. `notes`: why nobody stops for them, by class. `wake_s`: when time alone lets
    somebody stop."""

    def __init__(self, index: WorldIndex, ledger: TenantLedger, now_s: float) -> None:
        self.hold = PromiseHold(index)
        self._index = index
        self._ledger = ledger
        self._config = index.config.fair_share
        self._now_s = now_s
        self._candidates: _Lent | None = None
        self.reasons: dict[JobId, WaitReason] = {}
        self.wake_s: float | None = None
        self.notes: dict[GangClass, str] = {}
        self._use = UsableGpus(index.capacity)
        self._nowhere: set[tuple[str, RankClass, int, int]] = set()  # kinds of jobs that nobody's stop helps

    def is_due(self, queued: QueuedJob) -> bool:
        """True if so many of the GPUs that the job could use are in use that gangs may stop for it. O(nodes) for the
        first job of each kind.

        GPUs count as in use if no rank of the job can have them: they are the rest of a node, or kept for another job.
        Nodes that it may not use, or that are too small for a rank, do not count at all. If a limit of its tenant is
        reached, no idle GPU is for the job. A note says why nobody stops, if gangs would give what it needs."""
        from_use, job, gang_class = self._config.from_use, queued.job, queued.gang_class
        if from_use is None:
            return False
        if self._ledger.shortage(job) is not None:
            return bool(self._ledger.lacking(job))  # else what stops already leaves enough
        usable, used = self._use.of(job.request, self._index.rank_class(gang_class).groups, self.hold.free_for(job.id))
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
        return bool(self._taken_back(self._lent().all, queued))

    def _taken_back(self, line: LentLine, queued: QueuedJob) -> tuple[Stop, ...]:
        """Return who of these stops so that the job gets what it is owed. Jobs that differ only by user are looked for
        once in a cycle if nobody's stop helps them."""
        job, rank_class = queued.job, self._index.rank_class(queued.gang_class)
        kind = (job.virtual_cluster, rank_class, job.replicas, len(line.runners))
        if kind in self._nowhere:
            return ()
        stops = taken_back(line, job, rank_class, self._ledger)
        if not stops:
            self._nowhere.add(kind)
        return stops

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
        job, lent = queued.job, self._lent()
        stops = self._taken_back(lent.ready, queued)
        if stops:
            next_s = memory.next_stop_s(self._config, {key_of_stop(stop) for stop in stops}, self._now_s)
            if next_s is None:
                return stops
            self._wait(job.id, next_s, "and too many jobs stopped for others in the last minute")
            return ()
        stops = self._taken_back(lent.all, queued) if lent.until_s_by_job else ()
        if stops:
            until_s = max([lent.until_s_by_job.get(stop.job, self._now_s) for stop in stops])
            which, it, its = ("which has", "it", "its") if len(stops) == 1 else ("some of which have", "they", "their")
            since = f"since {it} began or {its} VirtualCluster came to own less"
            who = f"to {counted(len(stops), 'job')}, {which}"
            self._wait(job.id, until_s, f"{who} not run for the minimum time yet {since}")
        return ()

    def _lent(self) -> _Lent:
        """The gangs that might stop for somebody: none on nodes that are kept. O(jobs that hold nodes), once."""
        safe_nodes = self.hold.kept_nodes
        if self._candidates is None or self._candidates.safe_nodes != safe_nodes:
            found = lent_gangs(self._ledger, self._index.holdings.all(), self._config, self._now_s)
            ready = [runner for runner in found.ready if safe_nodes.isdisjoint(runner[1])]
            later = [one for one in found.later if safe_nodes.isdisjoint(one[2])]
            everybody = [*ready, *((runner, nodes) for _, runner, nodes in later)]
            until_s_by_job = {runner.id: until_s for until_s, runner, _ in later}
            self._candidates = _Lent(frozenset(safe_nodes), LentLine(ready), LentLine(everybody), until_s_by_job)
        return self._candidates

    def _wait(self, job: JobId, until_s: float, why: str) -> None:
        self.wake_s = until_s if self.wake_s is None else min(self.wake_s, until_s)
        owned = "the GPUs that it needs are its VirtualCluster's own and lent"
        self.reasons[job] = WaitReason(
            code=WaitCode.RECLAIM_DELAYED,
            message=f"{owned} {why}: they are given back from {clock_text(until_s)} on",
            numbers=numbers_of(not_before_s=ceil(until_s)),
        )


class _There(NamedTuple):
    """Which gangs are on a node. `tenants`: of each, its first gang, its GPUs there, and the most of one gang there."""

    held: list[_Held]
    tenants: list[tuple[int, int, int]]


class LentLine:
    """Gangs in the order in which they stop."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = runners
        self._by_node: dict[int, _There] = {}

    def by_node(self, capacity: FreeCapacity) -> Mapping[int, _There]:
        """The nodes on which they are, of the one capacity of this cycle. O(gangs x their nodes), once."""
        if not self._by_node:
            held_by_node: dict[int, list[_Held]] = {}
            for place, (_, nodes) in enumerate(self.runners):
                for name, ranks in ((nodes[0], 1),) if len(nodes) == 1 else Counter(nodes).items():
                    if name in capacity.number_by_name:
                        held_by_node.setdefault(capacity.number_by_name[name], []).append((place, ranks))
            self._by_node = {number: _There(held, self._tenants_of(held)) for number, held in held_by_node.items()}
        return self._by_node

    def _tenants_of(self, held: Sequence[_Held]) -> list[tuple[int, int, int]]:
        by_tenant: dict[str, tuple[int, int, int]] = {}
        for place, ranks in held:
            runner = self.runners[place][0]
            gpus = runner.request.gpus * ranks
            first, total, largest = by_tenant.get(runner.virtual_cluster, (place, 0, 0))
            by_tenant[runner.virtual_cluster] = (first, total + gpus, max(largest, gpus))
        return list(by_tenant.values())


class _Lent(NamedTuple):
    """Gangs that might stop while these nodes are kept. `all`: also those that are spared for now."""

    safe_nodes: Set[str]
    ready: LentLine
    all: LentLine
    until_s_by_job: Mapping[JobId, float]


def taken_back(line: LentLine, job: Job, rank_class: RankClass, ledger: TenantLedger) -> tuple[Stop, ...]:
    """Return who of these gangs stops so that the job fits on what its tenant owns, by id; nobody if none is found.

    If it does not fit in turn, a gang of one rank goes where the order of the gangs ends first; ties: by node. For
    several ranks this second look is a good guess: to be sure, it would need all combinations. O(gangs x their nodes x
    levels) for the first look, and as much for the second, or next to nothing where no node has enough."""
    runners = line.runners
    found = stopped_in_turn(runners, job, rank_class, Takings(ledger, job, owns=True), StopCause.FAIR_SHARE)
    if found:
        return found
    rest = runners if ledger.lacking(job) else ()
    for offers in islice(_orders(_offers(line, job, rank_class, ledger), job, rank_class), _TRIED):
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


def _offers(line: LentLine, job: Job, rank_class: RankClass, ledger: TenantLedger) -> list[_Offer]:
    """Return what each node offers if nobody stops elsewhere. O(nodes x tenants there), and O(gangs there x levels) for
    a node whose tenants may lose enough."""
    capacity, eligible = rank_class.groups.capacity, rank_class.groups.amount_by_node
    runners, node = line.runners, _Node(line.runners, job, Takings(ledger, job, owns=True))
    most_by_tenant: dict[str, int | None] = {}
    found: list[_Offer] = []
    for number, there in line.by_node(capacity).items():
        if number not in eligible:
            continue
        free = capacity.free(number)
        gpus = free.gpus
        for place, gpus_there, largest in there.tenants:
            tenant = runners[place][0].virtual_cluster
            if tenant not in most_by_tenant:
                most_by_tenant[tenant] = node.most_before_last(runners[place][0], ledger)
            most = most_by_tenant[tenant]
            gpus += 0 if most is None else min(gpus_there, most + largest)
        if gpus < job.request.gpus:
            continue  # the usual answer, and the cheapest to find
        ranks, taken = node.in_turn(there.held, free)
        if not taken:
            ranks, taken = 1, node.for_one_rank(there.held, free)
        if taken:
            gangs = tuple([runners[place] for place in taken])
            found.append(_Offer(max(taken), number, ranks, sum([_gpus(gang) for gang in gangs]), gangs))
    return found


class _Node:
    """Who might stop on a node, one node after the other. Whoever is taken there is given back at once."""

    def __init__(self, runners: Sequence[Runner], job: Job, takings: Takings) -> None:
        self._runners = runners
        self._job = job
        self._takings = takings
        self._looks = _LOOKS

    def most_before_last(self, runner: Job, ledger: TenantLedger) -> int | None:
        """Return the most GPUs that a gang's tenant may have lost before its last gang is taken; None: it has none."""
        if not self._takings.may_take(runner):
            return None
        mine, tree = ledger.tree.path(self._job.virtual_cluster), ledger.tree
        theirs = [seat for seat in tree.path(runner.virtual_cluster) if seat not in mine]
        return min([ledger.gpus_kept(seat) - tree.seat(seat).own_gpus for seat in theirs], default=ledger.gpus) - 1

    def in_turn(self, held: Sequence[_Held], free: Resources) -> tuple[int, list[int]]:
        """Return how many more ranks fit there if gangs stop in turn, and the places of these gangs."""
        request, needed = self._job.request, 0
        before = ranks = request.times_in(free)
        taken: list[int] = []
        for place, count in held:
            if ranks - before >= self._job.replicas:
                break
            if self._takings.may_take(self._runners[place][0]):
                self._takings.take(self._runners[place][0])
                taken.append(place)
                free = free + self._runners[place][0].request * count
                now = request.times_in(free)
                if now > ranks:
                    ranks, needed = now, len(taken)
        self._give_back(taken)
        return ranks - before, taken[:needed]

    def for_one_rank(self, held: Sequence[_Held], free: Resources) -> list[int]:
        """Return gangs with which one rank more fits, by place, in an order in which all of them may be taken.

        A tenant may hold too much by less than all of its last gang: so any order is tried."""
        taken: list[int] = []  # stays empty if none does
        self._look(held, free, self._job.request.times_in(free) + 1, taken, set())
        self._give_back(taken)
        return taken

    def _look(
        self, held: Sequence[_Held], free: Resources, wanted: int, taken: list[int], seen: set[tuple[int, ...]]
    ) -> bool:
        """Take more until so many ranks fit, else nobody more. Who may not be taken now may not be later either."""
        taken_now = tuple(sorted(taken))
        if taken_now in seen or not self._looks:
            return False
        seen.add(taken_now)
        self._looks -= 1
        able = [one for one in held if one[0] not in taken and self._takings.may_take(self._runners[one[0]][0])]
        most = free
        for place, count in able:
            most = most + self._runners[place][0].request * count
        if self._job.request.times_in(most) < wanted:
            return False
        tried: set[tuple[str, Resources, int, int]] = set()
        for place, count in able:
            runner = self._runners[place][0]
            kind = (runner.virtual_cluster, runner.request, runner.replicas, count)
            if kind in tried:
                continue  # the first of those that are alike goes first
            tried.add(kind)
            self._takings.take(runner)
            taken.append(place)
            left = free + runner.request * count
            if self._job.request.times_in(left) >= wanted or self._look(held, left, wanted, taken, seen):
                return True
            self._takings.give_back(self._runners[taken.pop()][0])
        return False

    def _give_back(self, places: Sequence[int]) -> None:
        for place in places:
            self._takings.give_back(self._runners[place][0])


def _gpus(runner: Runner) -> int:
    return runner[0].request.gpus * runner[0].replicas
