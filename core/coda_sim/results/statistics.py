"""Percentile, mean, Jain's index, and the metrics of waits. Shares are 0..1, times are seconds; None: no values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

STARTED_WITHIN_S: Mapping[str, float] = {"10s": 10.0, "3min": 180.0, "10min": 600.0, "1h": 3600.0}


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` (0..1) of `values` are, linear between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def wait_measures(kind: str, waits_s: Sequence[float]) -> dict[str, float | None]:
    """Return `<kind>_wait_{mean,p50,p90,p99,most}_s` of the jobs that started."""
    return {
        f"{kind}_wait_mean_s": mean(waits_s),
        f"{kind}_wait_p50_s": percentile(waits_s, 0.5),
        f"{kind}_wait_p90_s": percentile(waits_s, 0.9),
        f"{kind}_wait_p99_s": percentile(waits_s, 0.99),
        f"{kind}_wait_most_s": max(waits_s, default=None),
    }


def started_measures(kind: str, waits_s: Sequence[float], jobs: int) -> dict[str, float | None]:
    """Return `<kind>_started_{10s,3min,10min,1h}`: the share of all `jobs` that started in time."""
    return {
        f"{kind}_started_{name}": sum(wait <= limit for wait in waits_s) / jobs if jobs else None
        for name, limit in STARTED_WITHIN_S.items()
    }


def jain_index(values: Sequence[float]) -> float | None:
    """Return Jain's fairness index: 1 if all are equal, 1/n if one has everything; None without values above 0."""
    squares = math.fsum(value * value for value in values)
    if not squares:
        return None
    total = math.fsum(values)
    return total * total / (len(values) * squares)
