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

    def admit(self, gang_classes: Iterable[GangClass]) -> None:
        """These are new, or nothing is known about them any more."""
        for gang_class in gang_classes:
            self._awake[gang_class.array][gang_class] = None

    def park(self, gang_class: GangClass, rank_classes: Iterable[RankClass], *, may_borrow: bool = True) -> None:
        """None of these has room for a gang of this shape. `may_borrow` False: it was not asked whether others do."""
        self._awake[gang_class.array].pop(gang_class, None)
        if not may_borrow:
            self._at_home[gang_class.array][gang_class.key] = gang_class
        for rank_class in rank_classes:
            capacity = rank_class.groups.capacity
            sleepers = self._asleep.get(capacity)
            if sleepers is None:
                capacity.take_gained()  # what it gained before, this shape did find
                sleepers = self._asleep[capacity] = {}
            sleepers.setdefault(rank_class, {})[gang_class.key] = gang_class

    def wake(self, *, are_protected: bool) -> None:
        """A round begins to ask: wake those for whom there may be room. `are_kept`: nodes are kept for somebody; when
        they were not in the round before, or the other way round, other rooms count. O(nodes that gained room x kinds
        asleep)."""
        if are_protected is not self._were_kept:
            self._were_kept = are_protected
            for sleepers in self._asleep.values():
                for gang_classes in sleepers.values():
                    self.admit(gang_classes.values())
                sleepers.clear()
        for capacity, sleepers in self._asleep.items():
            for number in capacity.take_gained():
                for rank_class in _with_room(sleepers, capacity, number) if sleepers else ():
                    self.admit(sleepers.pop(rank_class).values())

    def to_try(self, array: Array, *, may_borrow: bool = True) -> list[GangClass]:
        """The shapes of an array to ask about, after `rouse`. O(shapes awake)."""
        to_try, at_home = self._awake[array], self._at_home[array]
        if may_borrow and at_home:
            to_try.update(dict.fromkeys(at_home.values()))
            at_home.clear()
        if not to_try:
            return []
        gang_classes = [gang_class for gang_class in to_try if gang_class.queued_jobs]
        if len(gang_classes) < len(to_try):
            self._awake[array] = dict.fromkeys(gang_classes)
        return gang_classes


def _with_room(rank_classes: Iterable[RankClass], capacity: FreeCapacity, number: int) -> list[RankClass]:
    """Those of which the node has room for a rank."""
    free = capacity.free(number)
    gpus, cpu_m = free.gpus, free.cpu_m
    return [
        rank_class
        for rank_class in rank_classes
        if ((request := rank_class.request).gpus <= gpus or not request.gpus)
        and (request.cpu_m <= cpu_m or not request.cpu_m)
        and request.fits_in(free)
        and number in rank_class.groups.amount_by_node
    ]
