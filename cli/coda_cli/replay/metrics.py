"""What became of each job of a replay, and the measures of the whole run. Pure: histories in, summary out.

A wait is measured by this machine's clock: from sending the create until the change was seen. So it includes the time
that the control plane needs. In trace time it is that, times the speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from coda.model import Phase
from coda.wording import counted
from coda_cli.job_history import History, WaitRecord
from coda_cli.replay.submissions import Sent, Submission
from coda_lab.checker import Report as Check
from coda_sim.results.statistics import STARTED_WITHIN_S, jain_index, mean, percentile, started_measures, wait_measures
from coda_sim.traces.trace import BadRow
from coda_sim.workload import RefusedRow
from coda_sim.workload.gangs import Change

WAITED_AFTER_S = 5.0
"""A job that is placed later than this after it was queued has waited, and must say why (real seconds)."""


AT_ALL = "at all"


class JobOutcome(Enum):
    """What became of a job."""

    FINISHED = "finished"  # as its row says it should
    FAILED = "failed"
    REFUSED = "refused"  # by Coda: it can never fit
    REJECTED = "rejected"  # by the API server: our mistake or the cluster's policy
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Where the jobs came from, and what was done to the rows."""

    trace: str
    rule: str
    cores: str
    rows: int
    left_out: int
    durations_cut: int
    was_sorted: bool
    seed: int
    skipped: tuple[BadRow, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    changes: Mapping[Change, int] = field(default_factory=dict)  # rows by what was changed of them
    rows_changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedJob:
    """One submitted job: its submission, how it was sent, and what was seen of it."""

    submission: Submission
    sent: Sent
    history: History | None = None

    @property
    def outcome(self) -> JobOutcome:
        """Return what became of it so far."""
        history = self.history
        if self.sent.refusal is not None:
            return JobOutcome.REJECTED
        if history is None:
            return JobOutcome.UNFINISHED
        if history.phase in (Phase.SUCCEEDED, Phase.FAILED):
            wanted = Phase.FAILED if self.submission.expects_failure else Phase.SUCCEEDED
            return JobOutcome.FINISHED if history.phase is wanted else JobOutcome.FAILED
        if history.deleted:
            return JobOutcome.FAILED
        return JobOutcome.REFUSED if history.is_hopeless else JobOutcome.UNFINISHED

    @property
    def start_wait_s(self) -> float | None:
        """Return the real seconds from sending to the first start; None: it never started."""
        return self._since_sent(self.history.seen.started_s if self.history else None)

    @property
    def placement_wait_s(self) -> float | None:
        """Return the real seconds from sending to the first placement; None: it never had one."""
        return self._since_sent(self.history.seen.placed_s if self.history else None)

    @property
    def completion_s(self) -> float | None:
        """Return the real seconds from sending to the end; None: it has not ended."""
        return self._since_sent(self.history.seen.finished_s if self.history else None)

    @property
    def reasons(self) -> tuple[WaitRecord, ...]:
        """Return why it waited."""
        return self.history.reasons if self.history else ()

    def waited(self, ended_s: float) -> bool:
        """True if a reason was seen, or its placement (or the run's end) came `WAITED_AFTER_S` after it was queued."""
        if self.reasons:
            return True
        seen = self.history.seen if self.history else None
        if seen is None or seen.queued_s is None:
            return False
        return (ended_s if seen.placed_s is None else seen.placed_s) - seen.queued_s > WAITED_AFTER_S

    @property
    def waited_again_s(self) -> float:
        """Return the real seconds that it waited after its stops."""
        return self.history.waited_again_s if self.history else 0.0

    def _since_sent(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else max(0.0, moment_s - self.sent.sent_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """Everything that a summary is made from."""

    workload: Workload
    cluster: str
    speed: float
    jobs: tuple[FollowedJob, ...]
    began_s: float
    ended_s: float
    policy: str = "as installed"
    costs: str = "paid"  # of CPU jobs that are stopped, by the simulator's names
    racks: int | None = None  # of a local cluster
    check: Check | None = None  # None: not checked
    ended_parts: tuple[str, ...] = ()  # processes of the local cluster that died meanwhile
    stopped: str | None = None  # why the run ended before its jobs

    def jobs_of(self, kind: str) -> tuple[FollowedJob, ...]:
        """Return the GPU jobs ("gpu") or the CPU jobs ("cpu")."""
        return tuple(job for job in self.jobs if job.submission.is_cpu_job == (kind == "cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """How many jobs waited longer than `longer_than`, and how many of these said why."""

    longer_than: str
    jobs: int
    said_why: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """The result of a run. `metrics` are in trace time, `real` in real time; it went well if `problems` is empty."""

    run: ReplayRun
    counts: Mapping[JobOutcome, int]
    metrics: Mapping[str, float | None]
    real: Mapping[str, float | None]
    waited: tuple[Waited, ...]
    pending: tuple[tuple[str, int, str], ...]  # code, jobs that had it, one of its sentences; most frequent first
    problems: tuple[str, ...]


def summary_from_run(run: ReplayRun) -> ReplaySummary:
    """Return the measures of the run, and a sentence for everything that should not have happened."""
    counts = Counter(job.outcome for job in run.jobs)
    return ReplaySummary(
        run=run,
        counts={outcome: counts[outcome] for outcome in JobOutcome},
        metrics=_metrics(run, counts),
        real=_real(run),
        waited=_waited(run),
        pending=_pending(run.jobs),
        problems=tuple(_problems(run)),
    )


def _metrics(run: ReplayRun, counts: Mapping[JobOutcome, int]) -> dict[str, float | None]:
    ends_s = [job.history.seen.finished_s for job in run.jobs if job.history and job.history.seen.finished_s]
    cpu_jobs = run.jobs_of("cpu")
    return {
        **_of_jobs("gpu", run.jobs_of("gpu"), run.speed),
        **(_of_jobs("cpu", cpu_jobs, run.speed) if cpu_jobs else {}),
        "aborts": sum(job.history.stops for job in cpu_jobs if job.history),
        "makespan_s": (max(ends_s) - run.began_s) * run.speed if ends_s else None,
        **_user_metrics(run),
        "jobs_finished": counts.get(JobOutcome.FINISHED, 0) + counts.get(JobOutcome.FAILED, 0),
        "jobs_refused": len(run.workload.refused)
        + counts.get(JobOutcome.REFUSED, 0)
        + counts.get(JobOutcome.REJECTED, 0),
        "rows_skipped": len(run.workload.skipped),
        "rows_changed": run.workload.rows_changed,
    }


def _of_jobs(kind: str, jobs: Sequence[FollowedJob], speed: float) -> dict[str, float | None]:
    """Under the simulator's names."""
    firsts_s = [job.start_wait_s * speed for job in jobs if job.start_wait_s is not None]
    completions_s = [job.completion_s * speed for job in jobs if job.completion_s is not None]
    return {
        **_all_waits(kind, jobs, speed),
        **started_measures(kind, firsts_s, len(jobs)),
        f"{kind}_first_wait_mean_s": mean(firsts_s),
        f"{kind}_first_wait_p99_s": percentile(firsts_s, 0.99),
        f"{kind}_jct_mean_s": mean(completions_s),
        f"{kind}_jct_p99_s": percentile(completions_s, 0.99),
    }


def _all_waits(kind: str, jobs: Sequence[FollowedJob], speed: float) -> dict[str, float | None]:
    """Of the jobs that started, until their start and until their placement; with the waits after stops, as there."""
    starts = [(job.start_wait_s, job) for job in jobs]
    placements = [(job.placement_wait_s, job) for job in jobs]
    waits_s, placed_s = (
        [(first_s + job.waited_again_s) * speed for first_s, job in every if first_s is not None]
        for every in (starts, placements)
    )
    return wait_measures(kind, waits_s) | wait_measures(f"{kind}_placement", placed_s)


def _user_metrics(run: ReplayRun) -> dict[str, float | None]:
    """Return the unluckiest user's p99 wait, and Jain's index of (mean wait + run) / run; only over named users."""
    waits_by_user: dict[str, list[float]] = {}
    runs_by_user: dict[str, list[float]] = {}
    for job in run.jobs:
        row = job.submission.gang.row
        if row.user and job.start_wait_s is not None:
            waits_by_user.setdefault(row.user, []).append(job.start_wait_s * run.speed)
            runs_by_user.setdefault(row.user, []).append(row.duration_s)
    worst = [percentile(waits, 0.99) or 0.0 for waits in waits_by_user.values()]
    slowdowns = [
        ((mean(waits) or 0.0) + ran) / ran
        for user, waits in waits_by_user.items()
        if (ran := mean(runs_by_user[user]) or 0.0) > 0
    ]
    return {"user_wait_p99_worst_s": max(worst, default=None), "jain_users": jain_index(slowdowns)}


def _real(run: ReplayRun) -> dict[str, float | None]:
    waits: dict[str, float | None] = {}
    for kind in ("gpu", "cpu") if run.jobs_of("cpu") else ("gpu",):
        waits |= _all_waits(kind, run.jobs_of(kind), 1.0)
    return {
        **waits,
        "submit_lag_max_s": max((job.sent.lag_s for job in run.jobs), default=None),
        "wall_s": run.ended_s - run.began_s,
    }


def _waited(run: ReplayRun) -> tuple[Waited, ...]:
    """Count who waited at all, then by the wait for the placement in trace time; without one it lasts until the end."""
    waiting = [job for job in run.jobs if job.waited(run.ended_s)]
    rows = [Waited(longer_than=AT_ALL, jobs=len(waiting), said_why=sum(bool(job.reasons) for job in waiting))]
    for name, limit_s in STARTED_WITHIN_S.items():
        longer = [job for job in waiting if _placement_wait_s(job, run) * run.speed > limit_s]
        rows.append(Waited(longer_than=name, jobs=len(longer), said_why=sum(bool(job.reasons) for job in longer)))
    return tuple(rows)


def _placement_wait_s(job: FollowedJob, run: ReplayRun) -> float:
    return run.ended_s - job.sent.sent_s if job.placement_wait_s is None else job.placement_wait_s


def _pending(jobs: Sequence[FollowedJob]) -> tuple[tuple[str, int, str], ...]:
    jobs_by_code: Counter[str] = Counter()
    sentence_by_code: dict[str, str] = {}
    for job in jobs:
        jobs_by_code.update({reason.code for reason in job.reasons})
        for reason in job.reasons:
            sentence_by_code.setdefault(reason.code, reason.message)
    ordered = sorted(jobs_by_code.items(), key=lambda entry: (-entry[1], entry[0]))
    return tuple((code, count, sentence_by_code[code]) for code, count in ordered)


def _problems(run: ReplayRun) -> list[str]:
    found = [run.stopped] if run.stopped else []
    found += [f"{part} of the local control plane ended by itself" for part in run.ended_parts]
    for breach in run.check.breaches if run.check else ():
        found.append(f"invariant ({breach.invariant.value}), {breach.invariant.title}: {breach.sentence}")
    for job in run.jobs:
        found += _problem_of(job)
        # A look of the planner tells of 20 CPU jobs at most; `coda queue` knows of the others.
        if job.waited(run.ended_s) and not job.reasons and not job.submission.is_cpu_job:
            wait_s = _placement_wait_s(job, run)
            found.append(f"{_named(job, run)} waited {wait_s:.1f} s for its placement and never said why")
    return found


def _problem_of(job: FollowedJob) -> list[str]:
    name, history = job.submission.name, job.history
    if job.outcome is JobOutcome.REJECTED:
        return [f"{name} was not taken by the API server: {job.sent.refusal}"]
    if job.outcome is JobOutcome.FAILED and history is not None:
        how = "was deleted by somebody" if history.deleted else f"ended {history.phase.value if history.phase else ''}"
        ended = f"{name} {how} after {counted(history.attempt, 'attempt')}"
        return [": ".join(part for part in (ended, history.reason, history.message) if part)]
    if job.outcome is JobOutcome.UNFINISHED:
        if history is None:
            return [f"{name} was created and never seen again"]
        phase = history.phase.value if history.phase else "not accepted"
        why = f" ({history.pending.code}: {history.pending.message})" if history.pending else ""
        return [f"{name} had not finished: {phase}{why}"]
    return []


def _named(job: FollowedJob, run: ReplayRun) -> str:
    return f"{job.submission.name} ({run.workload.trace}:{job.submission.gang.row.line})"
