"""What one round of decisions leaves for the next: work that need not be done again. What must not live here: choices.

Nothing in it changes any answer: a decision with a memory of earlier worlds equals one without. It finds out by itself
what changed, by the identity of the frozen values a world is made of, and does again only what hangs on that.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from functools import partial
from typing import Final

from coda.cache.array_capacity import ArrayCapacity
from coda.cache.holdings import Holding, Holdings, holds_the_same, nodes_held, stands_alike
from coda.cache.inadmissible import InadmissibleClasses
from coda.cache.queue import GangClass, Queue, QueuedJob
from coda.cache.quotas import growth_m, ranks_without_pods
from coda.cache.reservable_nodes import ReservableNodes
from coda.cache.running_jobs import RunningJobs
from coda.cache.usage import Usage
from coda.model.capacity import free_on, withheld_shares
from coda.model.job import Job, JobId
from coda.model.live_placement import is_waiting, open_wish
from coda.model.resources import NOTHING, Resources
from coda.model.world import ArraySizes, Node, World
from coda.nodes.bottleneck import Bottlenecks
from coda.nodes.candidates import Score
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import NodeSearch, RankClass
from coda.policy.config import Component, PolicyConfig
from coda.policy.node_score import Mix, Scorer
from coda.policy.order import SortKey
from coda.policy.policies import policy_of
from coda.snapshots import changed_keys, removed_and_added

_SPARE_POOLS: Final = 256  # pools, kinds and amounts nobody asks for any more, kept in case somebody does
_SPARE_KINDS: Final = 1000
_SPARE_AMOUNTS: Final = 2000


class PlannerCache:
    """Give one to every `decide` of one planner. Not for two threads at once. A round that raises empties it."""

    def __init__(self) -> None:
        self._index: WorldIndex | None = None

    def about(self, world: World, config: PolicyConfig) -> WorldIndex:
        """What is known about this world, for one round; `keep` it when the round is over."""
        index, self._index = self._index, None
        if index is None or (index.config is not config and index.config != config):
            index = WorldIndex(config)
        index.follow(world)
        return index

    def keep(self, index: WorldIndex) -> None:
        """The round is over, and this is what it leaves for the next."""
        self._index = index


class WorldIndex:
    """One world, prepared for decisions about it."""

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config
        self.policy = policy_of(config.policy)
        self.shares = Usage(self.policy.fairness) if self.policy.fairness else None
        rule = self.policy.preempts
        self.running = RunningJobs(rule, self.shares) if rule is not None else None
        self.nodes_version = 0  # another one: nodes came, went, or changed
        self.queue = self._empty_queue()
        self.inadmissible = InadmissibleClasses()
        self.planned: dict[JobId, Job] = {}  # all with `ranks_without_pods` or `growth_m`
        self.wishing: dict[JobId, Job] = {}  # all with an `open_wish`
        self.bottlenecks = Bottlenecks()
        self.holdings = Holdings(config.refusal_holders)
        self.reservable: dict[Hashable, ReservableNodes] = {}  # whatever was asked for, the latest last
        self._world = World(nodes=())
        self._sizes: ArraySizes | None = None
        self._withheld_by_node: dict[str, Resources] = {}
        self._started: dict[JobId, tuple[str, ...]] = {}  # in this round, with their nodes
        self._grown: set[str] = set()  # nodes that jobs took more of in this round
        self._look_at(())

    def follow(self, world: World) -> None:
        """Go from the world before to this one. O(nodes + jobs) comparisons of pointers, and work for what changed."""
        before, self._world = self._world, world
        if self.shares is not None:
            self.shares.follow(world)
        gone, come = removed_and_added(before.jobs, world.jobs)
        touched = self._follow_holders(gone, come)
        if gone or come or world.quotas or before.quotas:
            self._follow_queue(gone, come)
        touched.update(changed_keys(before.used, world.used))
        if world.in_flight or before.in_flight:
            touched.update(changed_keys(before.in_flight, world.in_flight))
        self._follow_nodes(before.nodes, touched)
        self.inadmissible.admit(self.queue.take_new_classes())

    def rank_class(self, gang_class: GangClass) -> RankClass:
        """What is known about the gangs of this shape."""
        rank_class: RankClass | None = gang_class.rank_class
        if rank_class is None:
            rank_class = gang_class.rank_class = self.search.rank_class(gang_class.job)
        return rank_class

    def rank_class_anywhere(self, gang_class: GangClass) -> RankClass:
        """The same, were they content with any domains."""
        if gang_class.job.within is None:
            return self.rank_class(gang_class)
        rank_class: RankClass | None = gang_class.anywhere
        if rank_class is None:
            rank_class = gang_class.anywhere = self.search.rank_class_anywhere(gang_class.job)
        return rank_class

    def start(self, job: Job, shares: list[tuple[int, int]]) -> tuple[str, ...]:
        """The job starts in this round with so many ranks on each of these nodes, which are taken. Rank -> node."""
        nodes = tuple(self.capacity.nodes[number].name for number, ranks in shares for _ in range(ranks))
        for number, ranks in shares:
            self.capacity.take(number, job.request * ranks)
        self._add(job, nodes)
        self._started[job.id] = nodes
        if self.arrays is not None:
            self.arrays.follow(number for number, _ in shares)
        return nodes

    def grow(self, growth_m: Mapping[int, int]) -> None:
        """A job takes so many more millicores of each of these nodes in this round."""
        for number, cpu_m in growth_m.items():
            free = self.capacity.free(number)
            self.capacity.put(number, free.with_cpu(free.cpu_m - cpu_m))
            self._grown.add(self.capacity.nodes[number].name)
        if self.arrays is not None:
            self.arrays.follow(growth_m)

    def sort_key(self, queued: QueuedJob) -> SortKey:
        """When a job is tried now: its party's share first, where shares count, then its turn in the queue."""
        return queued.sort_key if self.shares is None else (self.shares.rank(queued.job), queued.sort_key)

    def _add(self, job: Job, nodes: tuple[str, ...]) -> None:
        self.holdings.add(job, nodes)
        if self.shares is not None:
            self.shares.hold(job, len(nodes))
        if self.arrays is not None:
            self.arrays.hold(job, nodes, +1)
        if self.running is not None:
            self.running.hold(job, nodes, +1)

    def _remove(self, holding: Holding) -> None:
        job, nodes = holding
        self.holdings.remove(job.id)
        if self.shares is not None:
            self.shares.hold(job, -len(nodes))
        if self.arrays is not None:
            self.arrays.hold(job, nodes, -1)
        if self.running is not None:
            self.running.hold(job, nodes, -1)

    def started(self) -> Collection[JobId]:
        """The jobs that start in this round."""
        return self._started.keys()

    def _follow_holders(self, gone: list[Job], come: list[Job]) -> set[str]:
        """Count what these hold no more, and what those do. What the last round gave away counts no more where it is
        not in the world now. Returns the nodes where anything of that may change what is free, or who holds it."""
        touched, self._grown = self._grown, set()
        started, self._started = self._started, {}
        new_by_id = {job.id: job for job in come}
        for job_id in (*started, *(job.id for job in gone)):
            if job_id not in new_by_id and (holding := self.holdings.of(job_id)) is not None:
                self._remove(holding)
                touched.update(holding.nodes)
        for nodes in started.values():
            touched.update(nodes)
        for job in gone:
            self._withhold(job, -1, touched)
            self.planned.pop(job.id, None)
            self.wishing.pop(job.id, None)
        for job in come:
            self._hold(job, touched)
            self._withhold(job, +1, touched)
            if job.placement is not None:
                if ranks_without_pods(job) or growth_m(job):
                    self.planned[job.id] = job
                if job.wish is not None and open_wish(job) is not None:
                    self.wishing[job.id] = job
        return touched

    def _hold(self, job: Job, touched: set[str]) -> None:
        """Count what the job holds now, and touch the nodes where that is not what it held."""
        nodes, holding = nodes_held(job), self.holdings.of(job.id)
        if holding is not None and holding.nodes == nodes and holds_the_same(job, holding.job):
            if stands_alike(job, holding.job):
                return
            self._renew(job, holding)
        else:
            if holding is not None:
                self._remove(holding)
                touched.update(holding.nodes)
            if nodes:
                self._add(job, nodes)
        touched.update(nodes)

    def _renew(self, job: Job, holding: Holding) -> None:
        self.holdings.renew(job)
        if self.arrays is not None:
            self.arrays.hold(job, holding.nodes, +1)
        if self.running is not None:
            self.running.hold(holding.job, holding.nodes, -1)
            self.running.hold(job, holding.nodes, +1)

    def _withhold(self, job: Job, sign: int, touched: set[str]) -> None:
        if job.placement is None and not job.unbound:
            return
        for node, share in withheld_shares(job).items():
            held = self._withheld_by_node.pop(node, NOTHING)
            held = held + share if sign > 0 else held - share
            if held.gpus or held.cpu_m or held.memory_bytes or held.pods or any(held.other.values()):
                self._withheld_by_node[node] = held
            touched.add(node)

    def _follow_queue(self, gone: list[Job], come: list[Job]) -> None:
        limited = frozenset(quota.namespace for quota in self._world.quotas)
        if limited == self.queue.limited:
            self.queue.change([job for job in gone if is_waiting(job)], [job for job in come if is_waiting(job)])
            return
        self.queue = self._empty_queue(limited)
        self.inadmissible = InadmissibleClasses()
        self.queue.change((), filter(is_waiting, self._world.jobs))

    def _empty_queue(self, limited: frozenset[str] = frozenset()) -> Queue:
        fairness = self.policy.fairness
        return Queue(limited, self.policy.order, fairness.party if fairness else None)

    def _follow_nodes(self, before: tuple[Node, ...], touched: set[str]) -> None:
        world = self._world
        gone, come = removed_and_added(before, world.nodes)
        number_by_name = self.capacity.number_by_name
        divided_anew = self.arrays is not None and (come or self._sizes is not world.array_sizes)
        if divided_anew or self._is_outgrown() or not _are_the_same(gone, come):
            self._look_anew()
            touched = set(self.capacity.number_by_name)
        elif come:
            moved = [self.search.replace_node(number_by_name[node.name], node) for node in come]
            touched.update(node.name for node in come)
            self._nodes_changed(match_others=any(moved))
        takers = tuple(taker for taker in (world.used, world.in_flight, self._withheld_by_node) if taker)
        capacity = self.capacity
        numbers = [number for name in touched if (number := capacity.number_by_name.get(name)) is not None]
        for number in numbers:
            capacity.put(number, free_on(capacity.nodes[number], takers))
        if self.arrays is not None:
            self.arrays.follow(numbers)

    def _is_outgrown(self) -> bool:
        gang_classes = len(self.queue.class_by_key)
        return (
            len(self.search.groups_by_key) > _SPARE_POOLS + 2 * gang_classes
            or len(self.search.rank_classes) > _SPARE_KINDS + 4 * gang_classes
            or len(self.capacity.amounts) > _SPARE_AMOUNTS + 8 * len(self.capacity.nodes)
        )

    def _look_anew(self) -> None:
        self._look_at(self._world.nodes)
        self.bottlenecks = Bottlenecks()
        self.reservable = {}
        for gang_class in self.queue.class_by_key.values():
            gang_class.rank_class = gang_class.anywhere = None
            gang_class.ways = {}
        self._nodes_changed(match_others=True)

    def _look_at(self, nodes: tuple[Node, ...]) -> None:
        scorer, mix = self.policy.score, self.config.mix
        score: Score | None = None
        if scorer is not None:
            score = partial(_scored, scorer, mix)
        self.capacity = FreeCapacity(nodes, self.config.levels, tells_sizes=score is not None)
        self.search = NodeSearch(self.capacity, self.config, score)
        self.arrays: ArrayCapacity | None = None
        if self.policy.has_arrays and Component.ARRAYS not in self.config.without:
            self._sizes = self._world.array_sizes
            self.arrays = ArrayCapacity(self.search, self.config, self._sizes, score)
            for job in self._world.jobs:
                self.arrays.hold(job, nodes_held(job), +1)

    def _nodes_changed(self, *, match_others: bool) -> None:
        self.nodes_version += 1
        self.inadmissible = InadmissibleClasses()
        self.inadmissible.admit(self.queue.class_by_key.values())
        if self.shares is not None:
            self.shares.count_nodes(self.capacity.nodes)
        if match_others:
            self.holdings.nodes_changed(self.capacity.number_by_name)


def _are_the_same(gone: list[Node], come: list[Node]) -> bool:
    """True when the nodes that came are those that left, by name and by labels."""
    labels_by_name = {node.name: node.labels for node in come}
    return len(gone) == len(come) and all(labels_by_name.get(node.name) == node.labels for node in gone)


def _scored(scorer: Scorer, mix: Mix, request: Resources, free: Resources, size: Resources) -> tuple[float, ...]:
    return scorer(request, free, size, mix)
