"""What tuning makes of jobs whose speed their GPUs do not show at once: queues, slow storage, work on CPUs alone.

Pure and seeded: jobs as pipelines of loading, a queue and GPUs (`tests/core/allocator/pipelines.py`), one look a
second, readings as the agent makes them. Columns: steps lost against the same job with the cores that it began with
(what its loading needs, half more, or twice), jobs that lost more than 1 %, and cores that it had, as a share of
those.
`--unseen`: the rows on which the rules were only judged.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the jobs are the tests'

from rig.asking import ask, positive, tell
from rig.results import Answer, Row
from tests.core.allocator.pipelines import LAST, TRIED, UNTRIED, piped

JOBS: Final = 30
QUICK_JOBS: Final = 3
LOST: Final = "<= 0.02"


async def answer(options: argparse.Namespace) -> Answer:
    """One row after the other."""
    runs = QUICK_JOBS if options.quick else options.jobs or JOBS
    rows: list[Row] = []
    detail: dict[str, object] = {}
    for name, model in ({**UNTRIED, **LAST} if options.unseen else TRIED).items():
        if options.only and not any(word in name for word in options.only):
            continue
        jobs = [piped(name, model, options.first + run) for run in range(runs)]
        lost, worst = statistics.fmean(job.lost for job in jobs), max(job.lost for job in jobs)
        kept, worse = statistics.fmean(job.kept for job in jobs), sum(job.lost > 0.01 for job in jobs)
        rows.append(Row(name=f"pipeline, {name}: steps lost", value=lost, unit="of untuned", budget=LOST))
        rows.append(Row(name=f"pipeline, {name}: cores", value=kept, unit="of its first"))
        changes = statistics.fmean(job.changes for job in jobs)
        detail[name] = {"lost": lost, "worst": worst, "worse": worse / runs, "cores": kept, "changes": changes}
        tell(
            f"{name:<72} lost {lost:>6.1%}, worst {worst:>6.1%}, over 1 %: {worse:>2} of {runs}"
            f"  cores {kept:>5.0%}  {changes:.1f} changes an hour"
        )
        await asyncio.sleep(0)  # so that it can be interrupted
    return Answer(question="search_on_pipelines", rows=tuple(rows), detail=detail)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=positive, help=f"jobs of each row (default {JOBS})")
    parser.add_argument("--first", type=int, default=1000, help="number of the first job: its seed")
    parser.add_argument("--only", action="append", help="rows with this in their name; may be given several times")
    parser.add_argument("--unseen", action="store_true", help="the rows on which the rules were only judged")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
