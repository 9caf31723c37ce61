"""How far two runs of the same jobs agree: who started before whom, and how long each waited. Pure.

Starts are in trace seconds on both sides. Starts of one scheduling round are ties: their order says nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from coda_sim.results.statistics import percentile

NEAR_SHARE = 0.05
"""Waits that differ by no more than this are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When a job was submitted, and when it got its nodes."""

    submit_s: float
    start_s: float

    @property
    def wait_s(self) -> float:
        return self.start_s - self.submit_s


Starts = Mapping[str, Start]
"""By the trace's job id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """`swapped`: pairs that started one way round here and the other way round there, of `ordered` pairs without ties.
    `moved`: the fewest jobs without which both orders are the same."""

    jobs: int
    ordered: int
    swapped: int
    moved: int


def rounds(starts: Starts, gap_s: float) -> dict[str, int]:
    """The number of each job's scheduling round: a start within `gap_s` after another one is of the same round."""
    found: dict[str, int] = {}
    number, last_s = 0, None
    for job_id, start in sorted(starts.items(), key=lambda item: (item[1].start_s, item[0])):
        number += last_s is not None and start.start_s - last_s > gap_s
        found[job_id], last_s = number, start.start_s
    return found


def agreement(one: Mapping[str, int], other: Mapping[str, int]) -> Agreement:
    """Of two runs, by their rounds. Only jobs that started in both count. O(jobs^2)."""
    shared = sorted(one.keys() & other.keys())
    turns = [(one[job_id], other[job_id]) for job_id in shared]
    ordered = swapped = 0
    for (here, there), (here_next, there_next) in combinations(turns, 2):
        if here != here_next and there != there_next:
            ordered += 1
            swapped += (here < here_next) != (there < there_next)
    kept = _longest_rising([there for _, there in sorted(turns)])
    return Agreement(jobs=len(shared), ordered=ordered, swapped=swapped, moved=len(shared) - kept)


def swapped_for_certain(live: Mapping[str, int], runs: Sequence[Mapping[str, int]]) -> tuple[int, int]:
    """Of the pairs that all `runs` start in the same order, how many there are, and how many `live` starts in the
    other. O(jobs^2 x runs)."""
    certain = swapped = 0
    for job_id, other_id in combinations(sorted(live), 2):
        signs = {_sign(run[job_id], run[other_id]) for run in runs}
        if len(signs) == 1 and (sign := signs.pop()):
            certain += 1
            swapped += _sign(live[job_id], live[other_id]) == -sign
    return certain, swapped


def waits(starts: Starts, among: Iterable[str]) -> tuple[float, float]:
    """p50 and p90 of these jobs' waits; nothing for nobody."""
    found = [starts[job_id].wait_s for job_id in among]
    return percentile(found, 0.5) or 0.0, percentile(found, 0.9) or 0.0


def is_near(value: float, expected: float, *, slack: float = 0.0) -> bool:
    """True where they differ by at most 5 % of what is expected, and `slack`."""
    return abs(value - expected) <= NEAR_SHARE * abs(expected) + slack


def _sign(one: int, other: int) -> int:
    return (one > other) - (one < other)


def _longest_rising(values: Sequence[int]) -> int:
    """How many of the values are left in the longest sequence that never falls."""
    ends: list[int] = []
    for value in values:
        place = bisect_right(ends, value)
        ends[place : place + 1] = [value]
    return len(ends)
