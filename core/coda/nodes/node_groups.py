"""Nodes that are alike, counted together: a demand's accepting nodes, grouped by what is free on them. What must not
live here: what any gang asks for.

Thousands of nodes have few different amounts free, so gangs judge amounts, not nodes, and all gangs with one demand
share the grouping.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from coda.nodes.free_capacity import FreeCapacity
from coda.snapshots import ChangeLog

Counts = dict[int, int]
"""Nodes by the number of the amount that is free on them."""


class GroupMove(NamedTuple):
    """A node went from one free amount to another; None where it joined or left the pool."""

    old: int | None
    new: int | None


class NodeGroups:
    """Some nodes of a room by their free amounts, all together and for each domain of each level."""

    def __init__(self, capacity: FreeCapacity, numbers: Iterable[int]) -> None:
        self.capacity = capacity
        self.amount_by_node: dict[int, int] = {}
        self.nodes_by_amount: Counts = {}
        self.domains: tuple[dict[str, Counts], ...] = tuple({} for _ in capacity.levels)  # of more than one node
        self.moves: ChangeLog[GroupMove] = ChangeLog(1000)
        self._heaps: dict[int, list[int]] = {}
        self.place = capacity.journal.end  # up to where this follows the room
        for number in sorted(numbers):
            self.add(number)

    def refresh(self) -> None:
        """Follow what changed in the room since the last call. O(nodes whose room changed)."""
        journal = self.capacity.journal
        if self.place == journal.end:
            return
        numbers = journal.since(self.place)
        self.place = journal.end
        amount_by_node, free_amounts = self.amount_by_node, self.capacity.free_amounts
        for number in list(amount_by_node) if numbers is None else numbers:
            old = amount_by_node.get(number)
            if old is not None and old != free_amounts[number]:
                self._count(number, old, -1)
                self._enter(number, old)

    def add(self, number: int) -> None:
        """A node that accepts the demand from now on."""
        self._enter(number, None)

    def remove(self, number: int) -> None:
        """A node that accepts the demand no more."""
        amount = self.amount_by_node.pop(number)
        self._count(number, amount, -1)
        self.moves.add(GroupMove(amount, None))

    def first_node(self, amount: int) -> int:
        """The first by name of the nodes with this amount free; there must be one."""
        heap = self._heaps[amount]
        while self.amount_by_node.get(heap[0]) != amount:
            heappop(heap)
        return heap[0]

    def _enter(self, number: int, old: int | None) -> None:
        amount = self.capacity.free_amounts[number]
        self.amount_by_node[number] = amount
        self._count(number, amount, 1)
        heap = self._heaps.setdefault(amount, [])
        heappush(heap, number)
        if len(heap) > 2 * self.nodes_by_amount[amount] + 16:  # nodes that came and went more than once
            heap[:] = {other for other in heap if self.amount_by_node.get(other) == amount}
            heapify(heap)
        self.moves.add(GroupMove(old, amount))

    def _count(self, number: int, amount: int, nodes: int) -> None:
        _add(self.nodes_by_amount, amount, nodes)
        if not self.domains:
            return
        for level, counts_by_domain in zip(self.capacity.levels, self.domains, strict=True):
            domain = level.shared_by_node[number]
            if domain is not None:
                _add(counts_by_domain.setdefault(domain, {}), amount, nodes)


def _add(counts: Counts, amount: int, nodes: int) -> None:
    left = counts.get(amount, 0) + nodes
    if left:
        counts[amount] = left
    else:
        del counts[amount]
