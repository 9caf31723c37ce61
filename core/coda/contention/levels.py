"""Two levels of a job's utilisation compared: whether it gained or fell by more than noise explains.

Source: the standard error of a difference of two means; certainties and least changes are our choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

FEWEST = 3  # utilisations that show a change
ENOUGH = 5  # that show that there is none


class Verdict(Enum):
    """What two levels say of a change."""

    PROVED = "Proved"
    REFUTED = "Refuted"
    OPEN = "Open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLevel:
    """Utilisations of one job, with the same cores and under the same limits, oldest first."""

    job: str
    cores: int
    shares: tuple[float, ...]


def mean_of(shares: Sequence[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(shares) / len(shares) if shares else 0.0


def verdict_on_rise(low: BusyLevel, high: BusyLevel, *, least: float, error: float, certainty: float) -> Verdict:
    """Return whether the mean rose from `low` to `high` by `least` (0..1) and by `certainty` standard errors.

    `error`: the standard error as known from before, if these utilisations do not show a larger one. For a fall,
    exchange the two."""
    fewest = min(len(low.shares), len(high.shares))
    if fewest < FEWEST or low.cores != high.cores:
        return Verdict.OPEN
    here = _spread(low.shares, high.shares) * math.sqrt(1 / len(low.shares) + 1 / len(high.shares))
    error = max(error, here)
    rise = mean_of(high.shares) - mean_of(low.shares)
    if rise >= max(least, certainty * error):
        return Verdict.PROVED
    return Verdict.REFUTED if fewest >= ENOUGH and rise + 2 * error < least else Verdict.OPEN


def _spread(one: Sequence[float], other: Sequence[float]) -> float:
    """The standard deviation inside the two levels."""
    squares = sum((share - mean_of(shares)) ** 2 for shares in (one, other) for share in shares)
    return math.sqrt(squares / (len(one) + len(other) - 2))
