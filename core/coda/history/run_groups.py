"""Run times of many jobs as few numbers, for each group of owner, category and GPUs.

The operator, which has the store, publishes the groups; the planner, which has no database, learns from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

from coda.history.run_times import FinishedRun, RunTimes

PARTS: Final = 9
"""Run times that stand for a group: each for as many of its jobs. Our choice: the text stays small."""

MOST_JOBS: Final = 50.0
"""Jobs that a group is learned as, at most. Our choice: a day's own jobs soon say more than the past."""

_MIX: Final = 7919  # it makes neighbours of parts that have nothing to do with each other
_MIXED: Final = 1009


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Finished jobs of one owner, category and number of GPUs, `jobs` of them.

    run_s: the mean run times of at most `PARTS` equal parts of them, shortest first"""

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
        groups.append(
            RunGroup(owner=owner, category=category, gpus=gpus, jobs=len(times_s), run_s=_part_means(times_s))
        )
    return tuple(groups)


def learn_groups(run_times: RunTimes, groups: Iterable[RunGroup]) -> None:
    """Count the jobs that the groups stand for, each group as `MOST_JOBS` at most. O(groups).

    The largest groups are learned last, so they are forgotten last. Their parts say how far the order of means is that
    of single run times: each is tried with the mean of the others of its group, beside parts of other groups. A group
    of fewer jobs than parts says nothing of that."""
    groups = list(groups)
    for group in reversed(groups):
        jobs = min(group.jobs, MOST_JOBS) / max(1, len(group.run_s))
        for run_s in group.run_s:
            run_times.count(FinishedRun(group.owner, group.category, group.gpus, run_s), jobs)
    known = [group for group in groups if len(group.run_s) == PARTS]
    for turn in range(PARTS):
        for number, group in enumerate(known):
            run_s = group.run_s[(number + 1) * (turn + 1) * _MIX % _MIXED % PARTS]
            others_s = (sum(group.run_s) - run_s) / (PARTS - 1)
            run_times.skill_of(group.gpus).judge(FinishedRun(group.owner, group.category, group.gpus, run_s), others_s)


def _part_means(times_s: list[float]) -> tuple[float, ...]:
    """The means of `PARTS` parts, as equal as can be; all of the times if there are no more. The tail counts whole."""
    count = len(times_s)
    bounds = [part * count // PARTS for part in range(PARTS + 1)]
    return tuple(times_s) if count <= PARTS else tuple([fmean(times_s[i:j]) for i, j in pairwise(bounds)])
