"""How long jobs run, from the run times of finished jobs, and how long a running one goes on, from its age too.

Run times are counted in logarithmic buckets, four per doubling. A job is compared with the finished jobs that ran at
least as long as it has run: with all of them, those of its category and size, those of its owner, and those of its
owner and size. Each narrower group is believed as far as it has jobs; a group of few jobs counts little. Where nobody
ran so long, a job of age a runs beyond t with probability a / t. So an estimate never lies in the past.
Source: ours. The groups follow Helios (Hu et al., SC 2021): the owner's earlier jobs of the same size predict best.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf, sqrt
from typing import Final, NamedTuple

BUCKETS_PER_DOUBLING: Final = 4
_BUCKETS: Final = 26 * BUCKETS_PER_DOUBLING  # from 1 s to 2 years
_BOUNDS: Final[list[float]] = [2.0 ** (number / BUCKETS_PER_DOUBLING) for number in range(_BUCKETS + 1)]
_GROUPS: Final = 10_000  # that are remembered; the one that is longest without a finished job is forgotten first
_RUNS: Final = 400.0  # of one group; from then on older ones count half, so that estimates follow the times
_RUNS_OF_ALL: Final = 4000.0
_DOUBT: Final = 4.0  # a group counts as much as the wider one from this many jobs on. Our choice
_MOST_S: Final = 30 * 86400.0  # that one job counts in a mean, so that it does not speak for years. Our choice
_LEAST_AGE_S: Final = 60.0  # that a job is taken to have where no group knows better. Our choice
_STEP: Final = 0.1  # doublings by which a broken estimate widens the later ones
_MOST_WIDENING: Final = 5.0  # doublings
_LEAST_RUN_S: Final = 600.0  # that a Gittins index counts at least: nobody is stopped sooner (`preemption_rules`)
_GONE: Final = 0.01  # a Gittins index looks no further than to where so few go on. Our choice
_TRIAL_SHARES: Final[tuple[float, ...]] = (
    0.0,
    0.125,
    0.375,
    0.75,
)  # ages at which estimates are tried, as shares of the run time

_Group = tuple[str, str, int]

_COMPARED: Final = 8  # kinds whose latest jobs each finished one is compared with
_SKILL_JOBS: Final = 400.0  # a skill follows about so many finished jobs
_PRIOR_JOBS: Final = 10.0  # that are taken to have been compared in vain
_IN_VAIN: Final = 0.5  # the share of pairs that chance puts in their order
_SKILLED: Final = 0.57  # the share from which estimates are trusted fully. Our choice, see docs/decisions/0147
_DOUBTED: Final = 2.0  # standard errors by which a share may be chance. Our choice, there too


class FinishedRun(NamedTuple):
    """A job that ended by itself: who ran it, what it was, the GPUs of its whole gang, and how long it ran in all."""

    owner: str
    category: str
    gpus: int
    run_s: float


class RunEstimate(NamedTuple):
    """The run time of a job in all, from its start: above its age, unless its limit is over. Infinite: not known.

    expected_s: half of the jobs like it end by then
    cautious_s: as many end by then as the caution says; it is at least `expected_s`"""

    expected_s: float
    cautious_s: float


class _Runs:
    """The finished jobs of one group."""

    __slots__ = ("ran_on", "total_s")

    def __init__(self) -> None:
        self.ran_on = [0.0] * (_BUCKETS + 1)  # jobs that ended in each bucket or in a later one
        self.total_s = 0.0

    def count(self, run_s: float, jobs: float, most: float) -> None:
        """Count so many jobs. From `most` jobs on, the older ones count half."""
        ran_on = self.ran_on
        if ran_on[0] >= most:
            for number in range(len(ran_on)):
                ran_on[number] /= 2.0
            self.total_s /= 2.0
        for number in range(_bucket(run_s) + 1):
            ran_on[number] += jobs
        self.total_s += jobs * min(run_s, _MOST_S)


class OrderSkill:
    """Whether estimates put jobs into the order of their run times: the share of pairs, the latest count most.

    Two jobs of one kind are no pair: nobody has to put them in order. Nor are two of equal estimates or run times.
    Source: Harrell's concordance index."""

    def __init__(self) -> None:
        self._latest: dict[_Group, tuple[float, float]] = {}  # by kind, the latest last: estimate and run time
        self._pairs = _PRIOR_JOBS
        self._in_order = _PRIOR_JOBS * _IN_VAIN

    def judge(self, run: FinishedRun, estimate_s: float) -> None:
        """Compare a finished job, with what was estimated when it ended, to the latest of other kinds. O(1)."""
        kind, run_s, latest = (run.owner, run.category, run.gpus), run.run_s, self._latest
        latest.pop(kind, None)
        pairs = in_order = 0
        for other_estimate_s, other_run_s in latest.values():
            if other_estimate_s != estimate_s and other_run_s != run_s:
                pairs += 1
                in_order += (other_estimate_s < estimate_s) == (other_run_s < run_s)
        if pairs:
            kept, of_each = 1.0 - 1.0 / _SKILL_JOBS, 1.0 / len(latest)
            self._pairs = self._pairs * kept + pairs * of_each
            self._in_order = self._in_order * kept + in_order * of_each
        latest[kind] = (estimate_s, run_s)
        if len(latest) > _COMPARED:
            del latest[next(iter(latest))]

    @property
    def trust(self) -> float:
        """How far estimates are to be trusted when jobs are put into order, from 0 (they say nothing) to 1.

        A share that few jobs show may be chance: it counts less by `_DOUBTED` standard errors."""
        share = self._in_order / self._pairs - _DOUBTED * 0.5 / sqrt(self._pairs)
        return max(0.0, min(1.0, (share - _IN_VAIN) / (_SKILLED - _IN_VAIN)))


