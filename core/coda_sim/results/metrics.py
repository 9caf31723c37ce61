"""The metrics of one run, from its log, by the names that every summary uses.

Shares are 0..1, times are seconds; None: nothing was measured. Amounts over time count within the window; jobs count
if they were submitted within it. Only `makespan_s` and the counts are for the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coda.errors import InvalidInput
from coda_sim.durations import duration_from_seconds
from coda_sim.engine.log import JobEntry, RunLog, UsageTrail
from coda_sim.results.slowdown import slowdown_measures
from coda_sim.results.statistics import jain_index, mean, percentile, started_measures, wait_measures

HOUR_S = 3600.0

RunMetrics = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpan:
    """The time that counts: from the end of the warm-up to the beginning of the drain."""

    from_s: float
    to_s: float

    def includes(self, moment_s: float) -> bool:
        """True from `from_s` to `to_s`, both included."""
        return self.from_s <= moment_s <= self.to_s

    def overlap_s(self, start_s: float, end_s: float) -> float:
        """Return the seconds of a span that are within it."""
        return max(0.0, min(end_s, self.to_s) - max(start_s, self.from_s))


def window_of(submits_s: Sequence[float], *, warmup_s: float, drain_s: float) -> MeasuredSpan:
    """Return the span from `warmup_s` after the first submission to `drain_s` before the last one.

    Raises InvalidInput if warm-up and drain leave no time to measure."""
    first_s, last_s = min(submits_s), max(submits_s)
    window = MeasuredSpan(from_s=first_s + warmup_s, to_s=last_s - drain_s)
    if window.from_s >= window.to_s and (warmup_s or drain_s):
        cut = f"--warmup {duration_from_seconds(warmup_s)} and --drain {duration_from_seconds(drain_s)}"
        spans = f"the last job is submitted {duration_from_seconds(last_s - first_s)} after the first"
        raise InvalidInput(f"{cut} leave no time to measure: {spans}")
    return window


def metrics_of(log: RunLog, window: MeasuredSpan) -> RunMetrics:
    """Return all metrics of a run but those of its workload (`rows_skipped`, `rows_changed`).

    O(jobs log jobs + length of the trail)."""
    counted = [entry for entry in log.entries if window.includes(entry.gang.row.submit_s)]
    gpu_jobs = [entry for entry in counted if entry.gang.gpus]
    cpu_jobs = [entry for entry in counted if not entry.gang.gpus]
    return {
        **_over_time(log, window),
        **_of_jobs("gpu", gpu_jobs),
        **slowdown_measures(gpu_jobs),
        **_of_jobs("cpu", cpu_jobs),
        "makespan_s": _makespan_s(log),
        **_of_users(counted),
        **_of_losses(log, window),
        **_of_cores(gpu_jobs),
        "throttles": log.throttles,
        "victim_seconds": math.fsum(entry.victim_s for entry in log.entries),
        "victim_lost_gpu_s": math.fsum(entry.victim_lost_s * entry.gang.gpus for entry in log.entries),
        "jobs_finished": sum(entry.end_s is not None for entry in log.entries),
        "jobs_refused": sum(entry.end_s is None for entry in log.entries),
    }


@dataclass(slots=True)
class _Sums:
    """Integrals over the window, in seconds or unit-seconds."""

    all_s: float = 0.0
    queueing_s: float = 0.0
    held: float = 0.0
    held_queueing: float = 0.0
    busy: float = 0.0
    busy_queueing: float = 0.0
    cores: float = 0.0
    useful: float = 0.0
    lacking_cores: float = 0.0
    lacking_memory: float = 0.0
    kept_by_policy: float = 0.0
    scattered: float = 0.0

    def add(self, trail: UsageTrail, index: int, passed_s: float, gpus: int) -> None:
        held, busy = passed_s * trail.held_gpus[index], passed_s * trail.busy_gpus[index]
        self.all_s += passed_s
        self.held += held
        self.busy += busy
        self.cores += passed_s * trail.held_cores[index]
        self.useful += passed_s * trail.useful_gpus[index]
        if trail.waiting_gpu_jobs[index]:
            self.queueing_s += passed_s
            self.held_queueing += held
            self.busy_queueing += busy
            cores, memory, policy = trail.idle_by_cause
            self.lacking_cores += passed_s * cores[index]
            self.lacking_memory += passed_s * memory[index]
            self.kept_by_policy += passed_s * policy[index]
            causes = cores[index] + memory[index] + policy[index]
            self.scattered += passed_s * (gpus - trail.held_gpus[index] - causes)


def spans(trail: UsageTrail, window: MeasuredSpan) -> Iterator[tuple[int, float]]:
    """Yield index and seconds of each stretch of the trail within the window; the last state lasts no time."""
    at_s = trail.at_s
    for index in range(len(at_s) - 1):
        passed_s = window.overlap_s(at_s[index], at_s[index + 1])
        if passed_s > 0:
            yield index, passed_s


def _over_time(log: RunLog, window: MeasuredSpan) -> RunMetrics:
    sums = _Sums()
    for index, passed_s in spans(log.trail, window):
        sums.add(log.trail, index, passed_s, log.gpus)
    all_gpus, queueing_gpus = sums.all_s * log.gpus, sums.queueing_s * log.gpus
    lost = math.fsum(_lost(entry, window) * entry.gang.gpus for entry in log.entries)
    return {
        "gpu_util_all": _ratio(sums.busy, all_gpus),
        "gpu_util_queueing": _ratio(sums.busy_queueing, queueing_gpus),
        "gpu_active_all": _ratio(sums.held, all_gpus),
        "gpu_active_queueing": _ratio(sums.held_queueing, queueing_gpus),
        "cpu_active_all": _ratio(sums.cores, sums.all_s * log.cores),
        "gpu_util_active": _ratio(sums.busy, sums.held),
        "useful_gpu_hours_per_hour": _ratio(sums.useful - lost, sums.all_s) if log.gpus else None,
        **_fragmentation(sums, queueing_gpus),
    }


def _fragmentation(sums: _Sums, queueing_gpus: float) -> RunMetrics:
    """By the causes of `idle_causes`; the rest is scattered. What the policy keeps counts as quota."""
    idle = queueing_gpus - sums.held_queueing
    idle_by_cause = {
        "cores": sums.lacking_cores,
        "memory": sums.lacking_memory,
        "quota": sums.kept_by_policy,
        "scatter": sums.scattered,
    }
    return {
        "fragmentation": _ratio(idle, queueing_gpus),
        **{f"fragmentation_{cause}": _ratio(amount, queueing_gpus) for cause, amount in idle_by_cause.items()},
    }


def _lost(entry: JobEntry, window: MeasuredSpan) -> float:
    """Work done within the window and lost later, seconds of the recorded run time."""
    return math.fsum(
        piece.work_s * window.overlap_s(piece.start_s, piece.end_s) / (piece.end_s - piece.start_s)
        for piece in entry.pieces
        if not piece.kept and piece.end_s > piece.start_s
    )


def _restarting(entry: JobEntry, window: MeasuredSpan) -> Iterator[tuple[float, int]]:
    """Seconds within the window in which the job held its nodes again and did nothing, and the cores that it held."""
    for restart in entry.restarts:
        yield window.overlap_s(restart.start_s, restart.end_s), restart.cores


def _of_jobs(kind: str, entries: Sequence[JobEntry]) -> RunMetrics:
    waits = [wait for entry in entries if (wait := wait_s(entry)) is not None]
    firsts = [wait for entry in entries if (wait := first_wait_s(entry)) is not None]
    spent = [entry.end_s - entry.gang.row.submit_s for entry in entries if entry.end_s is not None]
    return {
        **wait_measures(kind, waits),
        f"{kind}_first_wait_mean_s": mean(firsts),
        f"{kind}_first_wait_p99_s": percentile(firsts, 0.99),
        **started_measures(kind, firsts, len(entries)),
        f"{kind}_jct_mean_s": mean(spent),
        f"{kind}_jct_p99_s": percentile(spent, 0.99),
    }


def first_wait_s(entry: JobEntry) -> float | None:
    """Return the time from submission to the first start; None if the job never started."""
    return None if entry.start_s is None else entry.start_s - entry.gang.row.submit_s


def wait_s(entry: JobEntry) -> float | None:
    """Return all the time that the job waited, before its first start and after each stop; None if it never started."""
    first_s = first_wait_s(entry)
    if first_s is None or not entry.aborts + entry.migrations + entry.preemptions:
        return first_s
    return first_s + math.fsum(after.start_s - before.end_s for before, after in pairwise(entry.pieces))


def _makespan_s(log: RunLog) -> float | None:
    ends = [entry.end_s for entry in log.entries if entry.end_s is not None]
    return max(ends) - min(entry.gang.row.submit_s for entry in log.entries) if ends else None


def waits_by_user(entries: Sequence[JobEntry]) -> dict[str, list[float]]:
    """Return the waits of the jobs that started, by user, in order of names."""
    waits: dict[str, list[float]] = {}
    for entry in entries:
        wait = wait_s(entry)
        if wait is not None:
            waits.setdefault(entry.gang.row.user, []).append(wait)
    return dict(sorted(waits.items()))


def _of_users(entries: Sequence[JobEntry]) -> RunMetrics:
    waits = waits_by_user(entries)
    worst = [percentile(of_user, 0.99) or 0.0 for of_user in waits.values()]
    return {
        "user_wait_p99_worst_s": max(worst, default=None),
        "jain_users": jain_index(_slowdowns(waits, entries)),
    }


def _slowdowns(waits: Mapping[str, Sequence[float]], entries: Sequence[JobEntry]) -> list[float]:
    """Per user (mean wait + mean run) / mean run; run is the time in which a job held its nodes."""
    runs: dict[str, list[float]] = {}
    for entry in entries:
        if entry.end_s is not None and entry.start_s is not None:
            stopped_s = (wait_s(entry) or 0.0) - (first_wait_s(entry) or 0.0)
            runs.setdefault(entry.gang.row.user, []).append(entry.end_s - entry.start_s - stopped_s)
    means = ((mean(waits[user]) or 0.0, mean(of_user) or 0.0) for user, of_user in sorted(runs.items()))
    return [(wait + run) / run for wait, run in means if run > 0]


def _of_losses(log: RunLog, window: MeasuredSpan) -> RunMetrics:
    return {
        "aborts": sum(entry.aborts for entry in log.entries),
        "migrations": sum(entry.migrations for entry in log.entries),
        "preemptions": sum(entry.preemptions for entry in log.entries),
        "promised_gpu_s": log.promised_gpu_s,
        "promised_most_gpu_s": log.promised_most_gpu_s,
        "lost_gpu_s": math.fsum(
            (_lost(entry, window) + sum(seconds for seconds, _ in _restarting(entry, window))) * entry.gang.gpus
            for entry in log.entries
        ),
        "lost_core_s": math.fsum(
            _lost(entry, window) * entry.gang.cpus_per_replica * entry.gang.replicas
            + sum(seconds * cores for seconds, cores in _restarting(entry, window))
            for entry in log.entries
        ),
    }


def _of_cores(gpu_jobs: Sequence[JobEntry]) -> RunMetrics:
    """From the cores that a job ended with and those it asked for, all its ranks together."""
    steps = [float(entry.tuning_steps) for entry in gpu_jobs if entry.tuning_steps]
    gains = [cores_gained(entry) for entry in gpu_jobs if entry.end_s is not None]
    return {
        "tuning_steps_mean": mean(steps),
        "cores_gained_1_5": _share(sum(1 <= gain <= 5 for gain in gains), gains),
        "cores_gained_more": _share(sum(gain > 5 for gain in gains), gains),
        "cores_lost": _share(sum(gain < 0 for gain in gains), gains),
        "cores_same": _share(sum(gain == 0 for gain in gains), gains),
    }


def cores_gained(entry: JobEntry) -> int:
    """Return the cores at the end of a job that ran, less those it asked for; below 0: fewer."""
    return (entry.pieces[-1].cores - entry.gang.cpus_per_replica) * entry.gang.replicas


def _share(count: int, of: Sequence[object]) -> float | None:
    return count / len(of) if of else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
