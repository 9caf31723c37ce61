"""The operator's Prometheus metrics. Dashboards rely on the names."""

from __future__ import annotations

import heapq
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coda.history.delay_causes import DelayCause
from coda.lifecycle import Progress
from coda.lifecycle.failures import START_DEADLINE
from coda.lifecycle.state import StopAnswer
from coda.model import FINISHED, Phase
from coda.model.job import StopCause
from coda.model.trial_run import TrialOutcome
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time

_RECONCILE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
_LAUNCH_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0)
_WAIT_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 259200.0, 1209600.0)  # to two weeks
_MOST_REASONS = 64  # kubelets and controllers write some of them, in their own words
_UNDER_WAY = frozenset({Phase.QUEUED, Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})
_UNBOUND = frozenset({Phase.QUEUED, Phase.LAUNCHED})
_LAUNCHED = frozenset({Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING, Phase.SUCCEEDED})
_NEW = "New"  # not accepted yet
_PASSING = (_NEW, Phase.RESTARTING.value)
"""Phases in which a job should not stay. A new job that says why it is not accepted may: its namespace is to change."""
MOST_JOBS_SHOWN = 500
"""Jobs of whom a metric tells one by one: those with the most failed attempts. Our choice: two series for each."""
_ENDS_OF_AN_ALERT = ("BindDeadlineExceeded", "StartDeadlineExceeded", "Unschedulable")
"""From the start on they are 0: many gangs that end at once are no increase of a series that begins with them."""
LATE_FOR_S = 3 * 3600.0
"""So long a job counts as one that does not start in time. Our choice: an attempt may take half an hour by default."""
KEPT_OUT_FROM = 6
"""So many attempts in a row that ended from outside, and the job is kept out. Our choice: some ten minutes of tries."""


