"""What a span of time looked like: Philly's tables over the records of finished jobs.

Source: Jeon et al., ATC 2019: figures 2 and 3 (run times and waits by size), tables 1 (causes of delay), 2
(utilisation by size and ending), 5 (endings) and 6 (failures).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from coda.history.accounts import share_within
from coda.history.delay_causes import FRAGMENTED, DelayCause, cause_of_word
from coda.history.record import Ending, FinishedJob

NOT_RECORDED: Final = "NotRecorded"
"""The reason of an imported job whose source does not say how it ended."""
LONG_WAIT_S: Final = 600.0
SMALL_GPUS: Final = 4
"""The most GPUs of a job that is not large in tables 1 and 6."""
SHORT_RUN_S: Final = 60.0
"""Jobs that ran for less have no delay in Philly's table 1."""

FAIR_SHARE: Final = "fair share"
FRAGMENTATION: Final = "fragmentation"
"""Philly's two causes of delay."""

SIZES: Final = (("1 GPU", 1), ("2-4 GPUs", 4), ("5-8 GPUs", 8), ("more than 8 GPUs", None))
"""Sizes by name, and the most GPUs of each: those of Philly's figures."""

ENDINGS: Final = (
    (Ending.SUCCEEDED.value, "passed"),
    (Ending.DELETED.value, "killed"),
    (Ending.FAILED.value, "unsuccessful"),
    (NOT_RECORDED, "not recorded"),
)
"""The endings in Philly's order and words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """Jobs of one size: figures 2 and 3. Seconds; a share is 0..1."""

    size: str
    jobs: int
    run_p50_s: float
    run_p90_s: float
    wait_p50_s: float | None  # of jobs whose wait is known; None: of none it is
    wait_p90_s: float | None
    long_wait_share: float | None  # of these, that waited ten minutes or more
    gpu_s: float  # held


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingRow:
    """Jobs that ended alike: tables 5 and 2."""

    ending: str
    jobs: int
    share: float
    gpu_share: float  # of the GPU time held
    use: float | None  # mean utilisation of their GPUs, weighted by time; None: nowhere measured


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRow:
    """Utilisation of the jobs of one size, by how they ended: table 2. None: nowhere measured."""

    size: str
    passed: float | None
    killed: float | None
    unsuccessful: float | None
    every: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRow:
    """One cause of delay. Only jobs that ran for a minute."""

    cause: DelayCause
    small: int  # jobs of at most four GPUs that it delayed
    large: int  # larger ones
    wait_s: float
    share: float  # of all waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyRow:
    """One of Philly's two causes: table 1. Only jobs that ran for a minute; one counts for each cause that it had."""

    cause: str
    small: int  # jobs of at most four GPUs that it delayed
    small_share: float  # of all that were delayed by either
    large: int  # larger ones
    large_share: float
    wait_share: float  # of the seconds of both


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """One reason of failure: table 6, as far as records say it."""

    reason: str
    trials: int  # attempts that the jobs themselves ended
    trials_by_size: tuple[int, int, int]  # of these, on one GPU, on two to four, on more
    jobs: int
    owners: int
    run_p50_s: float
    run_p90_s: float
    run_p95_s: float
    run_share: float  # of the time that failed jobs ran
    gpu_share: float  # of the GPU time that failed jobs held


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """The jobs of one owner."""

    owner: str
    jobs: int
    wait_p50_s: float | None  # of jobs whose wait is known; None: of none it is
    wait_p90_s: float | None
    gpu_s: float  # held within the span
    lost_gpu_s: float  # of these, work that stops for other jobs threw away
    use: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """Trials of gangs that came out alike."""

    outcome: str
    jobs: int
    trial_gpu_s: float  # what they cost
    saved_gpu_s: float  # what gangs would have held until they failed as late, at least once


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReport:
    """All tables. Rows without jobs are left out, except sizes."""

    jobs: int
    gpu_s: float
    sizes: tuple[SizeRow, ...]
    endings: tuple[EndingRow, ...]
    uses: tuple[UseRow, ...]  # sizes of which jobs were measured
    philly: tuple[PhillyRow, ...]  # fair share and fragmentation; empty where no job was delayed by either
    delays: tuple[DelayRow, ...]  # most waiting first
    failures: tuple[FailureRow, ...]  # most trials first
    owners: tuple[OwnerRow, ...]  # most GPU time first
    trials: tuple[TrialRow, ...] = ()  # most jobs first


