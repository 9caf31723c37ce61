"""Shapes that found no room, left alone until a node gains room for one of their ranks. What must not live here: what
fits a gang.

A gang that did not fit where nodes had some room does not fit where none of them has more of it: a round asks about
few shapes, and how many wait costs it nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from coda.cache.queue import GangClass
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import RankClass
from coda.policy.arrays import Array

_Sleepers = dict[RankClass, dict[Hashable, GangClass]]
"""By what they found no room for, and by their keys: a shape that waits again takes its own place."""


class InadmissibleClasses:
    """Which waiting shapes may find room for all that is known, kept while the room changes by `Room.put` only."""

    def __init__(self) -> None:
        self._awake: dict[Array, dict[GangClass, None]] = {array: {} for array in Array}
        self._at_home: dict[Array, dict[Hashable, GangClass]] = {
            array: {} for array in Array
        }  # asleep, but for borrowing
        self._asleep: dict[FreeCapacity, _Sleepers] = {}
        self._were_kept = False  # nodes were kept for somebody when they were asked last

    def wake(self, shapes: Iterable[GangClass]) -> None:
        """These are new, or nothing is known about them any more."""
        for shape in shapes:
            self._awake[shape.array][shape] = None

    def sleep(self, shape: GangClass, kinds: Iterable[RankClass], *, may_borrow: bool = True) -> None:
        """None of these has room for a gang of this shape. `may_borrow` False: it was not asked whether others do."""
        self._awake[shape.array].pop(shape, None)
        if not may_borrow:
            self._at_home[shape.array][shape.key] = shape
        for kind in kinds:
            room = kind.pool.room
            sleepers = self._asleep.get(room)
            if sleepers is None:
                room.take_gained()  # what it gained before, this shape did find
                sleepers = self._asleep[room] = {}
            sleepers.setdefault(kind, {})[shape.key] = shape

    def rouse(self, *, are_kept: bool) -> None:
        """A round begins to ask: wake those for whom there may be room. `are_kept`: nodes are kept for somebody; when
        they were not in the round before, or the other way round, other rooms count. O(nodes that gained room x kinds
        asleep)."""
        if are_kept is not self._were_kept:
            self._were_kept = are_kept
            for sleepers in self._asleep.values():
                for shapes in sleepers.values():
                    self.wake(shapes.values())
                sleepers.clear()
        for room, sleepers in self._asleep.items():
            for number in room.take_gained():
                for kind in _with_room(sleepers, room, number) if sleepers else ():
                    self.wake(sleepers.pop(kind).values())

    def awake(self, array: Array, *, may_borrow: bool = True) -> list[GangClass]:
        """The shapes of an array to ask about, after `rouse`. O(shapes awake)."""
        awake, at_home = self._awake[array], self._at_home[array]
        if may_borrow and at_home:
            awake.update(dict.fromkeys(at_home.values()))
            at_home.clear()
        if not awake:
            return []
        shapes = [shape for shape in awake if shape.waiters]
        if len(shapes) < len(awake):
            self._awake[array] = dict.fromkeys(shapes)
        return shapes


def _with_room(kinds: Iterable[RankClass], room: FreeCapacity, number: int) -> list[RankClass]:
    """Those of which the node has room for a rank."""
    free = room.free(number)
    gpus, cpu_m = free.gpus, free.cpu_m
    return [
        kind
        for kind in kinds
        if ((request := kind.request).gpus <= gpus or not request.gpus)
        and (request.cpu_m <= cpu_m or not request.cpu_m)
        and request.fits_in(free)
        and number in kind.pool.amount_by_node
    ]
