"""The room of nodes that are kept for a job, out of others' reach for one round. What must not live here: which nodes
those are (`reserving`)."""

from __future__ import annotations

from coda.cache.world_index import Known
from coda.cycle.reservation import Reservation, Takes


class Kept:
    """From its making to `give_back` others find there what the reservation leaves them, and stop only who may be."""

    def __init__(self, known: Known, reservation: Reservation) -> None:
        self.job = reservation.job
        self._known = known
        self._left = reservation.left_for_others
        self._free = {number: known.room.free(number) for number in self._left}
        self._put(self._left)
        if known.lending is not None:
            known.lending.keep(reservation.unstopped)

    def give_back(self) -> None:
        """Put back what was kept, less what others took of the rest."""
        room = self._known.room
        left = self._left
        self._put({number: self._free[number] - (left[number] - room.free(number)) for number in left})
        if self._known.lending is not None:
            self._known.lending.keep_no_more()

    def _put(self, room_by_number: Takes) -> None:
        for number, room in room_by_number.items():
            self._known.room.put(number, room)
        if self._known.lending is not None:
            self._known.lending.follow(room_by_number)
