"""The index of one world, which the next cycle brings up to date instead of building it again.

It changes no answer: a decision with a cache of earlier worlds equals one without. It finds what changed by the
identity of the frozen values in a world, and recomputes only what depends on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from coda.cache.array_capacity import ArrayCapacity
from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.holdings import Holding, Holdings, holds_the_same, stands_alike
from coda.cache.inadmissible import InadmissibleClasses
from coda.cache.job_facts import JobFacts, OpenWish, facts_of
from coda.cache.judging_budget import Clock, JudgingBudget
from coda.cache.queue import Queue, within_tenant
from coda.cache.running_jobs import RunningJobs
from coda.cache.usage import LeavingJobs, Usage
from coda.history.queue_estimates import ExpectedRuns
from coda.model.capacity import free_on
from coda.model.job import Job, JobId, Phase
from coda.model.live_placement import is_waiting
from coda.model.resources import NOTHING, Resources
from coda.model.world import ArrayQuota, Node, VirtualCluster, World
from coda.nodes.bottleneck import Bottlenecks
from coda.nodes.candidates import Score
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import NodeSearch, RankClass
from coda.policy.config import Component, PolicyConfig
from coda.policy.node_score import Mix, Scorer
from coda.policy.order import Order, SortKey, by_expected_run, by_slices, rank_by_slices
from coda.policy.policies import policy_of
from coda.snapshots import changed_keys, removed_and_added
from coda.tenants import TenantLedger

_SPARE_GROUPS: Final = 256  # groups, rank classes and amounts that no job needs now, kept in case one does
_SPARE_RANK_CLASSES: Final = 1000
_SPARE_AMOUNTS: Final = 2000
_FOLLOWED: Final = 100_000  # nodes that changed x groups of nodes; to follow more takes longer than to find them again

_PLAIN: Final = Job(
    id=JobId("/"), uid="", phase=Phase.QUEUED, attempt=1, generation=1, replicas=1, request=Resources(cpu_m=1)
)
"""A job that every node accepts."""


class PlannerCache:
    """Give one to every `decide` of one planner. Not for two threads at once. A cycle that raises empties it.

    With a `clock`, classes that take long to judge wait for their turn, see `JudgingBudget`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.budget = JudgingBudget(clock) if clock is not None else None
        self._index: WorldIndex | None = None
        self._measured: NodeSearch | None = None

    def index_for(self, world: World, config: PolicyConfig, expected: ExpectedRuns) -> WorldIndex:
        """Return the index of this world for one cycle. Give it to `store` at the end."""
        index, self._index = self._index, None
        if index is None or not index.serves(config, expected):
            index = WorldIndex(config, expected)
        index.refresh(world)
        if self.budget is not None and self._measured is not index.search:
            self._measured = search = index.search
            self.budget.measure_plain(lambda: search.rank_class(_PLAIN))
        return index

    def store(self, index: WorldIndex) -> None:
        """The cycle has ended, and the next one starts from this index."""
        self._index = index


_Observer = Holdings | Usage | TenantLedger | ArrayCapacity | RunningJobs
"""It counts what jobs hold, by `add`, `remove` and `renew`. A union, no protocol: compiled calls of it are faster."""

_Version = tuple[Job, JobFacts]


class _Changes(NamedTuple):
    """What differs between two worlds."""

    gone: list[Job]
    come: list[Job]
    gone_nodes: list[Node]
    come_nodes: list[Node]
    names: list[str]  # of nodes where pods came, left or changed; may repeat


