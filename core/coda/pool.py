"""Nodes that are alike, counted together: a demand's accepting nodes, grouped by what is free on them. What must not
live here: what any gang asks for.

Thousands of nodes have few different amounts free, so gangs judge amounts, not nodes, and all gangs with one demand
share the grouping. Room only shrinks, so a node never comes back to an amount it has left; other nodes may.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from coda.room import Room

Counts = dict[int, int]
"""Nodes by the number of the amount that is free on them."""


class Pool:
    """Some nodes of a room by their free amounts, all together and for each domain of each level."""

    def __init__(self, room: Room, numbers: Iterable[int]) -> None:
        self._room = room
        self._seen = len(room.journal)
        self.amount_by_node: dict[int, int] = {}
        self.nodes_by_amount: Counts = {}
        self.domains: tuple[dict[str, Counts], ...] = tuple({} for _ in room.levels)  # of more than one node
        self.amounts_by_gpus: dict[int, list[int]] = {}
        self.new_amounts: list[int] = []  # whenever an amount gets its first node, again after it had none left
        self._heaps: dict[int, list[int]] = {}
        for number in sorted(numbers):
            self._enter(number)

    def refresh(self) -> None:
        """Follow what was taken since the last call. O(nodes taken from)."""
        journal = self._room.journal
        for position in range(self._seen, len(journal)):
            number = journal[position]
            if number in self.amount_by_node:
                self._count(number, self.amount_by_node[number], -1)
                self._enter(number)
        self._seen = len(journal)

    def first_node(self, amount: int) -> int:
        """The first by name of the nodes with this amount free; there must be one."""
        heap = self._heaps[amount]
        while self.amount_by_node[heap[0]] != amount:
            heappop(heap)
        return heap[0]

    def _enter(self, number: int) -> None:
        amount = self._room.free_amounts[number]
        self.amount_by_node[number] = amount
        if amount not in self._heaps:
            self._heaps[amount] = []
            self.amounts_by_gpus.setdefault(self._room.amounts[amount].gpus, []).append(amount)
        if not self.nodes_by_amount.get(amount):
            self.new_amounts.append(amount)
        heappush(self._heaps[amount], number)
        self._count(number, amount, 1)

    def _count(self, number: int, amount: int, nodes: int) -> None:
        self.nodes_by_amount[amount] = self.nodes_by_amount.get(amount, 0) + nodes
        for level, counts_by_domain in zip(self._room.levels, self.domains, strict=True):
            domain = level.shared_by_node[number]
            if domain is not None:
                counts = counts_by_domain.setdefault(domain, {})
                left = counts.get(amount, 0) + nodes
                if left:
                    counts[amount] = left
                else:
                    del counts[amount]
