"""Which resource is short, judged on what a round leaves free. What must not live here: words, and choices of nodes.

A resource is what is lacking when the gang would fit if it asked for none of it. Both questions are sums over nodes
that have few different amounts free, so they are kept per amount and follow the room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coda.model.resources import CPU, GPUS, MAIN, MEMORY, PODS, Resources, amount_of
from coda.nodes.node_groups import NodeGroups
from coda.nodes.node_search import RankClass

_PLENTY = 2**31
"""Ranks on a node of gangs that ask for nothing: more than any gang has."""


class Bottlenecks:
    """What each kind of gang lacks."""

    def __init__(self) -> None:
        self._ranks_without: dict[tuple[RankClass, str], RankTotal] = {}
        self._free: dict[tuple[RankClass, str], RankTotal] = {}

    def lacking(self, rank_class: RankClass, replicas: int) -> str | None:
        """The resource that alone stands in the way; GPUs, cores, memory, pod slots, others by name when several do."""
        names = (name for name in (*MAIN, *sorted(rank_class.request.other)) if amount_of(rank_class.request, name))
        return next((name for name in names if self._ranks(rank_class, name) >= replicas), None)

    def is_enough(self, rank_class: RankClass, name: str, replicas: int) -> bool:
        """True when all usable nodes together have as much of a resource as the gang needs, wherever it is."""
        total = self._free.get((rank_class, name))
        if total is None:
            total = self._free[rank_class, name] = RankTotal(
                rank_class.groups, lambda free: max(0, amount_of(free, name))
            )
        return total.now() >= amount_of(rank_class.request, name) * replicas

    def _ranks(self, rank_class: RankClass, name: str) -> int:
        """How many ranks would fit, did they ask for nothing of one resource."""
        total = self._ranks_without.get((rank_class, name))
        if total is None:
            rest = _without(rank_class.request, name)
            asks = rest.gpus or rest.cpu_m or rest.memory_bytes or rest.pods or any(rest.other.values())
            total = RankTotal(rank_class.groups, rest.times_in if asks else lambda _free: _PLENTY)
            self._ranks_without[rank_class, name] = total
        return total.now()


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
    """A sum over the nodes of a pool of what each is worth, which depends on what is free on it alone."""

    def __init__(self, groups: NodeGroups, worth: Callable[[Resources], int]) -> None:
        self._groups = groups
        self._worth = worth
        self._worth_by_amount: dict[int, int] = {}
        self._place = -1
        self._sum = 0

    def now(self) -> int:
        """The sum. O(moves since the last call), or O(amounts) where these are fewer. The pool must be refreshed."""
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
