"""What the allocator's search makes of jobs as they are: pauses, warm-up, correlated noise, drift, phases.

Pure and seeded: random plateau curves, one sample a second, windows and readings as the agent makes them, a resize of
3 s, four hours a job. The planner grants every wish. Rows: the signals that the search was tuned on, and, with
`--unseen`, those it was only judged on. Columns: wrong answers (more than one core from the fewest within 1 % of the
best), GPU time lost against always having the best count, lost without tuning, and answers "cannot tell". A second
table: jobs of several GPUs, on a model of data-parallel training, tuned by the windows of all ranks or of rank 0 only.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the signals are the tests'

from rig.asking import ask, positive, tell
from rig.results import Answer, Row
from tests.core.allocator.data_parallel import PARALLEL_JOBS, tuned_together
from tests.core.allocator.searching import SearchedJob, searched
from tests.core.allocator.signals import ROWS, UNSEEN

CURVES: Final = 40
PARALLEL_RUNS: Final = 5
GPUS: Final = (1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The jobs of one row with as many GPUs. Shares 0..1; `lost` only over jobs with an answer."""

    too_few: float
    too_many: float
    lost: float
    lost_untuned: float
    cannot_tell: float
    minutes: float  # to the first answer
    windows: float  # until the first answer
    reopened: float  # searches begun again, per job


async def answer(options: argparse.Namespace) -> Answer:
    """One cell after the other."""
    curves = 4 if options.quick else options.curves or CURVES
    rows: list[Row] = []
    detail: dict[str, object] = {}
    for name, model in (UNSEEN if options.unseen else ROWS).items():
        if options.only and not any(word in name for word in options.only):
            continue
        for gpus in GPUS:
            cell = cell_of([searched(model, gpus, f"{options.seed} {gpus} {run}") for run in range(curves)])
            rows += rows_of(f"search, {gpus} GPU, {name}", name, cell)
            detail[f"{gpus} GPU, {name}"] = {each: getattr(cell, each) for each in Cell.__slots__}
            tell(line_of(gpus, name, cell))
            await asyncio.sleep(0)  # so that it can be interrupted
    if not options.only:
        rows += parallel_rows(1 if options.quick else PARALLEL_RUNS, options.seed)
    return Answer(question="search_on_real_signals", rows=tuple(rows), detail=detail)


def parallel_rows(runs: int, seed: str) -> Iterator[Row]:
    """Jobs of several GPUs: the slowest of some runs."""
    for name, (job, start) in PARALLEL_JOBS.items():
        for known in (None, 1) if job.pods > 1 else (None,):
            found = [tuned_together(job, start, known=known, seed=f"{seed} {run}") for run in range(runs)]
            slowest = min(found, key=lambda one: one.speed)
            told = "" if known is None else ", only rank 0 known"
            tell(f"{name + told:<62} {start} cores ({slowest.start:.0%}) -> {slowest.cores} ({slowest.speed:.1%})")
            budget = ">= 0.97" if job.waits or known is None else ""
            yield Row(name=f"search, {name}{told}: speed", value=slowest.speed, unit="of the best", budget=budget)


def cell_of(jobs: list[SearchedJob]) -> Cell:
    """Means over the jobs."""
    told = [job for job in jobs if not job.cannot_tell] or jobs
    return Cell(
        too_few=statistics.fmean(job.off < -1 for job in told),
        too_many=statistics.fmean(job.off > 1 for job in told),
        lost=statistics.fmean(job.lost for job in told),
        lost_untuned=statistics.fmean(job.lost_untuned for job in told),
        cannot_tell=statistics.fmean(job.cannot_tell for job in jobs),
        minutes=statistics.fmean(job.answered_s for job in jobs) / 60,
        windows=statistics.fmean(job.windows for job in jobs),
        reopened=statistics.fmean(job.reopened for job in jobs),
    )


def rows_of(key: str, name: str, cell: Cell) -> list[Row]:
    """For the table."""
    wrong, lost = budgets_of(name)
    return [
        Row(name=f"{key}: wrong", value=cell.too_few + cell.too_many, unit="of answers", budget=wrong),
        Row(name=f"{key}: GPU time lost in 4 h", value=cell.lost, unit="of the best", budget=lost),
        Row(name=f"{key}: cannot tell", value=cell.cannot_tell, unit="of jobs"),
    ]


def budgets_of(name: str) -> tuple[str, str]:
    """For wrong answers and for lost GPU time, of the rows that have one."""
    if name not in ROWS:
        return "", ""
    wrong = "<= 0.05" if name.startswith(("evaluation", "checkpoint")) or name.endswith("from 50 %") else ""
    if name.startswith("AR"):
        return wrong, "<= 0.05"
    return wrong, "<= 0.04" if name.startswith(("optimum", "loud")) or name.endswith("from 80 %") else "<= 0.02"


def line_of(gpus: int, name: str, cell: Cell) -> str:
    """One line of the terminal's table."""
    return (
        f"{gpus} GPU {name:<46} wrong {cell.too_few + cell.too_many:>6.1%} ({cell.too_few:>5.1%}/{cell.too_many:>5.1%})"
        f"  lost {cell.lost:>6.2%} (untuned {cell.lost_untuned:>5.1%})  cannot tell {cell.cannot_tell:>5.1%}"
        f"  {cell.minutes:>5.1f} min {cell.windows:>5.1f} windows, begun again {cell.reopened:.1f}"
    )


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--curves", type=positive, help=f"jobs of each cell (default {CURVES})")
    parser.add_argument("--seed", default="judged", help="of curves and signals")
    parser.add_argument("--only", action="append", help="rows with this in their name; may be given several times")
    parser.add_argument("--unseen", action="store_true", help="the signals that the search was not tuned on")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
