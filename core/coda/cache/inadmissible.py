"""Classes of gangs that did not fit, not tried again until a node gains free capacity for one of their ranks.

A gang that did not fit does not fit while no node has more than it had. So a cycle tries few classes, and the number of
waiting jobs costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from coda.cache.gang_class import GangClass
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import RankClass
from coda.policy.arrays import Array

_Sleepers = dict[RankClass, dict[Hashable, GangClass]]
"""By the ranks that did not fit, then by class key: a class that is parked again replaces its earlier entry."""


class InadmissibleClasses:
    """Which waiting classes may fit, as far as known. Free capacity must change only by `set_free`."""

    def __init__(self) -> None:
        self._awake: dict[Array, dict[GangClass, None]] = {array: {} for array in Array}
        # Parked, but not asked whether they fit by borrowing.
        self._at_home: dict[Array, dict[Hashable, GangClass]] = {array: {} for array in Array}
        self._asleep: dict[FreeCapacity, _Sleepers] = {}
        self._were_protected = False  # nodes were protected in the last cycle

    def admit(self, gang_classes: Iterable[GangClass]) -> None:
        """These are new, or nothing is known about them any more."""
        for gang_class in gang_classes:
            self._awake[gang_class.array][gang_class] = None

    def park(self, gang_class: GangClass, rank_classes: Iterable[RankClass], *, may_borrow: bool = True) -> None:
        """Do not try the class before one of these gains. `may_borrow` False: borrowing was not tried."""
        self._awake[gang_class.array].pop(gang_class, None)
        if not may_borrow:
            self._at_home[gang_class.array][gang_class.key] = gang_class
        for rank_class in rank_classes:
            capacity = rank_class.groups.capacity
            sleepers = self._asleep.get(capacity)
            if sleepers is None:
                capacity.pop_gained()  # earlier gains: this class was tried with them
                sleepers = self._asleep[capacity] = {}
            sleepers.setdefault(rank_class, {})[gang_class.key] = gang_class

    def wake(self, *, are_protected: bool) -> None:
        """Wake the classes that may fit, once in a cycle before `to_try`. O(nodes that gained x parked rank classes).

        `are_protected`: there are protected nodes. If that differs from the last cycle, other views count: all wake."""
        if are_protected is not self._were_protected:
            self._were_protected = are_protected
            for sleepers in self._asleep.values():
                for gang_classes in sleepers.values():
                    self.admit(gang_classes.values())
                sleepers.clear()
        for capacity, sleepers in self._asleep.items():
            for number in capacity.pop_gained():
                for rank_class in _with_room(sleepers, capacity, number) if sleepers else ():
                    self.admit(sleepers.pop(rank_class).values())

    def to_try(self, array: Array, *, may_borrow: bool = True) -> list[GangClass]:
        """Return the classes of an array to try, after `wake`. O(classes awake)."""
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
    """Those whose rank fits the node now; all of them, if asking raises: then each is judged again by itself."""
    try:
        return _fitting(rank_classes, capacity, number)
    except Exception:  # one class that cannot be judged must not keep the others asleep
        return list(rank_classes)


def _fitting(rank_classes: Iterable[RankClass], capacity: FreeCapacity, number: int) -> list[RankClass]:
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