class Metrics:
    """Everything one replica counts, in `registry`."""

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry
        self._monotonic = monotonic
        self._jobs: Callable[[], Iterable[Json]] | None = None
        self._late_s: dict[str, float] = {}  # when its last attempt missed the start deadline, by the job's UID
        self._reconcile_s = Histogram(
            "coda_operator_reconcile_duration_seconds",
            "Taking one job one step on",
            buckets=_RECONCILE_S,
            registry=registry,
        )
        self._errors = Counter(
            "coda_operator_reconcile_errors_total", "Steps that failed and are tried again", registry=registry
        )
        self._attempts_ended = Counter(
            "coda_operator_attempts_ended_total",
            "Attempts that ended, by what ended them",
            ["reason"],
            registry=registry,
        )
        self._stops = Counter(
            "coda_operator_stops_total",
            "Attempts that were stopped for another job, by cause and by how they answered",
            ["cause", "answer"],
            registry=registry,
        )
        self._lost_gpu_s = Counter(
            "coda_operator_lost_gpu_seconds_total",
            "GPU-seconds of work that such stops threw away: since the last known save, or the start of the attempt",
            ["cause"],
            registry=registry,
        )
        for cause in StopCause:
            self._lost_gpu_s.labels(cause.value)
            for answer in StopAnswer:
                self._stops.labels(cause.value, answer.value)
        self._trials = Counter(
            "coda_operator_trials_total", "Trials that are over, by what came of them", ["outcome"], registry=registry
        )
        for outcome in TrialOutcome:
            self._trials.labels(outcome.value)
        self._trial_gpu_s = Counter(
            "coda_operator_trial_gpu_seconds_total", "Seconds that trials had their one GPU", registry=registry
        )
        self._saved_gpu_s = Counter(
            "coda_operator_trial_saved_gpu_seconds_total",
            "GPU-seconds that failed trials saved: the gang would have failed as late, with all its GPUs",
            registry=registry,
        )
        self._reasons: set[str] = set()
        for reason in _ENDS_OF_AN_ALERT:
            self._attempts_ended.labels(self._bounded(reason))
        self._wait_s = Histogram(
            "coda_job_wait_seconds",
            "From the begin of a job's wait to the launch of its pods, once for each attempt",
            buckets=_WAIT_S,
            registry=registry,
        )
        self._launch_s = Histogram(
            "coda_operator_launch_duration_seconds",
            "From the decision to place a gang until all its pods are bound (seen up to a second later)",
            buckets=_LAUNCH_S,
            registry=registry,
        )
        self._resizes = Counter(
            "coda_operator_resizes_total",
            "Granted changes of cores that ended, by why they were refused (Done: they were not)",
            ["reason"],
            registry=registry,
        )
        self._cordoned = Gauge(
            "coda_operator_cordoned_nodes",
            "Nodes on which Coda places nothing: their GPUs are suspect",
            registry=registry,
        )
        self._certificate_ends = Gauge(
            "coda_operator_certificate_expiry_timestamp_seconds",
            "When each of Coda's own certificates ends, since 1970",
            ["secret"],
            registry=registry,
        )
        Gauge(
            "coda_operator_late_start_jobs",
            "Jobs of which an attempt missed its start deadline in the last three hours, and none has run since",
            registry=registry,
        ).set_function(self._late_jobs)
        self._is_leader = Gauge("coda_operator_is_leader", "1 while this replica holds the Lease", registry=registry)

    def show_leader(self, held: Callable[[], bool]) -> None:
        """Report what `held` returns at each scrape."""
        self._is_leader.set_function(lambda: float(held()))

    def show_cordons(self, nodes: int) -> None:
        """Report how many nodes are cordoned for Coda."""
        self._cordoned.set(nodes)

    def show_certificates(self, end_s: Mapping[str, float]) -> None:
        """Report when the certificate in each of these Secrets ends, and of no others."""
        self._certificate_ends.clear()
        for secret, at_s in end_s.items():
            self._certificate_ends.labels(secret).set(at_s)

    def show_failure_rules(self, accepted: int, refused: int) -> None:
        """Report how many of the platform's rules for failures count, and how many do not: their mistake is logged."""
        gauge = Gauge(
            "coda_operator_failure_rules",
            "Rules for failures of the platform team, by whether they count or are refused",
            ["state"],
            registry=self.registry,
        )
        gauge.labels("accepted").set(accepted)
        gauge.labels("refused").set(refused)

    def show_nodes(self, unready: Callable[[], int], is_braked: Callable[[], bool]) -> None:
        """Report at each scrape how many nodes are not Ready, and whether node loss is suspended for it."""
        Gauge(
            "coda_operator_unready_nodes", "Nodes that are not Ready, as this replica sees them", registry=self.registry
        ).set_function(lambda: float(unready()))
        Gauge(
            "coda_operator_node_loss_suspended",
            "1 while so many nodes are not Ready together that none is called lost",
            registry=self.registry,
        ).set_function(lambda: float(is_braked()))

    def show_jobs(self, jobs: Callable[[], Iterable[Json]], clock: Callable[[], float] = time.time) -> None:
        """Report the jobs by phase, whose attempts failed, and which are held up, at each scrape; only the leader knows
        any. `clock`: the API server's time."""
        self._jobs = jobs
        self.registry.register(_Jobs(jobs, clock))

    def begin_term(self) -> None:
        """Forget what an earlier term saw of single jobs: another replica has led meanwhile."""
        self._late_s.clear()

    def show_waits(self, booked_s: Callable[[], Mapping[DelayCause, int]]) -> None:
        """Report at each scrape what waits are booked as; only the leader sees any."""
        self.registry.register(_BookedWaits(booked_s))

    async def timed(self, work: Awaitable[float | None]) -> float | None:
        """Do `work`, and measure how long it takes and whether it fails."""
        started_s = time.perf_counter()
        try:
            return await work
        except Exception:
            self._errors.inc()
            raise
        finally:
            self._reconcile_s.observe(time.perf_counter() - started_s)

    def count_ends(self, before: Progress, after: Progress, uid: str = "") -> None:
        """Count the attempt and the resize that this change of a job ended, now that it is written. `uid`: of it."""
        if after.stopped is not None and after.stopped != before.stopped:
            self._stops.labels(after.stopped.cause.value, after.stopped.answer.value).inc()
            self._lost_gpu_s.labels(after.stopped.cause.value).inc(after.lost_gpu_s - before.lost_gpu_s)
        if after.resize is not None and after.resize.has_ended and after.resize != before.resize:
            self._resizes.labels(self._bounded(after.resize.reason or after.resize.state.value)).inc()
        stopped = after.phase in FINISHED or after.phase is Phase.SUSPENDED
        ran = before.phase in _UNDER_WAY and before.phase is not Phase.QUEUED
        if before.phase in _UNDER_WAY and (after.phase is Phase.RESTARTING or (ran and stopped)):
            self._attempts_ended.labels(self._bounded(after.reason)).inc()
            if after.reason == START_DEADLINE:
                self._late_s[uid] = self._monotonic()
        if after.phase in (Phase.RUNNING, Phase.SUCCEEDED):
            self._late_s.pop(uid, None)

    def _late_jobs(self) -> float:
        since_s = self._monotonic() - LATE_FOR_S
        self._late_s = {uid: late_s for uid, late_s in self._late_s.items() if late_s > since_s}
        if self._late_s and self._jobs is not None:  # those that are gone start no more
            known = {job["metadata"]["uid"] for job in self._jobs()}
            self._late_s = {uid: late_s for uid, late_s in self._late_s.items() if uid in known}
        return float(len(self._late_s))

    def count_trial(self, before: Progress, after: Progress, gpus: int) -> None:
        """Count what this change of a job says of its trial. `gpus`: of the gang."""
        if after.trial is None:
            return
        known = before.trial
        held_s = max(0.0, after.trial.held_s - (known.held_s if known is not None else 0.0))
        self._trial_gpu_s.inc(held_s)
        if after.trial.outcome is None or (known is not None and not known.is_open):
            return
        self._trials.labels(after.trial.outcome.value).inc()
        if after.trial.outcome is TrialOutcome.FAILED:
            self._saved_gpu_s.inc(after.trial.held_s * (gpus - 1))

    def count_start(self, before: Progress, after: Progress, placed_s: float, now_s: float) -> None:
        """Observe the wait that this change of a job ended, or its launch; `placed_s`: when its place was decided.

        Phases that are over already are skipped: one change may end both."""
        if before.phase is Phase.QUEUED and after.phase in _LAUNCHED and before.waiting_s:
            self._wait_s.observe(max(0.0, after.launch_s - before.waiting_s))
        if before.phase in _UNBOUND and after.phase in (Phase.STARTING, Phase.RUNNING) and placed_s:
            self._launch_s.observe(max(0.0, now_s - placed_s))

    def _bounded(self, reason: str) -> str:
        """The reason, or `Other` once there are too many different ones: each is a time series for ever."""
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
        return reason if reason in self._reasons else "Other"


