"""Collections whose snapshots share everything that did not change, and the differences between two snapshots.

A cluster has thousands of jobs and nodes, and few of them change from one decision to the next. A snapshot copies one
pointer per block instead of one per value. A comparison looks only into blocks that are not the same object.
Differences are found by identity. Nothing here knows what a value means. The classes have slots, because a compiled one
would not clear weak references to it (mypyc issue 1102); with slots, pure Python refuses them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress, count
from operator import is_not, itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

_SIZE: Final = 64
"""Values in a block. Our choice: near the square root of the number of jobs on a cluster of a hundred nodes."""

_Block = tuple[Any, ...]
"""`_SIZE` values; None in an empty slot."""

_EMPTY: Final[_Block] = (None,) * _SIZE

_Slot = tuple[int, Any, Any]
"""The number of a slot, and its values before and after; None for an empty slot."""


class _Step(NamedTuple):
    """What differs between the snapshot with the blocks `since` and the next one. In order of slots."""

    since: tuple[_Block, ...]
    slots: tuple[_Slot, ...]


class SnapshotValues(Sequence[Item]):
    """A snapshot of values in no particular order, none of them None. Made by `VersionedMap.roster`."""

    __slots__ = ("_count", "blocks", "step")

    def __init__(self, blocks: tuple[_Block, ...], step: _Step, count: int) -> None:
        self.blocks = blocks
        self.step = step
        self._count = count

    def __iter__(self) -> Iterator[Item]:
        return filter(partial(is_not, None), chain.from_iterable(self.blocks))

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        """True for equal values in the same slots. O(values)."""
        return self.blocks == other.blocks if isinstance(other, SnapshotValues) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # values need not have one

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        """O(values)."""
        return tuple(self)[index]


class SnapshotMap(Mapping[Key, Item]):
    """A snapshot of values by key, none of them None. Made by `VersionedMap.table`."""

    __slots__ = ("blocks", "key_by_slot", "slot_by_key", "step")

    def __init__(
        self,
        blocks: tuple[_Block, ...],
        step: _Step,
        slot_by_key: Mapping[Key, int],
        key_by_slot: Sequence[Key],
    ) -> None:
        self.blocks = blocks
        self.step = step
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


class VersionedMap(Generic[Key, Item]):
    """A map that changes; its snapshots do not."""

    __slots__ = (
        "_blocks",
        "_changed",
        "_empty_slots",
        "_frozen",
        "_is_shared",
        "_items",
        "_key_by_slot",
        "_slot_by_key",
        "_step",
    )

    def __init__(self) -> None:
        self._slot_by_key: dict[Key, int] = {}
        self._key_by_slot: list[Any] = []  # None in an empty slot
        self._is_shared = False  # a snapshot holds the two objects above
        self._empty_slots: list[int] = []
        self._items: list[Item | None] = []
        self._blocks: list[_Block] = []
        self._changed: dict[int, Item | None] = {}  # what was in the slots that changed since the last snapshot
        self._frozen: tuple[_Block, ...] = ()  # blocks of the last snapshot
        self._step = _Step((), ())

    def __contains__(self, key: Key) -> bool:
        return key in self._slot_by_key

    def get(self, key: Key) -> Item | None:
        """Return the value of this key, or None."""
        slot = self._slot_by_key.get(key)
        return None if slot is None else self._items[slot]

    def items(self) -> list[tuple[Key, Item]]:
        """Return all keys and values. O(values)."""
        pairs = zip(self._key_by_slot, self._items, strict=True)
        return [(key, item) for key, item in pairs if item is not None]

    def put(self, key: Key, item: Item) -> None:
        """Set the value of the key. O(1); O(keys) for a new key after `table` was called."""
        slot = self._slot_by_key.get(key)
        if slot is None:
            slot = self._new_slot(key)
        self._changed.setdefault(slot, self._items[slot])
        self._items[slot] = item

    def drop(self, key: Key) -> None:
        """Remove the key. Raises KeyError if it is not there. Cost as `put`."""
        self._own_slots()
        slot = self._slot_by_key.pop(key)
        self._changed.setdefault(slot, self._items[slot])
        self._key_by_slot[slot] = self._items[slot] = None
        self._empty_slots.append(slot)

    def roster(self) -> SnapshotValues[Item]:
        """Return a snapshot of the values. O(blocks)."""
        return SnapshotValues(self._snapshot(), self._step, len(self._slot_by_key))

    def table(self) -> SnapshotMap[Key, Item]:
        """Return a snapshot of the values and their keys. O(blocks)."""
        self._is_shared = True
        return SnapshotMap(self._snapshot(), self._step, self._slot_by_key, self._key_by_slot)

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
        if not self._changed:
            return self._frozen
        items, changed = self._items, sorted(self._changed.items(), key=_slot)
        for number in {slot // _SIZE for slot, _ in changed}:
            self._blocks[number] = tuple(items[number * _SIZE : (number + 1) * _SIZE])
        slots = [(slot, before, items[slot]) for slot, before in changed if items[slot] is not before]
        self._changed.clear()
        self._step = _Step(self._frozen, tuple(slots))
        self._frozen = tuple(self._blocks)
        return self._frozen


_slot = itemgetter(0)


def _changed_slots(old: tuple[_Block, ...], new: tuple[_Block, ...], step: _Step) -> Iterable[_Slot]:
    """Return the slots whose values are not the same object. `step`: the last one of the new snapshot.

    O(1) from one snapshot to the next; else O(blocks) comparisons of pointers, and O(values) of the changed blocks."""
    if new is old:
        return ()
    return step.slots if step.since is old else _compared(old, new)


def _compared(old: tuple[_Block, ...], new: tuple[_Block, ...]) -> Iterator[_Slot]:
    more = len(new) - len(old)
    if more:
        old, new = old + (_EMPTY,) * more, new + (_EMPTY,) * -more
    for number in list(compress(range(len(new)), map(is_not, old, new))):
        before, after = old[number], new[number]
        for place in compress(range(_SIZE), map(is_not, before, after)):
            yield number * _SIZE + place, before[place], after[place]


_STEPS = 64
"""Differences to look for one by one, before all items are compared through a dict."""


def removed_and_added(old: Sequence[Item], new: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the items that were removed and those that were added. Items that moved may be in both.

    Cost: O(changes) between a `SnapshotValues` and the next; one comparison of pointers per block between two others;
    else one per item, if new items stand at the end (as in the values of a dict)."""
    if old is new:
        return [], []
    if isinstance(old, SnapshotValues) and isinstance(new, SnapshotValues):
        pairs = [*_changed_slots(old.blocks, new.blocks, new.step)]
        return [item for _, item, _ in pairs if item is not None], [item for _, _, item in pairs if item is not None]
    return _changes_in_order(tuple(old), tuple(new))


def _changes_in_order(old: tuple[Item, ...], new: tuple[Item, ...]) -> tuple[list[Item], list[Item]]:
    gone: list[Item] = []
    start = offset = 0  # old[:start] is compared, and so is new[: start - offset]
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
    """Return the keys whose value was added, removed or replaced."""
    if old is new:
        return []
    if isinstance(old, SnapshotMap) and isinstance(new, SnapshotMap) and old.slot_by_key is new.slot_by_key:
        slots = _changed_slots(old.blocks, new.blocks, new.step)
        return [new.key_by_slot[slot] for slot, before, after in slots if before != after]
    seen = old.get
    keys = [key for key, value in new.items() if (before := seen(key)) is not value and before != value]
    return keys + [key for key in old if key not in new] if len(old) + len(keys) > len(new) else keys
