"""How closely the measures of a replay and of a simulation agree: shares of jobs that started in time, and waits. Pure.

Waits are from submission to placement, with those after stops, in trace seconds on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from coda_sim.results.audit import AuditedJob
from coda_sim.results.statistics import STARTED_WITHIN_S, mean, percentile
from rig.agreeing import Starts
from rig.replayed import LiveJob

NEAR_POINTS: Final = 5.0
"""Shares of jobs that differ by no more percentage points are alike."""

NEAR_SHARE: Final = 0.1
NEAR_S: Final = 30.0
"""Waits that differ by no more than this part of the simulated one, or by no more trace seconds, are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of the jobs of one kind that started: until their first start, in all, and how often they were stopped."""

    firsts_s: Sequence[float]
    alls_s: Sequence[float]
    stops: int


def measures_table(
    live: Sequence[LiveJob], records: Sequence[AuditedJob], drawn: Sequence[Starts] = ()
) -> Iterator[str]:
    """In Markdown: the measures of GPU jobs and of CPU jobs on both sides, of the jobs that finished live.

    `drawn`: simulations of the same jobs with other moments, for the last column; until first starts there.
    """
    yield "| | replay | simulated | difference | alike | simulated with moments like the replay's |"
    yield "|---|---|---|---|---|---|"
    record_by_id = {job.job_id: job for job in records}
    for kind in ("gpu", "cpu"):
        jobs = [job for job in live if bool(job.gpus) == (kind == "gpu")]
        if jobs:
            firsts_s = [[one[job.job_id].wait_s for job in jobs] for one in drawn]
            simulated = simulated_waits([record_by_id[job.job_id] for job in jobs])
            yield from _rows(kind, live_waits(jobs), simulated, firsts_s)


def live_waits(jobs: Sequence[LiveJob]) -> Waits:
    """Of a replay's jobs."""
    return Waits(
        firsts_s=[job.start_s - job.submit_s for job in jobs],
        alls_s=[job.all_waits_s for job in jobs],
        stops=sum(job.stops for job in jobs),
    )


def simulated_waits(jobs: Sequence[AuditedJob]) -> Waits:
    """Of a simulation's jobs; each stop begins another piece, because no core count changes."""
    gaps_s = [sum(after.start_s - before.end_s for before, after in pairwise(job.spans)) for job in jobs]
    firsts_s = [job.spans[0].start_s - job.submit_s for job in jobs]
    return Waits(
        firsts_s=firsts_s,
        alls_s=[first_s + gap_s for first_s, gap_s in zip(firsts_s, gaps_s, strict=True)],
        stops=sum(len(job.spans) - 1 for job in jobs),
    )


def _rows(kind: str, live: Waits, simulated: Waits, drawn_s: Sequence[Sequence[float]]) -> Iterator[str]:
    for name, limit_s in STARTED_WITHIN_S.items():
        here, there = (_started(one.firsts_s, limit_s) for one in (live, simulated))
        alike = _yes(abs(here - there) <= NEAR_POINTS)
        span = _span([_started(one, limit_s) for one in drawn_s], ".1f", " %")
        yield f"| `{kind}_started_{name}` | {here:.1f} % | {there:.1f} % | {_points(here - there)} | {alike} |{span} |"
    for name, of in _WAITS.items():
        live_s, simulated_s = of(live.alls_s), of(simulated.alls_s)
        off_s = live_s - simulated_s
        alike = _yes(abs(off_s) <= max(NEAR_S, NEAR_SHARE * simulated_s))
        share = f" ({off_s / simulated_s:+.1%})" if simulated_s else ""
        span = _span([of(one) for one in drawn_s], ".0f", "")
        yield f"| `{kind}_wait_{name}_s` | {live_s:.0f} | {simulated_s:.0f} | {off_s:+.0f}{share} | {alike} |{span} |"
    if kind == "cpu":
        yield f"| `aborts` | {live.stops} | {simulated.stops} | {live.stops - simulated.stops:+d} | | |"


_WAITS: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "mean": lambda waits_s: mean(waits_s) or 0.0,
    "p90": lambda waits_s: percentile(waits_s, 0.9) or 0.0,
}


def _started(waits_s: Sequence[float], limit_s: float) -> float:
    """In per cent."""
    return 100 * sum(wait_s <= limit_s for wait_s in waits_s) / len(waits_s)


def _points(off: float) -> str:
    return f"{off:+.1f} points"


def _span(values: Sequence[float], how: str, unit: str) -> str:
    return f" {min(values):{how}} to {max(values):{how}}{unit}" if values else ""


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
