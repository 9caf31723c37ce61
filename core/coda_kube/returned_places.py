"""The places in the queue of CPU jobs that were evicted for others: whoever comes instead takes one of them.

A pod that is evicted is made anew by its owner, with another name, and would wait at the end of the queue. So each
eviction leaves a place, by owner, and the owner's next new pods take the places, the oldest first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

KEPT_S: Final = 3600.0
"""A place is for pods created in this time: later, the owner was scaled down and up again, perhaps. Our choice."""

EARLY_S: Final = 60.0
"""A pod made so long before the eviction may be its heir: our clock may go before that of the API server that made it,
and a creation time is a whole second. Our choice: if another pod of the owner takes the place, the owner loses nothing.
"""

MOST_PLACES: Final = 5000
"""Of all owners; the newest are kept. Their record has 150 KB then, where etcd takes 1.5 MB. Our choice."""


class Place(NamedTuple):
    """Since when its first holder waited, and when it was evicted, both by the API server's clock; and how often in a
    row its holders were (`policy.reclaim`)."""

    queued_s: float
    evicted_s: float
    times: int = 1

    def recorded(self) -> list[float]:
        """Return what the record says of it; `times` only above 1, so that an older version can read most records."""
        return [*self[:2]] if self.times == 1 else [*self]


Record = dict[str, list[list[float]]]
"""Places by the uid of the owner, each as `queued_s`, `evicted_s` and, above 1, `times`."""


class _Open:
    """The open places of one owner, in two orders: which is next in the queue, and since when there are any."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.places = sorted(places)
        self._evicted_s = sorted(place.evicted_s for place in self.places)

    def add(self, place: Place) -> None:
        insort(self.places, place)
        insort(self._evicted_s, place.evicted_s)

    def pop(self, number: int) -> Place:
        place = self.places.pop(number)
        del self._evicted_s[bisect_left(self._evicted_s, place.evicted_s)]
        return place

    def first_for(self, created_s: float) -> int | None:
        """The number of the first place that a pod of this age may take. O(log places) where it finds none."""
        since_s, until_s = created_s - KEPT_S, created_s + EARLY_S
        if bisect_right(self._evicted_s, since_s) == bisect_right(self._evicted_s, until_s):
            return None
        return next(number for number, place in enumerate(self.places) if since_s < place.evicted_s <= until_s)


class ReturnedPlaces:
    """Open places by the uid of the owner, and those that waiting pods have taken, by the uid of the pod."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._taken: dict[str, tuple[str, Place]] = {}  # with the owner
        self.on_used: Callable[[], None] = lambda: None  # called when one is used up or dropped

    def owners(self) -> set[str]:
        """Every owner with a place that is not used up."""
        return self._open.keys() | {owner for owner, _ in self._taken.values()}

    def add(self, owner: str, place: Place) -> None:
        """A pod of this owner is about to be evicted."""
        if not owner:
            return  # nobody makes another one
        if owner in self._open:
            self._open[owner].add(place)
        else:
            self._open[owner] = _Open((place,))

    def drop(self, owner: str, place: Place) -> None:
        """The pod was not evicted after all. Nothing happens if somebody has taken the place."""
        if owner in self._open and place in self._open[owner].places:
            self._pop(owner, self._open[owner].places.index(place))
            self.on_used()

    def taken_by(self, pod: str, owner: str, *, created_s: float) -> Place | None:
        """The place of this waiting pod; None without one.

        A pod takes no place of an eviction after its creation, nor of one `KEPT_S` before."""
        if pod in self._taken:
            return self._taken[pod][1]
        number = self._open[owner].first_for(created_s) if owner in self._open else None
        if number is None:
            return None
        place = self._pop(owner, number)
        self._taken[pod] = (owner, place)
        return place

    def leave(self, pod: str) -> None:
        """The pod waits no more: its place is used up."""
        if self._taken.pop(pod, None) is not None:
            self.on_used()

    def forget_before(self, now_s: float) -> None:
        """Forget open places that nobody took in time."""
        for owner, places in [*self._open.items()]:
            kept = [place for place in places.places if now_s < place.evicted_s + KEPT_S]
            if kept:
                self._open[owner] = _Open(kept)
            else:
                del self._open[owner]

    def record(self) -> Record:
        """Return every place that is not used up, by owner, for `load`."""
        every = [(place, owner) for owner, places in self._open.items() for place in places.places]
        every += [(place, owner) for owner, place in self._taken.values()]
        every.sort(key=lambda entry: entry[0].evicted_s)
        record: Record = {}
        for place, owner in every[-MOST_PLACES:]:
            record.setdefault(owner, []).append(place.recorded())
        return record

    def load(self, record: Record) -> None:
        """Begin with the places of a record."""
        self._open, self._taken = {}, {}
        self.add_all(record)

    def add_all(self, record: Record) -> None:
        """Add the places of a record."""
        for owner, places in record.items():
            for queued_s, evicted_s, *times in places:
                self.add(owner, Place(queued_s, evicted_s, *map(int, times[:1])))

    def _pop(self, owner: str, number: int) -> Place:
        place = self._open[owner].pop(number)
        if not self._open[owner].places:
            del self._open[owner]
        return place
