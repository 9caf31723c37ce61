"""Finds the nodes that are too small for a request without visiting the others: per resource, the nodes are sorted by
their free amount. The answer is that of `Resources.fits_in` for every node.

A filter call is answered while the planner decides in the same interpreter, which may switch threads after each step
of Python. So nothing here loops over nodes in Python: a change costs a few searches, a question one and a copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Set
from typing import Final

from coda.model import Resources
from coda.model.resources import HOST_PORT

_OTHER: Final = "other/"  # before the name of any further resource, which may be any text


class CapacityIndex:
    """Free amounts by node."""

    def __init__(self) -> None:
        self._amounts_by_node: dict[str, dict[str, int]] = {}
        self._nodes_by_resource: dict[str, _NodesByAmount] = {}
        self._ports_by_node: dict[str, Set[str]] = {}  # host ports in use
        self._nodes_by_port: dict[str, set[str]] = {}

    def set_free(self, node: str, free: Resources | None) -> None:
        """Set what is free on a node; None: the node is gone. O(log nodes) and a move of pointers per resource."""
        before = self._amounts_by_node.get(node)
        after = _amounts(free) if free is not None else None
        for resource in (after or {}).keys() - self._nodes_by_resource.keys():
            if after is not None and after[resource] > 0:  # pods may ask for any name: only what a node has is indexed
                self._add_resource(resource)
        for resource, nodes in self._nodes_by_resource.items():
            old = before.get(resource, 0) if before is not None else None
            new = after.get(resource, 0) if after is not None else None
            if old != new:
                nodes.move(node, old, new)
        if after is not None:
            self._amounts_by_node[node] = after
        elif before is not None:
            del self._amounts_by_node[node]
        self._set_ports(node, free)

    def too_small_for(self, request: Resources) -> set[str]:
        """The nodes where `request` does not fit. No amount of it may be negative. O(nodes found)."""
        found: set[str] = set()
        for resource, asked in _amounts(request).items():
            if asked:
                nodes = self._nodes_by_resource.get(resource)
                found.update(self._amounts_by_node if nodes is None else nodes.below(asked))
        for port, asked in request.other.items():
            if asked and port.startswith(HOST_PORT):  # every node has one, although none lists it
                found.update(self._nodes_by_port.get(port, ()) if asked == 1 else self._amounts_by_node)
        return found

    def _set_ports(self, node: str, free: Resources | None) -> None:
        other = free.other.items() if free is not None else ()
        before = self._ports_by_node.pop(node, frozenset[str]())
        after = {name for name, amount in other if amount < 0 and name.startswith(HOST_PORT)}
        if after:
            self._ports_by_node[node] = after
        for port in before - after:
            self._nodes_by_port[port].discard(node)
            if not self._nodes_by_port[port]:
                del self._nodes_by_port[port]
        for port in after - before:
            self._nodes_by_port.setdefault(port, set()).add(node)

    def _add_resource(self, resource: str) -> None:
        self._nodes_by_resource[resource] = nodes = _NodesByAmount()
        for node, amounts in self._amounts_by_node.items():
            nodes.move(node, None, amounts.get(resource, 0))


class _NodesByAmount:
    """Nodes sorted by what they have of one resource."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []
        self._nodes: list[str] = []  # of the entries, in their order

    def move(self, node: str, old: int | None, new: int | None) -> None:
        """Move a node from amount `old` to `new`; None: it was not there, or is not there any more."""
        if old is not None:
            at = bisect_left(self._entries, (old, node))
            del self._entries[at], self._nodes[at]
        if new is not None:
            at = bisect_left(self._entries, (new, node))
            self._entries.insert(at, (new, node))
            self._nodes.insert(at, node)

    def below(self, asked: int) -> list[str]:
        """The nodes that have less."""
        return self._nodes[: bisect_left(self._entries, (asked,))]


def _amounts(resources: Resources) -> dict[str, int]:
    amounts = {
        "gpus": resources.gpus,
        "cpu_m": resources.cpu_m,
        "memory_bytes": resources.memory_bytes,
        "pods": resources.pods,
    }
    if resources.other:
        others = resources.other.items()
        amounts.update({_OTHER + name: amount for name, amount in others if not name.startswith(HOST_PORT)})
    return amounts
