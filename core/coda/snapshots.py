"""What differs between two versions of a collection of frozen values, told by identity. What must not live here: what
any difference means."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import compress, count
from operator import is_not
from typing import Generic, TypeVar

from coda.blocks import Roster, Table, changed_slots

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

_STEPS = 64
"""Differences looked for one after the other before all items are compared by a table."""


def changes(old: Sequence[Item], new: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """The items that left and those that came. Items that changed places may be among both.

    Cost: a comparison of pointers for each item where new ones stand at the end, as in a dict's values; for each block
    of rosters."""
    if old is new:
        return [], []
    if isinstance(old, Roster) and isinstance(new, Roster):
        pairs = [*changed_slots(old.blocks, new.blocks)]
        return [item for _, item, _ in pairs if item is not None], [item for _, _, item in pairs if item is not None]
    return _changes_in_order(tuple(old), tuple(new))


def _changes_in_order(old: tuple[Item, ...], new: tuple[Item, ...]) -> tuple[list[Item], list[Item]]:
    gone: list[Item] = []
    start = offset = 0  # old[:start] is told, and new[: start - offset] with it
    for _ in range(_STEPS):
        pairs = map(is_not, old[start:] if start else old, new[start - offset :])
        same = next(compress(count(), pairs), None)
        if same is None:
            kept = min(len(old) - start, len(new) - start + offset)
            return gone + list(old[start + kept :]), list(new[start - offset + kept :])
        gone.append(old[start + same])
        start, offset = start + same + 1, offset + 1
    before = dict(zip(map(id, old), old, strict=True))
    after = dict(zip(map(id, new), new, strict=True))
    return [old for key, old in before.items() if key not in after], [
        new for key, new in after.items() if key not in before
    ]


def changed_keys(old: Mapping[Key, Item], new: Mapping[Key, Item]) -> list[Key]:
    """The keys whose value came, left or is another one."""
    if old is new:
        return []
    if isinstance(old, Table) and isinstance(new, Table) and old.slot_by_key is new.slot_by_key:
        slots = changed_slots(old.blocks, new.blocks)
        return [new.key_by_slot[slot] for slot, before, after in slots if before != after]
    seen = old.get
    keys = [key for key, value in new.items() if (before := seen(key)) is not value and before != value]
    return keys + [key for key in old if key not in new] if len(old) + len(keys) > len(new) else keys


class Journal(Generic[Item]):
    """What happened, in order, for readers that each keep their own place in it. Old entries are dropped."""

    __slots__ = ("_entries", "_first", "_limit", "end")

    def __init__(self, limit: int) -> None:
        self._entries: list[Item] = []
        self._first = 0
        self._limit = limit
        self.end = 0  # the place after the last entry

    def add(self, entry: Item) -> None:
        """Write it down."""
        self._entries.append(entry)
        self.end += 1
        if len(self._entries) > 2 * self._limit:
            del self._entries[: self._limit]
            self._first += self._limit

    def since(self, place: int) -> Iterable[Item] | None:
        """The entries from `place` on; None when some of them are dropped: the reader must look at everything."""
        return None if place < self._first else self._entries[place - self._first :]
