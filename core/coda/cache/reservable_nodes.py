"""The nodes that can be reserved for a gang, best first: what each will hold once some jobs have ended.

Few nodes change from one cycle to the next, and only these are judged again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from coda.cache.holdings import Holdings
from coda.model.job import Job
from coda.model.resources import NOTHING, Resources
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import RankClass

Key = tuple[int, ...]
"""How good a node is, lowest first."""

LeftForOthers = Mapping[int, Resources]
"""What other jobs may take of each reserved node, by number."""


class ReservableNode(NamedTuple):
    """A node that can be reserved: how many ranks it will hold, and how many fit now."""

    number: int
    ranks: int
    ready: int


class Distances:
    """How far free amounts are from what a rank asks for."""

    def __init__(self, request: Resources) -> None:
        self._request = request
        self._index: dict[int, tuple[Resources, Key]] = {}  # by the identity of amounts: many nodes share one

    def to(self, free: Resources) -> Key:
        """Return minus the ranks that fit now, then the GPUs and millicores that one more rank lacks."""
        found = self._index.get(id(free))
        if found is None or found[0] is not free:
            if len(self._index) > _AMOUNTS:
                self._index.clear()
            found = self._index[id(free)] = (free, _distance(self._request, free))
        return found[1]


_AMOUNTS: Final = 20_000
"""Amounts whose distance is remembered: more than any planned cluster has."""


def _distance(request: Resources, free: Resources) -> Key:
    ready = request.times_in(free)
    return (
        -ready,
        max(0, request.gpus * (ready + 1) - free.gpus),
        max(0, request.cpu_m * (ready + 1) - free.cpu_m),
    )


class ReservableNodes:
    """The nodes of one rank class in order, in each domain, as they are once the jobs that began by `due_s` have ended.

    Best: most ranks fit already, then least must end. With None every job ends, and best is what holds most ranks when
    empty. Ties: the first by name."""

    def __init__(self, capacity: FreeCapacity, holdings: Holdings, rank_class: RankClass, due_s: float | None) -> None:
        self._distances = Distances(rank_class.request)
        self._capacity = capacity
        self._holdings = holdings
        self._groups = rank_class.groups
        self._request = rank_class.request
        self._domains = None if rank_class.within is None else capacity.levels[rank_class.within].domain_by_node
        self._due_s = due_s
        self._line_by_domain: dict[str, _Line] = {}  # one without a name, where no level is required
        self._key_by_node: dict[int, tuple[str, Key]] = {}  # of those in the lines
        self._judged_by_node: dict[int, ReservableNode] = {}  # those of them that were asked for
        self._places = (-1, -1)  # in the journals of free capacity and of the holdings

    def reserve(self, replicas: int) -> LeftForOthers | None:
        """Choose nodes that hold the whole gang; return what others may take of each. None if there are too few.

        The domain where fewest ranks are still to fit; ties: the first by name. Then the first nodes in order.
        O(log nodes) for each node that changed since the last call, O(nodes log nodes) at the first, and O(nodes that
        hold a rank), fewer where these are enough."""
        self._refresh()
        best: tuple[int, str, list[ReservableNode]] | None = None
        for domain, line in self._line_by_domain.items():
            chosen = self._filled(line, replicas)
            missing = sum(node.ranks - min(node.ranks, node.ready) for node in chosen)
            if chosen and (best is None or (missing, domain) < best[:2]):
                best = (missing, domain, chosen)
        if best is None:
            return None
        if self._due_s is None:
            return {node.number: NOTHING for node in best[2]}
        return {node.number: self._left_beside(node) for node in best[2]}

    def are_better(self, free_by_node: Mapping[int, Resources], left: LeftForOthers) -> frozenset[int]:
        """Return the nodes that, with this free, are better than the worst reserved one once others use `left`."""
        to, free = self._distances.to, self._capacity.free
        worst = max((to(free(number) - others), number) for number, others in left.items())
        return frozenset(number for number, amount in free_by_node.items() if (to(amount), number) < worst)

    def _refresh(self) -> None:
        nodes, holders = self._capacity.journal, self._holdings.watch()
        numbers, names = nodes.since(self._places[0]), holders.since(self._places[1])
        self._places = nodes.end, holders.end
        if numbers is None or names is None:
            self._line_by_domain.clear()
            self._key_by_node.clear()
            self._judged_by_node.clear()
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

    def _left_beside(self, node: ReservableNode) -> Resources:
        """What is free now and is not needed once the jobs have ended."""
        rest = self._free_later(node.number) - self._request * node.ranks
        return _least(self._capacity.free(node.number), rest)

    def _free_later(self, number: int) -> Resources:
        """What is free on a node once the jobs have ended."""
        free = self._capacity.free(number)
        for job, ranks in self._holdings.at(self._capacity.nodes[number].name):
            if self._ends(job):
                free = free + job.request * ranks
        return free

    def _nodes_where_jobs_end(self) -> set[int]:
        held = (nodes for job, nodes in self._holdings.all() if self._ends(job))
        numbers = map(self._capacity.number_by_name.get, chain.from_iterable(held))
        return {number for number in numbers if number is not None}

    def _ends(self, holder: Job) -> bool:
        due_s, placement = self._due_s, holder.placement
        return due_s is None or (placement is not None and placement.committed_s <= due_s)

    def _enter(self, number: int, *, may_gain: bool) -> None:
        """Add the node to its line, unless nothing fits now and no job ends there."""
        domain = "" if self._domains is None else self._domains[number]
        if domain is None:
            return
        capacity = self._capacity
        if self._due_s is None:
            key = self._distances.to(capacity.amounts[capacity.whole_amounts[number]])[:1]
        else:
            key = self._distances.to(capacity.amounts[capacity.free_amounts[number]])
            if not key[0] and not may_gain:
                return
        line = self._line_by_domain.get(domain)
        if line is None:
            line = self._line_by_domain[domain] = _Line()
        line.add(key, number)
        self._key_by_node[number] = (domain, key)

    def _leave(self, number: int) -> None:
        self._judged_by_node.pop(number, None)
        entry = self._key_by_node.pop(number, None)
        if entry is not None:
            domain, key = entry
            self._line_by_domain[domain].remove(key, number)

    def _filled(self, line: _Line, replicas: int) -> list[ReservableNode]:
        """The first that hold this many ranks together; none if all are too few. Useless nodes leave the line."""
        reservable: list[ReservableNode] = []
        useless: list[int] = []
        for number in line:
            node = self._judged_by_node.get(number) or self._judged(number)
            if node is None:
                useless.append(number)
                continue
            reservable.append(node if node.ranks <= replicas else node._replace(ranks=replicas))
            replicas -= reservable[-1].ranks
            if not replicas:
                break
        for number in reversed(useless):  # from the ends of their lists
            self._leave(number)
        return [] if replicas else reservable

    def _judged(self, number: int) -> ReservableNode | None:
        free, later = self._capacity.free(number), self._free_later(number)
        ready = -self._distances.to(free)[0]
        ranks = ready if later is free else self._request.times_in(later)
        if not ranks:
            return None
        node = self._judged_by_node[number] = ReservableNode(number, ranks, ready)
        return node


def _least(one: Resources, other: Resources) -> Resources:
    """Of each resource the smaller amount."""
    names = one.other.keys() | other.other.keys()
    return Resources(
        cpu_m=min(one.cpu_m, other.cpu_m),
        memory_bytes=min(one.memory_bytes, other.memory_bytes),
        gpus=min(one.gpus, other.gpus),
        pods=min(one.pods, other.pods),
        other={name: min(one.other.get(name, 0), other.other.get(name, 0)) for name in sorted(names)},
    )


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
