"""What is free on each node while one round of decisions takes it. What must not live here: who may have it.

Built from the frozen world at the start of a round and thrown away at its end. Room only ever shrinks, so whatever did
not fit once need not be tried again in the round; the journal tells searches which nodes to look at anew.
Nodes are numbered in the order of their names, so that a node's number is also its tie-break.
"""

from __future__ import annotations

from collections.abc import Hashable

from coda.config import Level
from coda.model import Node, Resources, World
from coda.world import free_by_node


class LevelDomains:
    """One topology level: which nodes share a domain of it."""

    def __init__(self, level: Level, nodes: tuple[Node, ...]) -> None:
        self.name = level.name
        self.domain_by_node: list[str | None] = [node.labels.get(level.label) for node in nodes]
        self.nodes_by_domain: dict[str, list[int]] = {}
        for number, domain in enumerate(self.domain_by_node):
            if domain is not None:
                self.nodes_by_domain.setdefault(domain, []).append(number)
        # A domain of one node says no more than the node itself; searches leave it out.
        self.shared_by_node: list[str | None] = [
            None if domain is None or len(self.nodes_by_domain[domain]) == 1 else domain
            for domain in self.domain_by_node
        ]


class Room:
    """The free resources of every node, by node number, and the topology they stand in."""

    def __init__(self, world: World, levels: tuple[Level, ...]) -> None:
        self.nodes = tuple(sorted(world.nodes, key=lambda node: node.name))
        self.number_by_name = {node.name: number for number, node in enumerate(self.nodes)}
        free = free_by_node(world)
        self.amounts: list[Resources] = []  # every different amount met, numbered: most nodes are alike
        self._number_by_amount: dict[Hashable, int] = {}
        self.free: list[Resources] = [free[node.name] for node in self.nodes]
        self.free_amounts: list[int] = [self._number(amount) for amount in self.free]
        self.whole_amounts: list[int] = [self._number(node.allocatable) for node in self.nodes]
        self.levels = tuple(LevelDomains(level, self.nodes) for level in levels)
        self.journal: list[int] = []  # numbers of nodes whose room shrank, in order

    def take(self, number: int, amount: Resources) -> None:
        """Make `amount` of a node taken."""
        self.free[number] = rest = self.free[number] - amount
        self.free_amounts[number] = self._number(rest)
        self.journal.append(number)

    def _number(self, amount: Resources) -> int:
        other = tuple(sorted(amount.other.items())) if amount.other else ()
        key = (amount.gpus, amount.cpu_m, amount.memory_bytes, amount.pods, other)
        number = self._number_by_amount.setdefault(key, len(self.amounts))
        if number == len(self.amounts):
            self.amounts.append(amount)
        return number
