"""Run times of many jobs as few numbers: the quantiles of each group of owner, category and GPUs.

The operator, which has the store, publishes the groups; the planner, which has no database, makes runs of them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coda.history.run_times import FinishedRun

QUANTILES: Final = 9
"""Run times that stand for a group: each for as many of its jobs. Our choice: the text stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Finished jobs of one owner, category and number of GPUs. `run_s`: at most `QUANTILES` run times, shortest first.

    `jobs` counts those that the run times were taken from."""

    owner: str
    category: str
    gpus: int
    jobs: int
    run_s: tuple[float, ...]


def run_groups(runs: Iterable[FinishedRun], most_groups: int) -> tuple[RunGroup, ...]:
    """Return the groups with the most jobs, these first; among equals by name. O(runs log runs)."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for run in runs:
        found.setdefault((run.owner, run.category, run.gpus), []).append(run.run_s)
    groups: list[RunGroup] = []
    for key in sorted(found, key=lambda group: (-len(found[group]), group))[:most_groups]:
        times_s = sorted(found[key])
        owner, category, gpus = key
        groups.append(RunGroup(owner=owner, category=category, gpus=gpus, jobs=len(times_s), run_s=_quantiles(times_s)))
    return tuple(groups)


def runs_from_groups(groups: Iterable[RunGroup], most_runs: int = 50) -> tuple[FinishedRun, ...]:
    """Return runs that stand for the groups: as many as each has jobs, `most_runs` at most, spread over its run times.

    They are in the order of the groups from the last one on, so that the largest groups are learned last."""
    runs: list[FinishedRun] = []
    for group in reversed(list(groups)):
        count = min(group.jobs, most_runs)
        for index in range(count):
            run_s = group.run_s[index * len(group.run_s) // count]
            runs.append(FinishedRun(owner=group.owner, category=group.category, gpus=group.gpus, run_s=run_s))
    return tuple(runs)


def _quantiles(times_s: list[float]) -> tuple[float, ...]:
    """The middle of each of `QUANTILES` equal parts; all of them if there are no more."""
    count = len(times_s)
    if count <= QUANTILES:
        return tuple(times_s)
    return tuple(times_s[(2 * part + 1) * count // (2 * QUANTILES)] for part in range(QUANTILES))
