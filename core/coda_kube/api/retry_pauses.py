"""How long to wait before a request is tried again.

Thousands of agents that lose one API server must not come back together. So their pauses grow, and each is drawn at
random from 0 to its bound ("full jitter"). The bounds are client-go's for a broken watch: 0.8 to 30 s. Those of the few
programs that need news at once are shorter, and drawn from half to all of a bound. What the server asks for in
Retry-After comes on top."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from coda.errors import Outage

FIRST_S: Final = 0.8
LONGEST_S: Final = 30.0
SPREAD_S: Final = 5.0
"""Seconds over which agents come back whose watches one server ended together. Our choice."""

_QUICK_DELAYS_S: Final = (0.1, 0.3, 1.0)
"""For the few programs that plan and act, which need news at once after an outage."""
_SHORT_S: Final = (0.1, 3.0)  # so much more after short watches: a proxy that does not stream ends each. Our choice
_LIST_DELAYS_S: Final = (0.1, 0.3, 1.0, 3.0, 10.0)  # between two lists: one costs the server much more than a watch
_CALM_S: Final = 15.0  # after this time without a list, the next one begins a new row


def pause_s(failures: int, retry_after_s: float, *, is_calm: bool) -> float:
    """Return the seconds to wait after one failure more. `failures`: those before it, in a row.

    `is_calm`: one of thousands of clients, which needs no news of an outage."""
    if is_calm:
        return retry_after_s + random.uniform(0.0, growing_s(failures, FIRST_S, LONGEST_S))
    return retry_after_s + random.uniform(0.5, 1.0) * _QUICK_DELAYS_S[min(failures, len(_QUICK_DELAYS_S) - 1)]


def write_pause_s(failures: int, retry_after_s: float, *, first_s: float, longest_s: float) -> float:
    """Return the seconds to wait before a write is tried again: between half and all of a growing bound."""
    return retry_after_s + random.uniform(0.5, 1.0) * growing_s(failures, first_s, longest_s)


def spread_s() -> float:
    """Return the seconds to wait where the server ended something for all clients at once."""
    return random.uniform(0.0, SPREAD_S)


def growing_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return `first_s`, doubled for each failure, at most `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))


def ended_at_once(failures: int) -> Outage:
    """Return the error of a watch that ended at once, and cleanly, after so many failures in a row."""
    return Outage("the watch ended at once", retry_after_s=growing_s(failures, *_SHORT_S))


class ListPauses:
    """The pauses between lists. They grow in a row and count from the last list: after a quiet time none is due."""

    def __init__(self) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._listed_s = self._now_s() - _CALM_S
        self._row = 0

    @contextmanager
    def of_a_list(self) -> Iterator[None]:
        """Around a list, whether it succeeds or not."""
        self._row = 0 if self._now_s() - self._listed_s >= _CALM_S else self._row + 1
        try:
            yield
        finally:
            self._listed_s = self._now_s()

    def before_the_next(self) -> float:
        """The seconds from now until the next list may begin."""
        pause_s = _LIST_DELAYS_S[min(self._row, len(_LIST_DELAYS_S) - 1)]
        return max(_LIST_DELAYS_S[0], pause_s - (self._now_s() - self._listed_s))