class HistoryMetrics:
    """What became of the records of finished jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.stored = Counter(
            "coda_operator_history_stored_total", "Records of finished jobs that the store has", registry=registry
        )
        self.dropped = Counter(
            "coda_operator_history_dropped_total",
            "Records of finished jobs that are lost: StoreAway for a day, or Refused by the store",
            ["reason"],
            registry=registry,
        )
        for reason in ("StoreAway", "Refused"):
            self.dropped.labels(reason)

    def show_writer(self, waiting: Callable[[], int], is_away: Callable[[], bool]) -> None:
        """Report at each scrape how many records wait in this process, and whether the store is away."""
        Gauge(
            "coda_operator_history_waiting", "Records that wait for the store in this process", registry=self._registry
        ).set_function(lambda: float(waiting()))
        Gauge(
            "coda_operator_history_away", "1 while the history store cannot be written", registry=self._registry
        ).set_function(lambda: float(is_away()))


class _BookedWaits(Collector):
    """A counter of which a part is still running: it is asked at each scrape."""

    def __init__(self, booked_s: Callable[[], Mapping[DelayCause, int]]) -> None:
        self._booked_s = booked_s

    def collect(self) -> Iterator[Metric]:
        found = self._booked_s()
        family = CounterMetricFamily(
            "coda_job_delay_seconds", "Seconds that TrainingJobs waited, by cause", labels=["cause"]
        )
        for cause in DelayCause:
            family.add_metric([cause.value], found.get(cause, 0))
        yield family


class CpuHistoryMetrics:
    """What became of the records of CPU jobs that ended."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.stored = Counter(
            "coda_operator_history_cpu_jobs_stored_total", "CPU jobs that the store has counted", registry=registry
        )
        self.refused = Counter(
            "coda_operator_history_cpu_jobs_refused_total", "Records that the store refused for good", registry=registry
        )

    def show_waiting(self, waiting: Callable[[], int], lost: Callable[[], int]) -> None:
        """Report at each scrape how many records wait in this process, and how many it dropped."""
        Gauge(
            "coda_operator_history_cpu_jobs_waiting",
            "CPU jobs that ended and wait for the store in this process",
            registry=self._registry,
        ).set_function(lambda: float(waiting()))
        Gauge(
            "coda_operator_history_cpu_jobs_lost",
            "CPU jobs whose records this process dropped unstored",
            registry=self._registry,
        ).set_function(lambda: float(lost()))