@dataclass(slots=True)
class _Group:
    jobs: int = 0
    trials: int = 0
    gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    runs_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    owners: set[str] = field(default_factory=set)
    trials_by_size: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, job: FinishedJob, share: float) -> None:
        """`share`: how much of what the job held counts, in 0..1."""
        self.jobs += 1
        self.trials += max(1, job.failures)
        self.trials_by_size[(job.gpus > 1) + (job.gpus > SMALL_GPUS)] += max(1, job.failures)
        self.gpu_s += job.held_gpu_s * share
        self.lost_gpu_s += job.lost_gpu_s * share
        if job.idle_gpu_s is not None:
            self.measured_gpu_s += job.held_gpu_s * share
            self.busy_gpu_s += (job.held_gpu_s - job.idle_gpu_s) * share
        self.runs_s.append(job.run_s)
        if job.wait_is_known:
            self.waits_s.append(job.wait_s)
        self.owners.add(job.owner)

    def wait_s(self, share: float) -> float | None:
        """A percentile of the waits; None if the group has jobs and no wait is known."""
        return percentile(self.waits_s, share) if self.waits_s or not self.jobs else None

    @property
    def use(self) -> float | None:
        return self.busy_gpu_s / self.measured_gpu_s if self.measured_gpu_s else None


class _Delays:
    """What delayed jobs: by cause, and by Philly's two."""

    def __init__(self) -> None:
        self._by_cause: dict[DelayCause, list[float]] = {}  # small and large jobs, seconds
        self._philly = {name: [0.0, 0.0, 0.0] for name in (FAIR_SHARE, FRAGMENTATION)}

    def add(self, job: FinishedJob) -> None:
        waits = _by_cause(job.waits)
        for cause, seconds in waits.items():
            _count(self._by_cause.setdefault(cause, [0.0, 0.0, 0.0]), job, seconds)
        _count(self._philly[FAIR_SHARE], job, waits.get(DelayCause.FAIR_SHARE, 0.0))
        _count(
            self._philly[FRAGMENTATION], job, sum(waits.get(cause, 0.0) for cause in DelayCause if cause in FRAGMENTED)
        )

    def rows(self) -> tuple[DelayRow, ...]:
        waited_s = sum(delay[2] for delay in self._by_cause.values())
        ordered = sorted(self._by_cause.items(), key=lambda item: (-item[1][2], item[0].value))
        return tuple(
            [
                DelayRow(
                    cause=cause,
                    small=round(small),
                    large=round(large),
                    wait_s=seconds,
                    share=_share(seconds, waited_s),
                )
                for cause, (small, large, seconds) in ordered
            ]
        )

    def philly_rows(self) -> tuple[PhillyRow, ...]:
        small, large, waited_s = (sum(delay[part] for delay in self._philly.values()) for part in range(3))
        if not small + large:
            return ()
        return tuple(
            [
                PhillyRow(
                    cause=name,
                    small=round(delay[0]),
                    small_share=_share(delay[0], small),
                    large=round(delay[1]),
                    large_share=_share(delay[1], large),
                    wait_share=_share(delay[2], waited_s),
                )
                for name, delay in self._philly.items()
            ]
        )


def _count(delay: list[float], job: FinishedJob, seconds: float) -> None:
    if seconds > 0:
        delay[job.gpus > SMALL_GPUS] += 1
        delay[2] += seconds


def report(jobs: Iterable[FinishedJob], from_s: float = -inf, to_s: float = inf) -> HistoryReport:
    """Return the tables of these jobs, read once. O(jobs log jobs), and two numbers kept of each job.

    GPU time is what they held within [from_s, to_s), as in `accounts`; jobs, runs and waits are whole."""
    sizes = {name: _Group() for name, _ in SIZES}
    endings = {name: _Group() for _, name in ENDINGS}
    failures: dict[str, _Group] = {}
    owners: dict[str, _Group] = {}
    uses: dict[tuple[str, str], _Group] = {}
    delays = _Delays()
    trials: dict[str, list[float]] = {}  # jobs, GPU-seconds of trials, GPU-seconds saved
    every = _Group()
    ending_names = dict(ENDINGS)
    for job in jobs:
        ending = ending_names[NOT_RECORDED if job.reason == NOT_RECORDED else job.ending.value]
        size = size_of(job.gpus)
        groups = [every, sizes[size], endings[ending], owners.setdefault(job.owner, _Group())]
        groups.append(uses.setdefault((size, ending), _Group()))
        if job.ending is Ending.FAILED:
            groups.append(failures.setdefault(job.failure_class or job.reason, _Group()))
        share = share_within(job, from_s, to_s)
        for group in groups:
            group.add(job, share)
        if job.trial:
            _add_trial(trials.setdefault(job.trial, [0.0, 0.0, 0.0]), job)
        if job.run_s >= SHORT_RUN_S:
            delays.add(job)
    failed_s = sum(sum(group.runs_s) for group in failures.values())
    failed_gpu_s = sum(group.gpu_s for group in failures.values())
    return HistoryReport(
        jobs=every.jobs,
        gpu_s=every.gpu_s,
        sizes=tuple([_size_row(name, group) for name, group in sizes.items()]),
        endings=tuple([_ending_row(name, group, every) for name, group in endings.items() if group.jobs]),
        uses=tuple([_use_row(name, group, uses) for name, group in sizes.items() if group.measured_gpu_s]),
        philly=delays.philly_rows(),
        delays=delays.rows(),
        failures=tuple(
            [
                _failure_row(reason, group, failed_s, failed_gpu_s)
                for reason, group in sorted(failures.items(), key=lambda item: (-item[1].trials, item[0]))
            ]
        ),
        owners=tuple(
            [
                _owner_row(owner, group)
                for owner, group in sorted(owners.items(), key=lambda item: (-item[1].gpu_s, item[0]))
            ]
        ),
        trials=_trial_rows(trials),
    )


