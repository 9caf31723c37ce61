"""`summary.json` and `timing.json`: the runs, and their means with the 95 % interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coda_sim.results.metrics import RunMetrics
from coda_sim.results.speed_gain import SpeedGain
from coda_sim.results.statistics import mean

SCHEMA = 1

_STUDENT_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for a two-sided 95 % interval, by degrees of freedom from 1; above 30 the normal distribution's."""
_NORMAL_975 = 1.960


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a run cost. It differs from run to run, so it is never in the same file as results."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    compiled: bool = False  # by mypyc, instead of pure Python


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one run. `gain` is for people: no summary has it."""

    policy: str
    without: tuple[str, ...]
    seed: int
    metrics: RunMetrics
    timing: Timing
    gain: SpeedGain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean of a metric over seeds, and the 95 % interval of the true mean; None with one seed."""

    mean: float
    low: float | None
    high: float | None


def interval_of(values: Sequence[float | None]) -> Interval | None:
    """Return the interval by Student's t; None if any seed measured nothing."""
    known = [value for value in values if value is not None]
    middle = mean(known)
    if middle is None or len(known) < len(values):
        return None
    if len(known) == 1:
        return Interval(mean=middle, low=None, high=None)
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in known) / (len(known) - 1))
    freedom = len(known) - 1
    factor = _STUDENT_975[freedom - 1] if freedom <= len(_STUDENT_975) else _NORMAL_975
    half = factor * spread / math.sqrt(len(known))
    return Interval(mean=middle, low=middle - half, high=middle + half)


def grouped(results: Sequence[RunResult]) -> dict[tuple[str, tuple[str, ...]], list[RunResult]]:
    """Return the runs by policy and components left out, in the order given."""
    groups: dict[tuple[str, tuple[str, ...]], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.policy, result.without), []).append(result)
    return groups


def intervals_of(results: Sequence[RunResult]) -> dict[str, Interval | None]:
    """Return the interval of every metric of one group."""
    return {name: interval_of([result.metrics[name] for result in results]) for name in results[0].metrics}


def json_from_results(results: Sequence[RunResult], head: dict[str, Any]) -> dict[str, Any]:
    """Return the summary. `head`: version, command, workload, cluster, ...; a metric without values is null."""
    return {
        "schema": SCHEMA,
        **head,
        "runs": [
            {"policy": one.policy, "without": list(one.without), "seed": one.seed, "metrics": one.metrics}
            for one in results
        ],
        "means": [_means(policy, without, group) for (policy, without), group in grouped(results).items()],
    }


def json_from_timings(results: Sequence[RunResult]) -> dict[str, Any]:
    """Return the costs of each run."""
    return {
        "runs": [
            {
                "policy": one.policy,
                "without": list(one.without),
                "seed": one.seed,
                "wall_s": one.timing.wall_s,
                "cpu_s": one.timing.cpu_s,
                "peak_rss_bytes": one.timing.peak_rss_bytes,
                "compiled": one.timing.compiled,
            }
            for one in results
        ]
    }


def _means(policy: str, without: tuple[str, ...], group: Sequence[RunResult]) -> dict[str, Any]:
    found = intervals_of(group)
    empty = {"mean": None, "low": None, "high": None}
    metrics = {
        name: empty if one is None else {"mean": one.mean, "low": one.low, "high": one.high}
        for name, one in found.items()
    }
    return {"policy": policy, "without": list(without), "seeds": [one.seed for one in group], "metrics": metrics}
