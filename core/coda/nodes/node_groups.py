"""Eligible nodes, grouped by their free capacity.

Thousands of nodes have few distinct free amounts. So gangs judge amounts, not nodes, and all gangs with the same
constraints share the groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from coda.change_log import ChangeLog
from coda.model.resources import Resources
from coda.nodes.free_capacity import FreeCapacity

Counts = dict[int, int]
"""How many nodes have each free amount, by the number of the amount."""


class GroupMove(NamedTuple):
    """A node went from one free amount to another; None where it joined or left the groups."""

    old: int | None
    new: int | None


class NodeGroups:
    """Some nodes by their free amounts: all of them, and for each domain of each level.

    `disliked`: those that come last among equals. One that joins or leaves these is removed and added again."""

    def __init__(self, capacity: FreeCapacity, numbers: Iterable[int], disliked: Set[int] = frozenset()) -> None:
        self.capacity = capacity
        self.amount_by_node: dict[int, int] = {}
        self.nodes_by_amount: Counts = {}
        self.domains: tuple[dict[str, Counts], ...] = tuple({} for _ in capacity.levels)  # of more than one node
        self.domains_by_product: tuple[dict[str, dict[str, Counts]], ...] = (  # the same, where there are several
            tuple({} for _ in capacity.levels) if capacity.products else ()
        )
        self.moves: ChangeLog[GroupMove] = ChangeLog(1000)
        self.disliked = disliked
        self._nodes = len(capacity.nodes)
        self._heaps: dict[int, list[int]] = {}  # numbers; of disliked nodes, that many higher
        self.place = capacity.journal.end  # how far the journal is read
        for number in sorted(numbers):
            self.add(number)

    def refresh(self) -> None:
        """Read what changed since the last call. O(nodes whose free capacity changed)."""
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
        """Add a node that became eligible."""
        self._enter(number, None)

    def remove(self, number: int) -> None:
        """Remove a node that is no longer eligible."""
        amount = self.amount_by_node.pop(number)
        self._count(number, amount, -1)
        self.moves.add(GroupMove(amount, None))

    def first_node(self, amount: int) -> int:
        """Return the first node by name with this amount free; disliked ones come last. There must be one."""
        heap = self._heaps[amount]
        while not self._is_valid(heap[0], amount):
            heappop(heap)
        return heap[0] % self._nodes

    def count_disliked(self, numbers: Iterable[int]) -> int:
        """Return how many of these nodes are in the groups and disliked. O(1) if no node is."""
        if not self.disliked:
            return 0
        return sum([number in self.disliked and number in self.amount_by_node for number in numbers])

    def _is_valid(self, entry: int, amount: int) -> bool:
        number = entry % self._nodes
        return self.amount_by_node.get(number) == amount and (entry != number) == (number in self.disliked)

    def _enter(self, number: int, old: int | None) -> None:
        amount = self.capacity.free_amounts[number]
        self.amount_by_node[number] = amount
        self._count(number, amount, 1)
        heap = self._heaps.setdefault(amount, [])
        heappush(heap, number + self._nodes if number in self.disliked else number)
        if len(heap) > 2 * self.nodes_by_amount[amount] + 16:  # nodes that came and went more than once
            heap[:] = {other for other in heap if self._is_valid(other, amount)}
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
        products = self.capacity.products
        if products is None:
            return
        for level, counts_by_product in zip(self.capacity.levels, self.domains_by_product, strict=True):
            domain = level.shared_by_node[number]
            if domain is not None:
                _add(counts_by_product.setdefault(domain, {}).setdefault(products[number], {}), amount, nodes)


def _add(counts: Counts, amount: int, nodes: int) -> None:
    left = counts.get(amount, 0) + nodes
    if left:
        counts[amount] = left
    else:
        del counts[amount]


GpuCounts = tuple[int, int]
"""GPUs of some nodes, and how many of them a rank cannot have."""


class UsableGpus:
    """How many GPUs ranks could use, and how many of these are in use. It holds while nothing changes."""

    def __init__(self, capacity: FreeCapacity) -> None:
        self._capacity = capacity
        self._use_by_size: dict[tuple[NodeGroups, int, bool], dict[int, GpuCounts]] = {}

    def of(self, request: Resources, groups: NodeGroups, own: Mapping[int, Resources]) -> GpuCounts:
        """Return the GPUs of those of these nodes that are large enough for a rank with this request, and how many of
        them none can have: they are in use, or the rest of a node. `own`: what is free for these ranks, by node.

        O(nodes) for the first request of so many GPUs, and O(sizes of nodes) for each other one."""
        key = (groups, request.gpus, bool(own))
        if key not in self._use_by_size:
            self._use_by_size[key] = self._count(groups, request.gpus, own)
        usable = used = 0
        for size, (gpus, taken) in self._use_by_size[key].items():
            if request.fits_in(self._capacity.amounts[size]):
                usable += gpus
                used += taken
        return usable, used

    def _count(self, groups: NodeGroups, rank_gpus: int, own: Mapping[int, Resources]) -> dict[int, GpuCounts]:
        """Count the same for each size of nodes, by the number of the amount."""
        capacity = self._capacity
        use_by_size: dict[int, GpuCounts] = {}
        for number in groups.amount_by_node:
            size = capacity.whole_amounts[number]
            gpus = capacity.amounts[size].gpus
            idle = max(0, (own[number] if number in own else capacity.free(number)).gpus)
            usable, used = use_by_size.get(size, (0, 0))
            use_by_size[size] = (usable + gpus, used + gpus - idle + idle % rank_gpus)
        return use_by_size
