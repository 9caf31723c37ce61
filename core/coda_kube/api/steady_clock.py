"""Seconds since 1970 that advance evenly, whatever becomes of this machine's clock.

Replicas on several machines write times that others read after a fail-over. So all of them follow the API server's
clock, which each answer carries. A jump of the local clock changes nothing; one of the API server's is followed slowly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

CLOSE_S: Final = 2.0
"""The local clock is taken as it is if it is this near: an answer tells only whole seconds, and late."""
SLEW: Final = 0.1
"""Seconds per second by which a difference is made up: nothing waits less than nine tenths of its time."""


class SteadyClock:
    """Call it for the time. `observe` what the API server says."""

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._at_s = monotonic()
        self._offset_s = self._target_s = wall() - self._at_s  # what is added to the monotonic time
        self._observed = ""

    def __call__(self) -> float:
        """Return the time. It never goes back."""
        now_s = self._monotonic()
        most_s = (now_s - self._at_s) * SLEW
        self._offset_s += max(-most_s, min(most_s, self._target_s - self._offset_s))
        self._at_s = now_s
        return now_s + self._offset_s

    def observe(self, date: str | None) -> None:
        """Follow the Date header of an answer. The first one is believed at once; an unreadable one is ignored."""
        if date == self._observed:
            return  # of the same second
        try:
            server_s = parsedate_to_datetime(date or "").timestamp() + 0.5
        except ValueError:
            return
        self()
        wall_s = self._wall()
        self._target_s = (wall_s if abs(wall_s - server_s) <= CLOSE_S else server_s) - self._monotonic()
        if not self._observed:
            self._offset_s = self._target_s
        self._observed = date or ""
