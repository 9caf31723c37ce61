"""Which nodes are too small for a request, found without looking at the others: per resource, the nodes in the order of
what they have of it. Follows `Resources.fits_in`, and decides nothing beyond it.

A filter request is answered while the planner thinks in the same interpreter, which may change hands after each step
of Python. So nothing here steps through nodes: a change costs a few searches, a question one and a copy of its result.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from coda.model.resources import Resources

_OTHER: Final = "other/"  # before the name of any further resource: it may be any text


class CapacityIndex:
    """Rooms by node, asked for those that fall short."""

    def __init__(self) -> None:
        self._amounts_by_node: dict[str, dict[str, int]] = {}
        self._shelf_by_resource: dict[str, _Shelf] = {}

    def put(self, node: str, room: Resources | None) -> None:
        """The node has this room from now on; None: it is gone. O(log nodes) and a move of pointers per resource."""
        before = self._amounts_by_node.get(node)
        after = _amounts(room) if room is not None else None
        for resource in (after or {}).keys() - self._shelf_by_resource.keys():
            if after is not None and after[resource] > 0:  # whatever a pod may ask for: only what some node has counts
                self._add_shelf(resource)
        for resource, shelf in self._shelf_by_resource.items():
            old = before.get(resource, 0) if before is not None else None
            new = after.get(resource, 0) if after is not None else None
            if old != new:
                shelf.move(node, old, new)
        if after is not None:
            self._amounts_by_node[node] = after
        elif before is not None:
            del self._amounts_by_node[node]

    def of(self, request: Resources) -> set[str]:
        """The nodes whose room is too small for `request`, of which no amount is negative. O(those found)."""
        short: set[str] = set()
        for resource, asked in _amounts(request).items():
            if asked:
                shelf = self._shelf_by_resource.get(resource)
                short.update(self._amounts_by_node if shelf is None else shelf.below(asked))
        return short

    def _add_shelf(self, resource: str) -> None:
        self._shelf_by_resource[resource] = shelf = _Shelf()
        for node, amounts in self._amounts_by_node.items():
            shelf.move(node, None, amounts.get(resource, 0))


class _Shelf:
    """Nodes in the order of what they have of one resource."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []
        self._nodes: list[str] = []  # of the entries, in their order

    def move(self, node: str, old: int | None, new: int | None) -> None:
        """The node had `old`, and has `new`; None: it was not there, or is not there any more."""
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
        amounts.update({_OTHER + name: amount for name, amount in resources.other.items()})
    return amounts
