"""The places in the queue of CPU jobs that were evicted for others: whoever comes instead takes one of them.

A pod that is evicted is made anew by its owner, with another name, and would wait at the end of the queue. So each
eviction leaves a place, by owner, and the owner's next new pods take the places, the oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

KEPT_S: Final = 3600.0
"""A place that nobody takes in this time is gone: the owner was scaled down, perhaps. Our choice."""

MOST_PLACES: Final = 5000
"""Of all owners; the newest are kept. Their record has 150 KB then, where etcd takes 1.5 MB. Our choice."""


class Place(NamedTuple):
    """Since when its first holder waited, and when it was evicted, both by the API server's clock."""

    queued_s: float
    evicted_s: float


class ReturnedPlaces:
    """Open places by the uid of the owner, and those that waiting pods have taken, by the uid of the pod."""

    def __init__(self) -> None:
        self._open: dict[str, list[Place]] = {}
        self._taken: dict[str, tuple[str, Place]] = {}  # with the owner

    def add(self, owner: str, place: Place) -> None:
        """A pod of this owner is about to be evicted."""
        if not owner:
            return  # nobody makes another one
        places = self._open.setdefault(owner, [])
        places.append(place)
        places.sort()

    def drop(self, owner: str, place: Place) -> None:
        """The pod was not evicted after all. Nothing happens if somebody has taken the place."""
        places = self._open.get(owner, [])
        if place in places:
            places.remove(place)
        if not places:
            self._open.pop(owner, None)

    def taken_by(self, pod: str, owner: str, *, created_s: float) -> Place | None:
        """The place of this waiting pod; None without one. A pod that was there before an eviction takes no place."""
        if pod in self._taken:
            return self._taken[pod][1]
        places = self._open.get(owner, [])
        place = next((place for place in places if created_s >= int(place.evicted_s)), None)
        if place is None:
            return None
        places.remove(place)
        if not places:
            del self._open[owner]
        self._taken[pod] = (owner, place)
        return place

    def leave(self, pod: str) -> None:
        """The pod waits no more: its place is used up."""
        self._taken.pop(pod, None)

    def forget_before(self, now_s: float) -> None:
        """Forget open places that nobody took in time."""
        for owner, places in [*self._open.items()]:
            places[:] = [place for place in places if now_s < place.evicted_s + KEPT_S]
            if not places:
                del self._open[owner]

    def record(self) -> dict[str, list[list[float]]]:
        """Return every place that is not used up, by owner, for `load`."""
        every = [(place, owner) for owner, places in self._open.items() for place in places]
        every += [(place, owner) for owner, place in self._taken.values()]
        every.sort(key=lambda entry: entry[0].evicted_s)
        record: dict[str, list[list[float]]] = {}
        for place, owner in every[-MOST_PLACES:]:
            record.setdefault(owner, []).append([place.queued_s, place.evicted_s])
        return record

    def load(self, record: Mapping[str, Any]) -> None:
        """Begin with the places of a record. Raises TypeError or ValueError for one that cannot be read."""
        self._open = {
            str(owner): sorted(Place(float(queued_s), float(evicted_s)) for queued_s, evicted_s in places)
            for owner, places in record.items()
        }
        self._taken = {}
