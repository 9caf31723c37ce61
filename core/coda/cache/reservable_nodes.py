"""The nodes that may be kept for a gang: what each will hold once some jobs have ended, the best first, kept up to date
while the world changes. What must not live here: which gang has nodes kept, and what that means for others.

From one round to the next few nodes change: only these are looked at again, and of the others only those are named that
the gang needs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from coda.cache.holdings import Holdings
from coda.model.job import Job
from coda.model.resources import Resources
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import RankClass

Key = tuple[int, ...]
"""How good a node is, lowest first."""


class ReservableNode(NamedTuple):
    """A node that may be kept: how many ranks it will hold, and fits now."""

    number: int
    ranks: int
    ready: int


class Distances:
    """How far amounts of free room are from what a rank asks for."""

    def __init__(self, request: Resources) -> None:
        self._request = request
        self._index: dict[int, tuple[Resources, Key]] = {}  # by the identity of amounts: many nodes have the same

    def to(self, free: Resources) -> Key:
        """Minus the ranks that fit now; then the GPUs and millicores that one more lacks."""
        found = self._index.get(id(free))
        if found is None or found[0] is not free:
            if len(self._index) > _AMOUNTS:
                self._index.clear()
            found = self._index[id(free)] = (free, _distance(self._request, free))
        return found[1]


_AMOUNTS = 20_000
"""Of so many amounts the distances are remembered: more than differ on any cluster of a size that is planned for."""


def _distance(request: Resources, free: Resources) -> Key:
    ready = request.times_in(free)
    return (
        -ready,
        max(0, request.gpus * (ready + 1) - free.gpus),
        max(0, request.cpu_m * (ready + 1) - free.cpu_m),
    )


class ReservableNodes:
    """The nodes of one kind of gang in order, in each domain, and what they hold once the jobs have ended that began by
    `due_s`: best first are those where most ranks fit already, then where least must end. With None, all jobs end, and
    best are those that hold most ranks when nothing runs there. Ties: the first by name."""

    def __init__(self, capacity: FreeCapacity, holdings: Holdings, rank_class: RankClass, due_s: float | None) -> None:
        self.distances = Distances(rank_class.request)
        self._capacity = capacity
        self._holdings = holdings
        self._groups = rank_class.groups
        self._request = rank_class.request
        self._domains = None if rank_class.within is None else capacity.levels[rank_class.within].domain_by_node
        self._due_s = due_s
        self._line_by_domain: dict[str, _Line] = {}  # one without a name, where no level is required
        self._key_by_node: dict[int, tuple[str, Key]] = {}  # of those in the lines
        self._site_by_node: dict[int, ReservableNode] = {}  # those of them that were asked for
        self._places = (-1, -1)  # in the journals of the room and of the holdings

    def refresh(self) -> None:
        """Follow what changed since the last call. O(log nodes) for each node that did; O(nodes log nodes) at first."""
        nodes, holders = self._capacity.journal, self._holdings.watch()
        numbers, names = nodes.since(self._places[0]), holders.since(self._places[1])
        self._places = nodes.end, holders.end
        if numbers is None or names is None:
            self._line_by_domain.clear()
            self._key_by_node.clear()
            self._site_by_node.clear()
            ending = None if self._due_s is None else self._nodes_where_jobs_end()
            for number in sorted(self._groups.amount_by_node):
                self._enter(number, may_gain=ending is None or number in ending)
            return
        number_by_name = self._capacity.number_by_name
        held = [number_by_name[name] for name in names if name in number_by_name]
        for number in dict.fromkeys(chain(numbers, held)):
            self._leave(number)
            if number in self._groups.amount_by_node:
                self._enter(number, may_gain=True)

    def chosen(self, replicas: int) -> list[ReservableNode] | None:
        """Nodes that hold the whole gang, the first in order; of domains that where fewest ranks are still to fit, then
        the first by name. None where there are too few. O(nodes that hold a rank), fewer where these are enough."""
        found: list[tuple[int, str, list[ReservableNode]]] = []
        for domain, line in self._line_by_domain.items():
            reservable = self._filled(line, replicas)
            if reservable:
                missing = sum(site.ranks - min(site.ranks, site.ready) for site in reservable)
                found.append((missing, domain, reservable))
        return min(found, key=lambda one: one[:2])[2] if found else None

    def capacity(self, number: int) -> Resources:
        """What will be free on a node."""
        capacity = self._capacity.free(number)
        for job, ranks in self._holdings.at(self._capacity.nodes[number].name):
            if self._ends(job):
                capacity = capacity + job.request * ranks
        return capacity

    def _nodes_where_jobs_end(self) -> set[int]:
        held = (nodes for job, nodes in self._holdings.all() if self._ends(job))
        numbers = map(self._capacity.number_by_name.get, chain.from_iterable(held))
        return {number for number in numbers if number is not None}

    def _ends(self, holder: Job) -> bool:
        due_s, placement = self._due_s, holder.placement
        return due_s is None or (placement is not None and placement.committed_s <= due_s)

    def _enter(self, number: int, *, may_gain: bool) -> None:
        """Line the node up, unless nothing fits now and nobody ends there."""
        domain = "" if self._domains is None else self._domains[number]
        if domain is None:
            return
        capacity = self._capacity
        if self._due_s is None:
            key = self.distances.to(capacity.amounts[capacity.whole_amounts[number]])[:1]
        else:
            key = self.distances.to(capacity.amounts[capacity.free_amounts[number]])
            if not key[0] and not may_gain:
                return
        line = self._line_by_domain.get(domain)
        if line is None:
            line = self._line_by_domain[domain] = _Line()
        line.add(key, number)
        self._key_by_node[number] = (domain, key)

    def _leave(self, number: int) -> None:
        self._site_by_node.pop(number, None)
        entry = self._key_by_node.pop(number, None)
        if entry is not None:
            domain, key = entry
            self._line_by_domain[domain].remove(key, number)

    def _filled(self, line: _Line, replicas: int) -> list[ReservableNode]:
        """The first that hold so many ranks together; none where all are too few. Those without room leave the line."""
        reservable: list[ReservableNode] = []
        useless: list[int] = []
        for number in line:
            site = self._site_by_node.get(number) or self._judged(number)
            if site is None:
                useless.append(number)
                continue
            reservable.append(site if site.ranks <= replicas else site._replace(ranks=replicas))
            replicas -= reservable[-1].ranks
            if not replicas:
                break
        for number in reversed(useless):  # from the ends of the lists that they are in
            self._leave(number)
        return [] if replicas else reservable

    def _judged(self, number: int) -> ReservableNode | None:
        free, capacity = self._capacity.free(number), self.capacity(number)
        ready = -self.distances.to(free)[0]
        ranks = ready if capacity is free else self._request.times_in(capacity)
        if not ranks:
            return None
        site = self._site_by_node[number] = ReservableNode(number, ranks, ready)
        return site


class _Line:
    """Nodes in order of their keys, then of their numbers."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._numbers_by_key: dict[Key, list[int]] = {}

    def __iter__(self) -> Iterator[int]:
        return (number for key in self._keys for number in self._numbers_by_key[key])

    def add(self, key: Key, number: int) -> None:
        numbers = self._numbers_by_key.get(key)
        if numbers is None:
            insort(self._keys, key)
            self._numbers_by_key[key] = [number]
        elif numbers[-1] < number:
            numbers.append(number)
        else:
            insort(numbers, number)

    def remove(self, key: Key, number: int) -> None:
        numbers = self._numbers_by_key[key]
        del numbers[bisect_left(numbers, number)]
        if not numbers:
            del self._numbers_by_key[key]
            del self._keys[bisect_left(self._keys, key)]
