"""When a fault that lasts is logged: at once, in other words at once, and again every ten minutes.

Alerts come minutes or hours after a fault began, and whoever reads the log then looks at the last hour. A line for each
try would fill the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SAY_AGAIN_S: Final = 600.0
"""Our choice."""


class SayAgain:
    """Of one kind of fault. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, every_s: float = SAY_AGAIN_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._said: tuple[str, float] | None = None  # words and time

    def is_due(self, words: str = "") -> bool:
        """Return whether to log it now with these words, which then counts as done."""
        now_s = self._clock()
        if self._said is not None and self._said[0] == words and 0 <= now_s - self._said[1] < self._every_s:
            return False
        self._said = (words, now_s)
        return True

    def end(self) -> None:
        """The fault is over: the next one is logged at once."""
        self._said = None
