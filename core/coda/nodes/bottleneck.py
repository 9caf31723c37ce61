"""Which resource is short, judged by what a cycle leaves free.

A resource is the bottleneck if the gang fits without asking for it. Every question is about nodes that have few
distinct free amounts, so its terms are kept for each amount.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from coda.model.resources import CPU, GPUS, MEMORY, PODS, Resources, amount_free, key_of_amount
from coda.nodes.node_groups import NodeGroups
from coda.nodes.node_search import RankClass
from coda.wording import counted, free_text, listed, plural

_PLENTY = 2**31
"""Ranks on one node if they ask for nothing: more than any gang has."""


_MOST_LIMITS = 3  # named in one clause, so that a sentence stays short


class Limit(NamedTuple):
    """Too little of one resource on some nodes: `ranks` that it is enough for, at most `most` of it on one node."""

    name: str
    ranks: int
    most: int


class Side(NamedTuple):
    """What the nodes with enough of one resource lack. With `enough_of` None: what every node lacks."""

    enough_of: str | None
    limits: tuple[Limit, ...]


class Bottlenecks:
    """The bottleneck of each class of ranks."""

    def __init__(self) -> None:
        self._ranks_without: dict[tuple[RankClass, str], RankTotal] = {}
        self._free: dict[tuple[RankClass, str], RankTotal] = {}
        self._ranks_with: dict[tuple[RankClass, tuple[str, ...]], RankTotal] = {}
        # The same by the nodes and what is asked for: rank classes differ more than these.
        self._shared: dict[tuple[NodeGroups, Hashable], RankTotal] = {}
        self._rest_by_key: dict[tuple[NodeGroups, Hashable], RankTotal] = {}
        self._free_by_name: dict[tuple[NodeGroups, str], RankTotal] = {}
        self._most: dict[tuple[NodeGroups, str, tuple[str, int] | None], MostFree] = {}

    def lacking(self, rank_class: RankClass, replicas: int) -> str | None:
        """Return the bottleneck. Ties: GPUs, cores, memory, pod slots, then others by name."""
        return next((name for name in rank_class.asked if self._ranks(rank_class, name) >= replicas), None)

    def alternatives(self, rank_class: RankClass, replicas: int, name: str) -> tuple[Side, ...]:
        """Return what nodes with enough of `name` lack, if both `name` and another resource are a bottleneck.

        If no node has enough of both, also what nodes with enough of the other lack. Empty if there is no other."""
        if self._ranks_of(rank_class, name) < replicas:
            return ()  # the usual case: too little of `name` even alone
        others = (other for other in rank_class.asked if other != name)
        other = next((other for other in others if self._ranks(rank_class, other) >= replicas), None)
        if other is None or (ranks := self._ranks_of(rank_class, name, other)) >= replicas:
            return ()
        pairs = ((name, other),) if ranks else ((name, other), (other, name))
        return tuple(Side(first, (self._limit(rank_class, second, first),)) for first, second in pairs)

    def shortages(self, rank_class: RankClass, replicas: int) -> tuple[Side, ...]:
        """Return what is short if there is no single bottleneck.

        First the resources that even all nodes have too little of. If there are not two of these, then the first
        resource whose nodes have too little of another. Empty if only three or more resources together are in the way,
        or no node is usable."""
        if not rank_class.groups.amount_by_node:
            return ()
        ranks = {name: self._ranks_of(rank_class, name) for name in rank_class.asked}
        scarce = [name for name in ranks if ranks[name] < replicas][:_MOST_LIMITS]
        sides = [Side(None, tuple(self._limit(rank_class, name) for name in scarce))] if scarce else []
        enough = [name for name in ranks if ranks[name] >= replicas] if len(scarce) < 2 else []
        for first in enough:
            beside = [name for name in enough if name != first and self._ranks_of(rank_class, first, name) < replicas]
            if beside:
                limits = tuple(self._limit(rank_class, name, first) for name in beside[:_MOST_LIMITS])
                return (*sides, Side(first, limits))
        return tuple(sides)

    def is_enough(self, rank_class: RankClass, name: str, replicas: int) -> bool:
        """True if all usable nodes together have as much of a resource as the gang needs."""
        return self.free(rank_class, name) >= rank_class.asked[name] * replicas

    def free(self, rank_class: RankClass, name: str) -> int:
        """Return how much of a resource is free on all usable nodes together."""
        total = self._free.get((rank_class, name))
        if total is None:
            groups = rank_class.groups
            total = self._free_by_name.get((groups, name))
            if total is None:
                total = RankTotal(groups, lambda free: max(0, amount_free(free, name)))
                self._free_by_name[groups, name] = total
            self._free[rank_class, name] = total
        return total.now()

    def _limit(self, rank_class: RankClass, name: str, beside: str | None = None) -> Limit:
        """How much of a resource there is; with `beside`, only on nodes with enough of that resource for a rank."""
        ranks = self._ranks_of(rank_class, name, *([beside] if beside else []))
        if ranks:
            return Limit(name, ranks, 0)  # then the most on one node says nothing
        least = (beside, rank_class.asked[beside]) if beside else None
        key = (rank_class.groups, name, least)
        most = self._most.get(key)
        if most is None:
            most = self._most[key] = MostFree(rank_class.groups, partial(_free_beside, name, least))
        return Limit(name, 0, most.now())

    def _ranks_of(self, rank_class: RankClass, *names: str) -> int:
        """How many ranks fit if they ask for these resources only."""
        total = self._ranks_with.get((rank_class, names))
        if total is None:
            groups, request = rank_class.groups, rank_class.request
            key = (groups, frozenset((name, rank_class.asked[name]) for name in names))
            total = self._shared.get(key)
            if total is None:
                total = self._shared[key] = RankTotal(groups, _only(request, *names).times_in)
            self._ranks_with[rank_class, names] = total
        return total.now()

    def _ranks(self, rank_class: RankClass, name: str) -> int:
        """How many ranks fit if they ask for nothing of one resource."""
        total = self._ranks_without.get((rank_class, name))
        if total is None:
            rest = _without(rank_class.request, name)
            key = (rank_class.groups, key_of_amount(rest))
            total = self._rest_by_key.get(key)
            if total is None:
                asks = rest.gpus or rest.cpu_m or rest.memory_bytes or rest.pods or any(rest.other.values())
                total = RankTotal(rank_class.groups, rest.times_in if asks else lambda _free: _PLENTY)
                self._rest_by_key[key] = total
            self._ranks_without[rank_class, name] = total
        return total.now()


def _free_beside(name: str, least: tuple[str, int] | None, free: Resources) -> int | None:
    """How much of a resource is free; None if less of another one is free than `least`."""
    return amount_free(free, name) if least is None or amount_free(free, least[0]) >= least[1] else None


def _only(request: Resources, *names: str) -> Resources:
    return Resources(
        gpus=request.gpus if GPUS in names else 0,
        cpu_m=request.cpu_m if CPU in names else 0,
        memory_bytes=request.memory_bytes if MEMORY in names else 0,
        pods=request.pods if PODS in names else 0,
        other={name: amount for name, amount in request.other.items() if name in names},
    )


def _without(request: Resources, name: str) -> Resources:
    if name == GPUS:
        return replace(request, gpus=0)
    if name == CPU:
        return replace(request, cpu_m=0)
    if name == MEMORY:
        return replace(request, memory_bytes=0)
    if name == PODS:
        return replace(request, pods=0)
    return replace(request, other={other: amount for other, amount in request.other.items() if other != name})


class RankTotal:
    """A sum over nodes of what each is worth, which depends only on its free capacity."""

    def __init__(self, groups: NodeGroups, worth: Callable[[Resources], int]) -> None:
        self._groups = groups
        self._worth = worth
        self._worth_by_amount: dict[int, int] = {}
        self._place = -1
        self._sum = 0

    def now(self) -> int:
        """Return the sum. Refresh the groups first. O(moves since the last call), or O(amounts) if these are fewer."""
        moves, place = self._groups.moves, self._place
        if place == moves.end:
            return self._sum
        self._place = moves.end
        news = moves.since(place) if moves.end - place <= len(self._groups.nodes_by_amount) else None
        if place < 0 or news is None:
            self._sum = sum(self._of(amount) * nodes for amount, nodes in self._groups.nodes_by_amount.items())
        else:
            self._sum += sum(self._of(move.new) - self._of(move.old) for move in news)
        return self._sum

    def _of(self, amount: int | None) -> int:
        if amount is None:
            return 0
        worth = self._worth_by_amount.get(amount)
        if worth is None:
            worth = self._worth_by_amount[amount] = self._worth(self._groups.capacity.amounts[amount])
        return worth


class MostFree:
    """The most that one node is worth, which depends only on its free capacity. With None it does not count."""

    def __init__(self, groups: NodeGroups, worth: Callable[[Resources], int | None]) -> None:
        self._groups = groups
        self._worth = worth
        self._place = -1
        self._best: int | None = None  # the amount that has it; None: no node counts
        self._most = 0

    def now(self) -> int:
        """Return the most, at least 0. O(moves since the last call), or O(amounts) if fewer or if the best went."""
        moves, place, nodes_by_amount = self._groups.moves, self._place, self._groups.nodes_by_amount
        if place == moves.end:
            return self._most
        self._place = moves.end
        news = moves.since(place) if place >= 0 and moves.end - place <= len(nodes_by_amount) else None
        if news is None or self._best not in nodes_by_amount:
            self._best, self._most = None, 0
            self._raise_to(nodes_by_amount)
        else:
            self._raise_to(move.new for move in news if move.new in nodes_by_amount)
        return self._most

    def _raise_to(self, amounts: Iterable[int | None]) -> None:
        for amount in amounts:
            if amount is None:
                continue
            worth = self._worth(self._groups.capacity.amounts[amount])
            if worth is not None and (self._best is None or worth > self._most):
                self._best, self._most = amount, max(0, worth)


def sides_texts(sides: tuple[Side, ...], kind: str) -> list[str]:
    """Return which nodes lack what, in words. `kind` of nodes: "matching" or "usable"."""
    found = []
    for side in sides:
        if side.enough_of is not None:
            lacking = listed(_limit_text(limit) for limit in side.limits)
            found.append(f"{kind} nodes with enough {plural(side.enough_of)} have {lacking}")
            continue
        on_one = [_limit_text(limit) for limit in side.limits if not limit.ranks]
        together = [_limit_text(limit) for limit in side.limits if limit.ranks]
        found += [f"every {kind} node has {listed(on_one)}"] if on_one else []
        found += [f"all {kind} nodes together have {listed(together)}"] if together else []
    return found


def _limit_text(limit: Limit) -> str:
    if limit.ranks:
        return f"enough {plural(limit.name)} for only {counted(limit.ranks, 'rank')}"
    return f"{'at most ' if limit.most else ''}{free_text(limit.name, limit.most)}"