def _add_trial(sums: list[float], job: FinishedJob) -> None:
    for place, amount in enumerate((1.0, job.trial_s, job.trial_saved_gpu_s)):
        sums[place] += amount


def _trial_rows(trials: Mapping[str, Sequence[float]]) -> tuple[TrialRow, ...]:
    ordered = sorted(trials.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(
        [
            TrialRow(outcome=outcome, jobs=round(jobs), trial_gpu_s=trial_s, saved_gpu_s=saved_s)
            for outcome, (jobs, trial_s, saved_s) in ordered
        ]
    )


def size_of(gpus: int) -> str:
    """Return the name of a job's size."""
    return next(name for name, most in SIZES if most is None or gpus <= most)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, `share` in 0..1; 0 for no values. O(n log n)."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _by_cause(waits: Sequence[tuple[str, float]]) -> dict[DelayCause, float]:
    found: dict[DelayCause, float] = {}
    for word, seconds in waits:
        if seconds > 0:
            cause = cause_of_word(word)
            found[cause] = found.get(cause, 0.0) + seconds
    return found


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _size_row(size: str, group: _Group) -> SizeRow:
    long_waits = sum(1 for wait_s in group.waits_s if wait_s >= LONG_WAIT_S)
    return SizeRow(
        size=size,
        jobs=group.jobs,
        run_p50_s=percentile(group.runs_s, 0.5),
        run_p90_s=percentile(group.runs_s, 0.9),
        wait_p50_s=group.wait_s(0.5),
        wait_p90_s=group.wait_s(0.9),
        long_wait_share=_share(long_waits, len(group.waits_s)) if group.waits_s or not group.jobs else None,
        gpu_s=group.gpu_s,
    )


def _ending_row(ending: str, group: _Group, every: _Group) -> EndingRow:
    return EndingRow(
        ending=ending,
        jobs=group.jobs,
        share=_share(group.jobs, every.jobs),
        gpu_share=_share(group.gpu_s, every.gpu_s),
        use=group.use,
    )


def _use_row(size: str, group: _Group, uses: Mapping[tuple[str, str], _Group]) -> UseRow:
    def of(ending: str) -> float | None:
        found = uses.get((size, ending))
        return None if found is None else found.use

    return UseRow(size=size, passed=of("passed"), killed=of("killed"), unsuccessful=of("unsuccessful"), every=group.use)


def _failure_row(reason: str, group: _Group, failed_s: float, failed_gpu_s: float) -> FailureRow:
    one, few, many = group.trials_by_size
    return FailureRow(
        reason=reason,
        trials=group.trials,
        trials_by_size=(one, few, many),
        jobs=group.jobs,
        owners=len(group.owners),
        run_p50_s=percentile(group.runs_s, 0.5),
        run_p90_s=percentile(group.runs_s, 0.9),
        run_p95_s=percentile(group.runs_s, 0.95),
        run_share=_share(sum(group.runs_s), failed_s),
        gpu_share=_share(group.gpu_s, failed_gpu_s),
    )


def _owner_row(owner: str, group: _Group) -> OwnerRow:
    return OwnerRow(
        owner=owner,
        jobs=group.jobs,
        wait_p50_s=group.wait_s(0.5),
        wait_p90_s=group.wait_s(0.9),
        gpu_s=group.gpu_s,
        lost_gpu_s=group.lost_gpu_s,
        use=group.use,
    )
