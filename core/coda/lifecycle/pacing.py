"""How many pods of a gang are created now: large gangs queue up at most about a second of kube-scheduler's work.

kube-scheduler binds pods in the order in which they came. Thousands of them at once would make every other job wait.
"""

from __future__ import annotations

from typing import Final

WORTH_S: Final = 1.0
"""Seconds of kube-scheduler's work that gangs may queue up. Our choice: a small job then starts within two."""
SMALL: Final = 8
"""Unbound pods that every gang may have, whatever others have: small gangs start as if they were alone. Our choice."""
FIRST_RATE_PER_S: Final = 100.0  # before anything was measured; docs/benchmarks.md: 124 on 1000 nodes
_LEAST, _MOST = 32, 1024  # unbound pods in all: some keep kube-scheduler busy, more than that helps nobody
_WEIGHT: Final = 0.05  # of one measurement: the last 20 count most


def room_for(unbound_of_gang: int, unbound_in_all: int, rate_per_s: float) -> int:
    """Return how many more pods of a gang may be created now, while pods are bound at `rate_per_s`."""
    window = min(_MOST, max(_LEAST, round(rate_per_s * WORTH_S)))
    return max(0, SMALL - unbound_of_gang, window - unbound_in_all)


def next_rate(rate_per_s: float, queued_before: int, took_s: float) -> float:
    """Return the rate of binding after a pod with `queued_before` others before it was bound after `took_s`.

    A pod that hardly waited for others tells nothing about the rate."""
    if queued_before < SMALL:
        return rate_per_s
    return rate_per_s + _WEIGHT * (queued_before / max(took_s, 0.001) - rate_per_s)