class RunTimes:
    """The run times of finished jobs. Questions change nothing; equal histories give equal answers.

    `caution`: the share of jobs that must end by the cautious estimate, above 0.5 and below 1. Each finished job tries
    an estimate that it would have had, before it is counted. If fewer keep the cautious one than should, it widens."""

    def __init__(self, caution: float = 0.9) -> None:
        self._caution = caution
        self._runs_by_group: dict[_Group, _Runs] = {}
        self._all = _Runs()
        self._widening = 0.0  # doublings
        self.gpu_skill, self.cpu_skill = OrderSkill(), OrderSkill()  # of `mean_s`, for jobs with GPUs and without
        self.trials = 0
        self.kept = 0  # trials in which the cautious estimate held

    def add(self, run: FinishedRun) -> None:
        """Count a finished job, once its estimate was tried. O(1): one pass over the buckets of four groups."""
        if self._all.ran_on[0]:
            self._try(run, max(1.0, run.run_s))
            self.skill_of(run.gpus).judge(run, self.mean_s(run.owner, run.category, run.gpus))
        self.count(run, 1.0)

    def count(self, run: FinishedRun, jobs: float) -> None:
        """Count so many finished jobs like this one; none of them tries an estimate. O(1)."""
        run_s = max(1.0, run.run_s)
        self._all.count(run_s, jobs, _RUNS_OF_ALL)
        for group in _groups(run.owner, run.category, run.gpus):
            runs = self._runs_by_group.pop(group, None) or _Runs()
            runs.count(run_s, jobs, _RUNS)
            self._runs_by_group[group] = runs  # the latest last
        while len(self._runs_by_group) > _GROUPS:
            del self._runs_by_group[next(iter(self._runs_by_group))]

    def skill_of(self, gpus: int) -> OrderSkill:
        """Return how well `mean_s` has put jobs with GPUs, or those without, into the order of their run times."""
        return self.gpu_skill if gpus else self.cpu_skill

    @property
    def finished(self) -> float:
        """How many finished jobs it rests on; older ones count less."""
        return self._all.ran_on[0]

    def mean_s(self, owner: str, category: str, gpus: int) -> float:
        """Return the mean run time of jobs like this one; 0 if none has finished. O(1): four groups."""
        if not self._all.ran_on[0]:
            return 0.0
        mean_s = self._all.total_s / self._all.ran_on[0]
        for group in _groups(owner, category, gpus):
            runs = self._runs_by_group.get(group)
            if runs is not None:
                mean_s = (runs.total_s + _DOUBT * mean_s) / (runs.ran_on[0] + _DOUBT)
        return mean_s

    def estimate(
        self, owner: str, category: str, gpus: int, age_s: float, *, limit_s: float | None = None
    ) -> RunEstimate:
        """Return how long a job runs in all that has run for `age_s`; `limit_s`: it is ended after so long.

        An older job is never expected to run shorter. O(log buckets) for each of four groups."""
        first = _bucket(max(1.0, age_s))
        tables = self._tables(owner, category, gpus, first)
        expected_s = _quantile(tables, first, 0.5)
        cautious_s = _quantile(tables, first, 1.0 - self._caution) * float(2.0**self._widening)
        if limit_s is not None:
            expected_s, cautious_s = min(expected_s, limit_s), min(cautious_s, limit_s)
        return RunEstimate(expected_s, cautious_s)

    def gittins_index(self, owner: str, category: str, gpus: int, age_s: float) -> float:
        """Return the best chance, per second of its run, that a job of this age ends: over all times to look ahead.

        Who has the highest goes first where nobody knows more than how long such jobs ran. It falls with age where few
        jobs are long, and rises where all run alike. O(buckets) for each of four groups. Source: Gittins (1979);
        Tiresias (NSDI 2019) has it by GPU time, as 2D-Gittins."""
        since_s = max(1.0, age_s)
        first = _bucket(since_s)
        tables = self._tables(owner, category, gpus, first)
        index, spent_s, going_on = 0.0, 0.0, 1.0
        for bucket in range(first, _BUCKETS):
            then = _goes_on(tables, first, bucket)
            spent_s += (going_on + then) / 2.0 * max(0.0, _BOUNDS[bucket + 1] - since_s)
            index = max(index, (1.0 - then) / max(_LEAST_RUN_S, spent_s))
            if then < _GONE:
                break
            going_on, since_s = then, _BOUNDS[bucket + 1]
        return index

    def _tables(self, owner: str, category: str, gpus: int, first: int) -> list[list[float]]:
        """The run times of the groups that know jobs of this age, widest first."""
        tables = [self._all.ran_on]
        for group in _groups(owner, category, gpus):
            runs = self._runs_by_group.get(group)
            if runs is not None and runs.ran_on[first]:
                tables.append(runs.ran_on)
        return tables

    def _try(self, run: FinishedRun, run_s: float) -> None:
        age_s = run_s * _TRIAL_SHARES[self.trials % len(_TRIAL_SHARES)]
        held = run_s <= self.estimate(run.owner, run.category, run.gpus, age_s).cautious_s
        self.trials += 1
        self.kept += held
        step = _STEP * ((not held) - (1.0 - self._caution))
        self._widening = min(_MOST_WIDENING, max(0.0, self._widening + step))