class WorldIndex:
    """One world, prepared for decisions about it."""

    def __init__(self, config: PolicyConfig, expected: ExpectedRuns) -> None:
        self.config = config
        self.policy = policy_of(config.policy)
        self._expected = expected
        self._favours_short = self.policy.favours_short and Component.SHORT_FIRST not in config.without
        self.usage = Usage(self.policy.fairness) if self.policy.fairness else None
        self.tenants: TenantLedger | None = None  # None: there are no virtual clusters
        self._shares_within_tenants = self.policy.shares_tenants_first
        rule = self.policy.preempts
        self._has_slices = config.has_time_slices
        is_ruled = self._has_slices or not self.policy.has_time_slices
        self.running = RunningJobs(rule, self.usage, expected.indices) if rule is not None and is_ruled else None
        self.nodes_version = 0  # another one: nodes came, went, or changed
        self.queue = self._empty_queue()
        self.inadmissible = InadmissibleClasses()
        self.pending: dict[JobId, _Version] = {}  # all with `ranks_without_pods` or `growth_m`
        self.wishing: dict[JobId, tuple[Job, OpenWish]] = {}  # all with an open wish
        self.bottlenecks = Bottlenecks()
        self.holdings = Holdings(config.refusal_holders)
        self.world = World(nodes=())
        self._array_quotas: tuple[ArrayQuota, ...] = ()
        self._facts_by_job: dict[JobId, JobFacts] = {}  # of jobs with a placement or pods
        self._leaving = LeavingJobs()
        self._withheld_by_node: dict[str, Resources] = {}
        self._started: dict[JobId, tuple[str, ...]] = {}  # in this cycle, with their nodes
        self._grown: set[str] = set()  # nodes where jobs grew in this cycle
        self._index_nodes(())

    def serves(self, config: PolicyConfig, expected: ExpectedRuns) -> bool:
        """True if it can go on with this configuration and these expectations."""
        if (self._favours_short or self._has_slices) and self._expected is not expected:
            return False
        return self.config is config or self.config == config

    def refresh(self, world: World) -> None:
        """Go from the world before to this one. O(nodes + jobs) comparisons of pointers, and work for what changed."""
        before, self.world = self.world, world
        self._leaving.discharge()
        changes = _changes_between(before, world)
        gone = [(job, self._pop_facts(job)) for job in changes.gone]
        come = [(job, facts_of(job)) for job in changes.come]
        if self.usage is not None:
            self.usage.refresh(world)
        touched = self._refresh_holdings(gone, come)
        are_tenants_new = self._refresh_tenants(before.virtual_clusters)
        if gone or come or world.quotas or before.quotas or are_tenants_new:
            self._refresh_queue(gone, come, is_new=are_tenants_new)
        touched.update(changes.names)
        self._refresh_nodes(changes.gone_nodes, changes.come_nodes, touched)
        self._leaving.charge(self.capacity, self.usage, self.tenants)
        self.inadmissible.admit(self.queue.pop_new_classes())

    def rank_class(self, gang_class: GangClass) -> RankClass:
        """Return what is known about the ranks of these gangs."""
        rank_class = gang_class.rank_class
        if rank_class is None:
            rank_class = gang_class.rank_class = self.search.rank_class(gang_class.job)
        return rank_class

    def rank_class_anywhere(self, gang_class: GangClass) -> RankClass:
        """Return the same without their required level."""
        if gang_class.job.within is None:
            return self.rank_class(gang_class)
        rank_class = gang_class.rank_class_anywhere
        if rank_class is None:
            rank_class = gang_class.rank_class_anywhere = self.search.rank_class_anywhere(gang_class.job)
        return rank_class

    def sort_key(self, queued: QueuedJob) -> SortKey:
        """Return when a job is tried now: by its party's share, where shares count, then by its place in the queue."""
        if self.usage is None:
            return queued.sort_key
        rank: SortKey = self.usage.rank(queued.job)
        borrows = False
        if self.tenants is not None and self._shares_within_tenants:
            rank, borrows = (rank[0], *self.tenants.share(queued.job), rank[1]), self.tenants.borrows(queued.job)
        shared = (rank, queued.sort_key)
        return rank_by_slices(queued.job, shared, borrows=borrows) if self._has_slices else shared

    def assign(self, job: Job, shares: list[tuple[int, int]]) -> tuple[str, ...]:
        """Give the job this many ranks on each of these nodes in this cycle. Returns rank -> node."""
        nodes = tuple(self.capacity.nodes[number].name for number, ranks in shares for _ in range(ranks))
        for number, ranks in shares:
            self.capacity.subtract(number, job.request * ranks)
        self._add(job, nodes)
        self._started[job.id] = nodes
        self._refresh_views(number for number, _ in shares)
        return nodes

    def assign_growth(self, growth_m: Mapping[int, int]) -> None:
        """Give a running job these millicores on each node in this cycle."""
        for number, cpu_m in growth_m.items():
            self.capacity.subtract(number, Resources(cpu_m=cpu_m))
            self._grown.add(self.capacity.nodes[number].name)
        self._refresh_views(growth_m)

    def set_free(self, free_by_number: Mapping[int, Resources]) -> None:
        """Set what is free on these nodes."""
        for number, free in free_by_number.items():
            self.capacity.set_free(number, free)
        self._refresh_views(free_by_number)

    def started(self) -> Collection[JobId]:
        """Return the jobs that start in this cycle."""
        return self._started.keys()

    def _refresh_holdings(self, gone: list[_Version], come: list[_Version]) -> set[str]:
        """Remove the holdings of `gone` and add those of `come`. Starts of the last cycle that did not reach the world
        are removed too. Returns the nodes that changed."""
        touched, self._grown = self._grown, set()
        started, self._started = self._started, {}
        new_ids = {job.id for job, _ in come}
        for job_id in (*started, *(job.id for job, _ in gone)):
            if job_id not in new_ids and (holding := self.holdings.of(job_id)) is not None:
                self._remove(holding)
                touched.update(holding.nodes)
        for nodes in started.values():
            touched.update(nodes)
        for job, facts in gone:
            for node, share in facts.withheld.items():
                self._set_withheld(node, self._withheld_by_node.get(node, NOTHING) - share)
            touched.update(facts.withheld)
            self.pending.pop(job.id, None)
            self.wishing.pop(job.id, None)
            self._leaving.remove(job.id)
        for job, facts in come:
            self._set_holding(job, facts.nodes, touched)
            for node, share in facts.withheld.items():
                self._set_withheld(node, self._withheld_by_node.get(node, NOTHING) + share)
            touched.update(facts.withheld)
            self._set_facts(job, facts)
        return touched

    def _pop_facts(self, job: Job) -> JobFacts:
        return self._facts_by_job.pop(job.id, None) or facts_of(job)

    def _set_facts(self, job: Job, facts: JobFacts) -> None:
        if job.placement is not None or job.unbound:
            self._facts_by_job[job.id] = facts
        if facts.ranks_without_pods or facts.growth_m:
            self.pending[job.id] = (job, facts)
        if facts.open_wish is not None:
            self.wishing[job.id] = (job, facts.open_wish)
        if facts.leaving:
            self._leaving.add(job, facts.leaving)

    def _set_holding(self, job: Job, nodes: tuple[str, ...], touched: set[str]) -> None:
        """Set what the job holds, and add the nodes that changed to `touched`."""
        holding = self.holdings.of(job.id)
        if holding is not None and holding.nodes == nodes and holds_the_same(job, holding.job):
            if stands_alike(job, holding.job):
                return
            for observer in self._observers:
                observer.renew(holding.job, job, nodes)
        else:
            if holding is not None:
                self._remove(holding)
                touched.update(holding.nodes)
            if nodes:
                self._add(job, nodes)
        touched.update(nodes)

    def _add(self, job: Job, nodes: tuple[str, ...]) -> None:
        for observer in self._observers:
            observer.add(job, nodes)

    def _remove(self, holding: Holding) -> None:
        for observer in self._observers:
            observer.remove(holding.job, holding.nodes)

    def _set_withheld(self, node: str, amount: Resources) -> None:
        if amount.gpus or amount.cpu_m or amount.memory_bytes or amount.pods or any(amount.other.values()):
            self._withheld_by_node[node] = amount
        else:
            self._withheld_by_node.pop(node, None)

    def _refresh_tenants(self, before: tuple[VirtualCluster, ...]) -> bool:
        """Follow the virtual clusters. True if there were none before, or are none any more."""
        now = self.world.virtual_clusters
        if now is before or now == before:
            return False
        if self.tenants is None:
            self.tenants = TenantLedger(self.capacity.nodes, self.holdings.all())
        self.tenants.set_quotas(now)
        if now and before:
            return False
        if not now:
            self.tenants = None
        self._set_observers()
        return True

    def _refresh_queue(self, gone: list[_Version], come: list[_Version], *, is_new: bool) -> None:
        limited = frozenset(quota.namespace for quota in self.world.quotas)
        if limited == self.queue.limited and not is_new:
            self.queue.change(_waiting(gone), _waiting(come))
            return
        self.queue = self._empty_queue(limited)
        self.inadmissible = InadmissibleClasses()
        self.queue.change((), [job for job in self.world.jobs if is_waiting(job)])

    def _empty_queue(self, limited: frozenset[str] = frozenset()) -> Queue:
        party = self.policy.fairness.party if self.policy.fairness else None
        parties = party if self.tenants is None else partial(within_tenant, party)
        return Queue(limited, self._order(), parties, self.config)

    def _order(self) -> Order:
        if not self._favours_short:
            order = self.policy.order
        elif self._has_slices:  # who goes first by mistake makes room after its slice, if it resumes
            order = partial(by_expected_run, self._expected.run_s)
        else:
            order = partial(by_expected_run, self._expected.trusted_run_s)
        return partial(by_slices, order) if self._has_slices else order

    def _refresh_nodes(self, gone: list[Node], come: list[Node], touched: set[str]) -> None:
        """Follow the nodes, and find what is free on those that were `touched`."""
        world, number_by_name = self.world, self.capacity.number_by_name
        is_divided_again = self.arrays is not None and self._array_quotas != world.array_quotas
        are_many = len(come) * len(self.search.groups_by_key) > _FOLLOWED
        if is_divided_again or are_many or self._is_outgrown() or not _are_the_same(gone, come):
            self._index_nodes_again()
            touched = set(self.capacity.number_by_name)
        elif come:
            searches = (self.search,) if self.arrays is None else self.arrays.searches
            moved = [one.replace_node(number_by_name[node.name], node) for node in come for one in searches]
            touched.update(node.name for node in come)
            self._nodes_changed(match_others=any(moved))
        takers = tuple(taker for taker in (world.used, world.in_flight, self._withheld_by_node) if taker)
        capacity = self.capacity
        numbers = [number for name in touched if (number := capacity.number_by_name.get(name)) is not None]
        for number in numbers:
            capacity.set_free(number, free_on(capacity.nodes[number], takers))
        if self.arrays is not None:
            self.arrays.refresh_others(numbers, world.in_flight)
        self._refresh_views(numbers)

    def _refresh_views(self, numbers: Iterable[int]) -> None:
        if self.arrays is not None:
            self.arrays.refresh(numbers)

    def _is_outgrown(self) -> bool:
        gang_classes = len(self.queue.class_by_key)
        return (
            len(self.search.groups_by_key) > _SPARE_GROUPS + 2 * gang_classes
            or len(self.search.rank_classes) > _SPARE_RANK_CLASSES + 4 * gang_classes
            or len(self.capacity.amounts) > _SPARE_AMOUNTS + 8 * len(self.capacity.nodes)
        )

    def _index_nodes_again(self) -> None:
        self._index_nodes(self.world.nodes)
        self.bottlenecks = Bottlenecks()
        self.queue.forget_nodes()
        self._nodes_changed(match_others=True)

    def _index_nodes(self, nodes: tuple[Node, ...]) -> None:
        scorer, mix = self.policy.score, self.config.mix
        score: Score | None = None if scorer is None else partial(_scored, scorer, mix)
        self.capacity = FreeCapacity(nodes, self.config.levels, tells_sizes=score is not None)
        self.search = NodeSearch(self.capacity, self.config, score)
        self.arrays: ArrayCapacity | None = None
        if self.policy.has_arrays and Component.ARRAYS not in self.config.without:
            self._array_quotas = self.world.array_quotas
            self.arrays = ArrayCapacity(self.search, self.config, self._array_quotas, score)
            for job, held_nodes in self.holdings.all():
                self.arrays.add(job, held_nodes)
        self._set_observers()

    def _set_observers(self) -> None:
        observers = (self.holdings, self.usage, self.tenants, self.arrays, self.running)
        self._observers: tuple[_Observer, ...] = tuple(one for one in observers if one is not None)
        if self.running is not None and self._shares_within_tenants:
            self.running.tenants = self.tenants

    def _nodes_changed(self, *, match_others: bool) -> None:
        self.nodes_version += 1
        self.inadmissible = InadmissibleClasses()
        self.inadmissible.admit(self.queue.class_by_key.values())
        for shares in (self.usage, self.tenants):
            if shares is not None:
                shares.set_total(self.capacity.nodes)
        if match_others:
            self.holdings.nodes_changed(self.capacity.number_by_name)


def _changes_between(before: World, world: World) -> _Changes:
    gone, come = removed_and_added(before.jobs, world.jobs)
    gone_nodes, come_nodes = removed_and_added(before.nodes, world.nodes)
    names = changed_keys(before.used, world.used)
    if world.in_flight or before.in_flight:
        names += changed_keys(before.in_flight, world.in_flight)
    return _Changes(gone, come, gone_nodes, come_nodes, names)


def _waiting(versions: list[_Version]) -> list[Job]:
    return [job for job, facts in versions if facts.is_waiting]


def _are_the_same(gone: list[Node], come: list[Node]) -> bool:
    """True if the nodes that came are those that left, by name, labels and what they have."""
    known = {node.name: (node.labels, node.allocatable) for node in come}
    return len(gone) == len(come) and all(known.get(node.name) == (node.labels, node.allocatable) for node in gone)


def _scored(scorer: Scorer, mix: Mix, request: Resources, free: Resources, size: Resources) -> tuple[float, ...]:
    return scorer(request, free, size, mix)
