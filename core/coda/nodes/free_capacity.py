"""The free capacity of each node, during one cycle and from one cycle to the next.

Free capacity only shrinks within a cycle, so a gang that did not fit is not tried again in it. The journal tells
searches which nodes changed. Nodes are numbered in the order of their names: a node's number is also its tie-break.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from coda.change_log import ChangeLog
from coda.model.gpu_products import products_of
from coda.model.resources import Resources
from coda.model.world import Node
from coda.policy.config import Level


class LevelDomains:
    """One topology level, and which nodes share a domain of it.

    A domain lies within one domain of each wider level, as in Kueue: racks of two zones are two even if they have one
    name, which then gets the zone's in front of it."""

    def __init__(self, level: Level, nodes: Sequence[Node], wider: LevelDomains | None) -> None:
        self.name = level.name
        around: list[str | None] = [None] * len(nodes) if wider is None else wider.path_by_node
        labels = [node.labels.get(level.label) for node in nodes]
        places: dict[str | None, set[str | None]] = {}
        for label, place in zip(labels, around, strict=True):
            places.setdefault(label, set()).add(place)
        self.domain_by_node: list[str | None] = [
            label if label is None or len(places[label]) == 1 else f"{place or ''}/{label}"
            for label, place in zip(labels, around, strict=True)
        ]
        # The narrowest domain of this level and wider ones that a node is in.
        self.path_by_node: list[str | None] = [
            domain or place for domain, place in zip(self.domain_by_node, around, strict=True)
        ]
        self.nodes_by_domain: dict[str, list[int]] = {}
        for number, domain in enumerate(self.domain_by_node):
            if domain is not None:
                self.nodes_by_domain.setdefault(domain, []).append(number)
        # A domain of one node says no more than the node itself; searches leave it out.
        self.shared_by_node: list[str | None] = [
            None if domain is None or len(self.nodes_by_domain[domain]) == 1 else domain
            for domain in self.domain_by_node
        ]


class FreeCapacity:
    """The free resources of every node, by node number, and its topology. At first everything is free.

    `tells_sizes`: equal free amounts on nodes of different sizes count as different."""

    def __init__(self, nodes: Iterable[Node], levels: tuple[Level, ...], *, tells_sizes: bool = False) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.number_by_name = {node.name: number for number, node in enumerate(self.nodes)}
        self.products = products_of(self.nodes)
        self.amounts: list[Resources] = []  # every distinct amount seen, numbered: most nodes are alike
        self.sizes: list[Resources] = []  # for each amount, the size of its nodes, where sizes are told
        self._number_by_amount: dict[Hashable, int] = {}
        self._number_by_size: dict[Hashable, int] | None = {} if tells_sizes else None
        self._size_by_node = [self._size(node) for node in self.nodes]
        self.whole_amounts: list[int] = [
            self._number(node.allocatable, number) for number, node in enumerate(self.nodes)
        ]
        self.free_amounts: list[int] = list(self.whole_amounts)
        # On all nodes; one where more is held than there is counts as none.
        self.free_gpus = sum(node.allocatable.gpus for node in self.nodes)
        self.taken_gpus = 0  # on all nodes, also more than there are
        self.levels: tuple[LevelDomains, ...] = ()
        for level in levels:
            self.levels += (LevelDomains(level, self.nodes, self.levels[-1] if self.levels else None),)
        # Nodes that changed, or whose free capacity did, in order.
        self.journal: ChangeLog[int] = ChangeLog(2 * len(self.nodes) + 1000)
        # What was free before a node's first gain since the last `pop_gained`.
        self._gained: dict[int, Resources] = {}

    def free(self, number: int) -> Resources:
        """Return what is free on a node."""
        return self.amounts[self.free_amounts[number]]

    def set_free(self, number: int, free: Resources) -> None:
        """Set what is free on a node."""
        before = self.amounts[self.free_amounts[number]]
        if free is before or free == before:
            return
        amount = self._number(free, number)
        if amount != self.free_amounts[number]:
            self.free_amounts[number] = amount
            self.free_gpus += max(0, free.gpus) - max(0, before.gpus)
            self.taken_gpus += before.gpus - free.gpus
            self.journal.add(number)
            if number not in self._gained and _has_more(free, before):
                self._gained[number] = before

    def pop_gained(self) -> Iterable[int]:
        """Return the nodes with more of any resource than at some moment since the last call."""
        if not self._gained:
            return ()
        gained, self._gained = self._gained, {}
        return [number for number, before in gained.items() if _has_more(self.free(number), before)]

    def subtract(self, number: int, amount: Resources) -> None:
        """Take `amount` from what is free on a node."""
        self.set_free(number, self.free(number) - amount)

    def replace_node(self, number: int, node: Node) -> None:
        """The node changed, but not its name and labels. The caller sets what is free on it."""
        self.taken_gpus += node.allocatable.gpus - self.nodes[number].allocatable.gpus
        self.nodes[number] = node
        self.journal.add(number)
        self._size_by_node[number] = self._size(node)
        self.whole_amounts[number] = self._number(node.allocatable, number)
        self.free_amounts[number] = self._number(self.free(number), number)

    def _size(self, node: Node) -> int:
        sizes = self._number_by_size
        return 0 if sizes is None else sizes.setdefault(_key(node.allocatable), len(sizes))

    def _number(self, amount: Resources, node: int) -> int:
        other = _others(amount) if amount.other else ()
        key = (amount.gpus, amount.cpu_m, amount.memory_bytes, amount.pods, other, self._size_by_node[node])
        number = self._number_by_amount.get(key)
        if number is None:
            number = self._number_by_amount[key] = len(self.amounts)
            self.amounts.append(amount)
            self.sizes.append(self.nodes[node].allocatable)
        return number


def _has_more(free: Resources, before: Resources) -> bool:
    """True if there is more of any resource. A loss never counts: `set_free` keeps the least amount before a gain."""
    return (
        free.gpus > before.gpus
        or free.cpu_m > before.cpu_m
        or free.memory_bytes > before.memory_bytes
        or free.pods > before.pods
        or (
            free.other is not before.other
            and any(free.other.get(name, 0) > before.other.get(name, 0) for name in (*free.other, *before.other))
        )
    )


def _key(amount: Resources) -> Hashable:
    return (amount.gpus, amount.cpu_m, amount.memory_bytes, amount.pods, _others(amount))


def _others(amount: Resources) -> Hashable:
    return tuple(sorted(item for item in amount.other.items() if item[1])) if amount.other else ()
