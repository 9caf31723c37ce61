"""Seconds since 1970 that advance evenly, whatever becomes of this machine's clock.

Replicas on several machines write times that others read after a fail-over. So all of them follow the API server's
clock, which each answer carries. A jump of the local clock changes nothing; one of the API server's is followed slowly.

A virtual machine that stands still stops our time with it. Then the local clock, once set right, and the API server
agree against ours, and a slow correction would take ten times the pause. So our time goes forward to theirs at once, as
that of a new process does. If ours is ahead of both, it is corrected slowly: times that were written must not come
again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

CLOSE_S: Final = 2.0
"""The local clock is taken as it is if it is this near: an answer tells only whole seconds, and late."""
SLEW: Final = 0.1
"""Seconds per second by which a difference is made up: nothing waits less than nine tenths of its time."""
BEHIND_S: Final = 30.0
"""Our time goes forward at once if it is further behind: to make up less takes five minutes at most. Our choice."""
AGREED_ANSWERS: Final = 3
AGREED_S: Final = 50.0
"""So many answers in a row, over so long, must agree with the local clock before. Our choice: with several API servers
of different times, or a clock that is being set, one or two agree by chance. On a cluster of one machine they always
agree, and a wrong step takes ten times as long to leave."""


def boot_time_s() -> float:
    """Return seconds that advance evenly; those in which the machine sleeps count where it can tell (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class SteadyClock:
    """Call it for the time. `observe` what the API server says."""

    def __init__(self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = boot_time_s) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._at_s = monotonic()
        self._offset_s = self._target_s = wall() - self._at_s  # what is added to the monotonic time
        self._observed = ""
        self._agreed_s: list[float] = []  # monotonic: the last answers in a row that agreed with `wall` against us

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
        our_s, wall_s = self(), self._wall()
        is_close = abs(wall_s - server_s) <= CLOSE_S
        self._target_s = (wall_s if is_close else server_s) - self._at_s
        if not self._observed or self._is_left_behind(is_ahead=is_close and wall_s > our_s + BEHIND_S):
            self._offset_s = self._target_s
        self._observed = date or ""

    def _is_left_behind(self, *, is_ahead: bool) -> bool:
        """True once the local clock and enough answers agree that our time is far behind. `is_ahead`: this one does."""
        if not is_ahead:
            self._agreed_s.clear()
            return False
        self._agreed_s.append(self._at_s)
        return len(self._agreed_s) >= AGREED_ANSWERS and self._at_s - self._agreed_s[0] >= AGREED_S
