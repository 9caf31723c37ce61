"""A log of what changed, for readers that catch up when they are asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ChangeLog(Generic[Item]):
    """A log for several readers, each with its own place in it. Old entries are dropped."""

    __slots__ = ("_entries", "_first", "_limit", "end")

    def __init__(self, limit: int) -> None:
        self._entries: list[Item] = []
        self._first = 0
        self._limit = limit
        self.end = 0  # the place after the last entry

    def add(self, entry: Item) -> None:
        """Append an entry."""
        self._entries.append(entry)
        self.end += 1
        if len(self._entries) > 2 * self._limit:
            del self._entries[: self._limit]
            self._first += self._limit

    def since(self, place: int) -> Iterable[Item] | None:
        """Return the entries from `place` on; None if some of them were dropped: the reader must look at everything."""
        return None if place < self._first else self._entries[place - self._first :]
