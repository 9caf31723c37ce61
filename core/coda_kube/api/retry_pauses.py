"""How long to wait before a request is tried again.

Thousands of agents that lose one API server must not come back together. So their pauses grow, and each is drawn at
random from 0 to its bound ("full jitter"). The bounds are client-go's for a broken watch: 0.8 to 30 s. What the server
asks for in Retry-After comes on top."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.8
LONGEST_S: Final = 30.0
SPREAD_S: Final = 5.0
"""Seconds over which agents come back whose watches one server ended together. Our choice."""

_QUICK_DELAYS_S: Final = (0.1, 0.3, 1.0)
"""For the few programs that plan and act, which need news at once after an outage."""


def pause_s(failures: int, retry_after_s: float, *, is_calm: bool) -> float:
    """Return the seconds to wait after one failure more. `failures`: those before it, in a row.

    `is_calm`: one of thousands of clients, which needs no news of an outage."""
    if is_calm:
        return retry_after_s + random.uniform(0.0, growing_s(failures, FIRST_S, LONGEST_S))
    return max(retry_after_s, _QUICK_DELAYS_S[min(failures, len(_QUICK_DELAYS_S) - 1)])


def write_pause_s(failures: int, retry_after_s: float, *, first_s: float, longest_s: float) -> float:
    """Return the seconds to wait before a write is tried again: between half and all of a growing bound."""
    return retry_after_s + random.uniform(0.5, 1.0) * growing_s(failures, first_s, longest_s)


def spread_s() -> float:
    """Return the seconds to wait where the server ended something for all clients at once."""
    return random.uniform(0.0, SPREAD_S)


def growing_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return `first_s`, doubled for each failure, at most `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))
