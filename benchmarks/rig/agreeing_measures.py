"""How closely the measures of a replay and of a simulation agree: shares of jobs that started in time, and waits. Pure.

Waits are from submission to placement, with those after stops, in trace seconds on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from coda_sim.results.audit import AuditedJob
from coda_sim.results.statistics import STARTED_WITHIN_S, mean, percentile
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


def measures_table(live: Sequence[LiveJob], records: Sequence[AuditedJob]) -> Iterator[str]:
    """In Markdown: the measures of GPU jobs and of CPU jobs on both sides, of the jobs that finished live."""
    yield "| | replay | simulated | difference | alike |"
    yield "|---|---|---|---|---|"
    record_by_id = {job.job_id: job for job in records}
    for kind in ("gpu", "cpu"):
        jobs = [job for job in live if bool(job.gpus) == (kind == "gpu")]
        if jobs:
            yield from _rows(kind, live_waits(jobs), simulated_waits([record_by_id[job.job_id] for job in jobs]))


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


def _rows(kind: str, live: Waits, simulated: Waits) -> Iterator[str]:
    for name, limit_s in STARTED_WITHIN_S.items():
        here, there = (
            100 * sum(wait_s <= limit_s for wait_s in one.firsts_s) / len(one.firsts_s) for one in (live, simulated)
        )
        alike = _yes(abs(here - there) <= NEAR_POINTS)
        yield f"| `{kind}_started_{name}` | {here:.1f} % | {there:.1f} % | {here - there:+.1f} points | {alike} |"
    for name, live_s, simulated_s in (
        ("mean", mean(live.alls_s) or 0.0, mean(simulated.alls_s) or 0.0),
        ("p90", percentile(live.alls_s, 0.9) or 0.0, percentile(simulated.alls_s, 0.9) or 0.0),
    ):
        off_s = live_s - simulated_s
        alike = _yes(abs(off_s) <= max(NEAR_S, NEAR_SHARE * simulated_s))
        share = f" ({off_s / simulated_s:+.1%})" if simulated_s else ""
        yield f"| `{kind}_wait_{name}_s` | {live_s:.0f} | {simulated_s:.0f} | {off_s:+.0f}{share} | {alike} |"
    if kind == "cpu":
        yield f"| `aborts` | {live.stops} | {simulated.stops} | {live.stops - simulated.stops:+d} | |"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
