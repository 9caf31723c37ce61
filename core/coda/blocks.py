"""Collections of frozen values in blocks, so that two snapshots share all that did not change between them, and what
did is found without looking at the rest. What must not live here: what the values mean.

A cluster has thousands of jobs and nodes, and from one decision to the next a few of them change: a snapshot copies one
pointer for each block instead of one for each value, and comparing two looks into the blocks that are not the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress
from operator import is_not
from typing import Any, Final, Generic, TypeVar, overload

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_SIZE: Final = 64
"""Values in a block. Our choice: near the square root of the number of jobs that a cluster of a hundred nodes has."""

_Block = tuple[Any, ...]
"""`_SIZE` values; None where a place is empty."""

_EMPTY: Final[_Block] = (None,) * _SIZE


class Roster(Sequence[Item]):
    """Values in no particular order, none of them None; made by `Shelf.roster`."""

    __slots__ = ("_count", "blocks")

    def __init__(self, blocks: tuple[_Block, ...], count: int) -> None:
        self.blocks = blocks
        self._count = count

    def __iter__(self) -> Iterator[Item]:
        return filter(partial(is_not, None), chain.from_iterable(self.blocks))

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        """True for a roster of equal values in the same places. O(values)."""
        return self.blocks == other.blocks if isinstance(other, Roster) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # values need not have one

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        """O(values)."""
        return tuple(self)[index]


class Table(Mapping[Key, Item]):
    """Values by key, none of them None; made by `Shelf.table`."""

    __slots__ = ("blocks", "key_by_slot", "slot_by_key")

    def __init__(self, blocks: tuple[_Block, ...], slot_by_key: Mapping[Key, int], key_by_slot: Sequence[Key]) -> None:
        self.blocks = blocks
        self.slot_by_key = slot_by_key
        self.key_by_slot = key_by_slot

    def __getitem__(self, key: Key) -> Item:
        slot = self.slot_by_key[key]
        item: Item = self.blocks[slot // _SIZE][slot % _SIZE]
        return item

    def __iter__(self) -> Iterator[Key]:
        return iter(self.slot_by_key)

    def __len__(self) -> int:
        return len(self.slot_by_key)


class Shelf(Generic[Key, Item]):
    """Values by key that change; snapshots of it do not."""

    def __init__(self) -> None:
        self._slot_by_key: dict[Key, int] = {}
        self._key_by_slot: list[Any] = []  # None where a place is empty
        self._is_shared = False  # a table has these two
        self._empty_slots: list[int] = []
        self._items: list[Item | None] = []
        self._blocks: list[_Block] = []
        self._changed: dict[int, None] = {}  # blocks that are not as they were

    def __contains__(self, key: Key) -> bool:
        return key in self._slot_by_key

    def get(self, key: Key) -> Item | None:
        """The value of this key, or None."""
        slot = self._slot_by_key.get(key)
        return None if slot is None else self._items[slot]

    def put(self, key: Key, item: Item) -> None:
        """This is the value of the key from now on. O(1); O(keys) for a new key after a table was taken."""
        slot = self._slot_by_key.get(key)
        if slot is None:
            slot = self._new_slot(key)
        self._items[slot] = item
        self._changed[slot // _SIZE] = None

    def drop(self, key: Key) -> None:
        """There is no such key any more. Raises KeyError where there was none. Cost as of `put`."""
        self._own_slots()
        slot = self._slot_by_key.pop(key)
        self._key_by_slot[slot] = self._items[slot] = None
        self._empty_slots.append(slot)
        self._changed[slot // _SIZE] = None

    def roster(self) -> Roster[Item]:
        """The values as they are now. O(blocks)."""
        return Roster(self._snapshot(), len(self._slot_by_key))

    def table(self) -> Table[Key, Item]:
        """The values and their keys as they are now. O(blocks)."""
        self._is_shared = True
        return Table(self._snapshot(), self._slot_by_key, self._key_by_slot)

    def _own_slots(self) -> None:
        if self._is_shared:
            self._slot_by_key, self._key_by_slot = self._slot_by_key.copy(), self._key_by_slot.copy()
            self._is_shared = False

    def _new_slot(self, key: Key) -> int:
        self._own_slots()
        if not self._empty_slots:
            first = len(self._items)
            self._items += _EMPTY
            self._key_by_slot += _EMPTY
            self._blocks.append(_EMPTY)
            self._empty_slots = list(range(first + _SIZE - 1, first - 1, -1))
        slot = self._slot_by_key[key] = self._empty_slots.pop()
        self._key_by_slot[slot] = key
        return slot

    def _snapshot(self) -> tuple[_Block, ...]:
        for number in self._changed:
            self._blocks[number] = tuple(self._items[number * _SIZE : (number + 1) * _SIZE])
        self._changed.clear()
        return tuple(self._blocks)


def changed_slots(old: tuple[_Block, ...], new: tuple[_Block, ...]) -> Iterator[tuple[int, Any, Any]]:
    """Place, and the values before and after, where they are not the same object; None for an empty place.

    O(blocks) comparisons of pointers, and O(values) of the blocks that changed."""
    more = len(new) - len(old)
    if more:
        old, new = old + (_EMPTY,) * more, new + (_EMPTY,) * -more
    for number in list(compress(range(len(new)), map(is_not, old, new))):
        before, after = old[number], new[number]
        for place in compress(range(_SIZE), map(is_not, before, after)):
            yield number * _SIZE + place, before[place], after[place]