class _Jobs(Collector):
    """All are counted in one pass over the jobs. O(jobs)."""

    def __init__(self, jobs: Callable[[], Iterable[Json]], clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._clock = clock
        self._since_by_phase: dict[str, dict[str, float]] = {phase: {} for phase in _PASSING}

    def collect(self) -> Iterator[Metric]:
        now_s = self._clock()
        count_by_phase, failed = Tally[str](), list[tuple[int, str, str, int, int]]()
        kept_out: dict[str, list[str]] = {reason: [] for reason in _ENDS_OF_AN_ALERT}
        since_by_phase: dict[str, dict[str, float]] = {phase: {} for phase in _PASSING}
        for job in self._jobs():
            status = job.get("status") or {}
            phase, reason = status.get("phase") or _NEW, status.get("reason")
            count_by_phase[phase] += 1
            if phase in since_by_phase and not (phase == _NEW and reason):
                uid = job["metadata"]["uid"]
                since_by_phase[phase][uid] = self._since_by_phase[phase].get(uid, now_s)
            if reason in kept_out and _is_kept_out(status, now_s):
                kept_out[reason].append(job["metadata"]["namespace"])
            own, others = status.get("failures") or 0, status.get("disruptions") or 0
            if own or others:
                metadata = job["metadata"]
                failed.append((-own - others, metadata["namespace"], metadata["name"], own, others))
        self._since_by_phase = since_by_phase
        by_phase = GaugeMetricFamily("coda_jobs", "TrainingJobs by phase", labels=["phase"])
        for phase in (_NEW, *(phase.value for phase in Phase)):
            by_phase.add_metric([phase], count_by_phase[phase])
        yield by_phase
        yield from _failed_attempts(failed)
        yield from _held_up(kept_out, since_by_phase, now_s)


def _failed_attempts(failed: Iterable[tuple[int, str, str, int, int]]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "coda_job_failed_attempts",
        "Failed attempts of unfinished jobs, by whose fault",
        labels=["namespace", "trainingjob", "fault"],
    )
    for _, namespace, name, own, others in heapq.nsmallest(MOST_JOBS_SHOWN, failed):
        family.add_metric([namespace, name, "Job"], own)
        family.add_metric([namespace, name, "Cluster"], others)
    yield family


def _held_up(
    kept_out: Mapping[str, Collection[str]], since_by_phase: Mapping[str, Mapping[str, float]], now_s: float
) -> Iterator[Metric]:
    """`kept_out`: the namespace of each such job, by reason."""
    many = GaugeMetricFamily(
        "coda_operator_kept_out_jobs",
        "Jobs that back off after six attempts in a row that ended from outside",
        labels=["reason"],
    )
    where = GaugeMetricFamily(
        "coda_operator_kept_out_namespaces",
        "Namespaces with jobs that back off after six attempts in a row that ended from outside",
        labels=["reason"],
    )
    for reason, namespaces in kept_out.items():
        many.add_metric([reason], len(namespaces))
        where.add_metric([reason], len(set(namespaces)))
    oldest = GaugeMetricFamily(
        "coda_jobs_oldest_seconds",
        "For how long the job that is longest in a phase which should pass is in it, as this replica saw it",
        labels=["phase"],
    )
    for phase, since_s in since_by_phase.items():
        oldest.add_metric([phase], now_s - min(since_s.values(), default=now_s))
    yield from (many, where, oldest)


def _is_kept_out(status: Json, now_s: float) -> bool:
    in_a_row = status.get("disruptionsInARow") or 0
    return in_a_row >= KEPT_OUT_FROM and seconds_from_time(status.get("notBefore")) > now_s