def _groups(owner: str, category: str, gpus: int) -> tuple[_Group, ...]:
    """The groups of a job, widest first. Jobs without an owner belong to none of an owner."""
    wide = ("", category, gpus)
    return (wide, (owner, "", -1), (owner, "", gpus)) if owner else (wide,)


def _bucket(run_s: float) -> int:
    return min(_BUCKETS, bisect_right(_BOUNDS, run_s) - 1)


def _quantile(tables: list[list[float]], first: int, share: float) -> float:
    """Return the end of the first bucket beyond which at most this share of the jobs go on that came to `first`."""
    low, high = first, _BUCKETS
    while low < high:
        middle = (low + high) // 2
        if _goes_on(tables, first, middle) <= share:
            high = middle
        else:
            low = middle + 1
    return inf if low >= _BUCKETS else _BOUNDS[low + 1]


def _goes_on(tables: list[list[float]], first: int, bucket: int) -> float:
    """Return the share of the jobs that came to `first` which run on beyond `bucket`."""
    share = max(_BOUNDS[first], _LEAST_AGE_S) / max(_BOUNDS[bucket + 1], _LEAST_AGE_S)
    for ran_on in tables:
        share = (ran_on[bucket + 1] + _DOUBT * share) / (ran_on[first] + _DOUBT)
    return share
