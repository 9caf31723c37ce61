"""The extender's Prometheus metrics, in their own registry. Dashboards depend on the names."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from coda.cycle import CycleResult
from coda.model import WaitCode
from coda.model.decision import DenialCode
from coda.model.job import StopCause
from coda.placements.review import DefectKind, DropCause
from coda_extender.written import Written

_PAGE_BYTES: Final = resource.getpagesize()
_FAST_S = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_REASON_S = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_TAKEOVER_S = (1.0, 2.0, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0, 30.0, 60.0)
_PROCESS_ENDS = ("hung", "died", "error", "garbage")  # of a planner process
_REFUSALS = ("no_files", "no_certificate", "not_http", "late", "head_too_large", "too_large", "crowded")
APART_KINDS: Final = ("job", "node", "quota")
UNBOUND: Final = "UNBOUND"
"""A dropped plan of a CPU job's pod that cannot be bound."""
VOID: Final = "VOID"
"""A dropped plan that cannot be removed."""
IN_FLIGHT: Final = "IN_FLIGHT"
"""A dropped plan whose nodes had foreign pods in flight for too long."""
GRANTED: Final = "Granted"
"""The answer to a wish that is not refused."""
_CYCLE_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """All counts of one replica. Only the leader sets the gauges of the queue; other replicas show zeros."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._define_answers(self.registry)
        self._define_planner(self.registry)
        self._answers: dict[tuple[str, str], Counter] = {}
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Show every series of a fixed list from the start: one that begins with its first count is no increase."""
        for code in WaitCode:
            self.waiting_jobs.labels(code.value)
        for cause in StopCause:
            self.stops.labels(cause.value)
        for end in _PROCESS_ENDS:
            self.planner_processes_lost.labels(end)
        for kind in APART_KINDS:
            self.set_apart.labels(kind)
        for reason in _REFUSALS:
            self.refused_requests.labels(reason)
        for name in (*(why.name for why in (*DefectKind, *DropCause)), UNBOUND, VOID, IN_FLIGHT):
            self.dropped_placements.labels(name)
        for written in Written:
            if written not in (Written.DONE, Written.NEEDLESS):
                self.refused_writes.labels(written.value)
        for answer in (GRANTED, *(code.value for code in DenialCode)):
            self.answered_wishes.labels(answer)

    def _define_answers(self, registry: CollectorRegistry) -> None:
        self.filter_s = Histogram(
            "coda_extender_filter_duration_seconds", "Answering a filter call", buckets=_FAST_S, registry=registry
        )
        self.prioritize_s = Histogram(
            "coda_extender_prioritize_duration_seconds",
            "Answering a prioritize call",
            buckets=_FAST_S,
            registry=registry,
        )
        self.preempt_s = Histogram(
            "coda_extender_preempt_duration_seconds", "Answering a preempt call", buckets=_FAST_S, registry=registry
        )
        self.answers = Counter(
            "coda_extender_answers_total", "Answers by verb and outcome", ["verb", "outcome"], registry=registry
        )
        self.refused_requests = Counter(
            "coda_extender_refused_requests_total",
            "Requests and connections that ended for what they cost, or for not being HTTP",
            ["reason"],
            registry=registry,
        )
        self.in_flight = Gauge("coda_extender_in_flight_pods", "Foreign pods in flight", registry=registry)
        self.in_flight_timeouts = Gauge(
            "coda_extender_in_flight_timeouts", "Foreign pods never heard of again, since start", registry=registry
        )

    def _define_planner(self, registry: CollectorRegistry) -> None:
        self.is_leader = Gauge("coda_planner_is_leader", "1 while this replica plans", registry=registry)
        self.cycle_s = Histogram(
            "coda_planner_round_duration_seconds",
            "One decision, without its writes",
            buckets=_CYCLE_S,
            registry=registry,
        )
        self.waiting_jobs = Gauge("coda_planner_waiting_jobs", "Waiting jobs by reason", ["code"], registry=registry)
        self.gpus_wanted = Gauge(
            "coda_queue_gpus_wanted",
            "GPUs that waiting jobs ask for, but those that no node would help: a quota or an error keeps them waiting",
            registry=registry,
        )
        self.gpus_unmatched = Gauge(
            "coda_queue_gpus_unmatched",
            "Those of coda_queue_gpus_wanted for which no present node would do, even if it were empty",
            registry=registry,
        )
        self.commits = Counter("coda_planner_commits_total", "Plans committed", registry=registry)
        self.releases = Counter("coda_planner_releases_total", "Plans released", registry=registry)
        self.stops = Counter(
            "coda_planner_stops_total",
            "Running jobs ordered to stop for another, by cause",
            ["cause"],
            registry=registry,
        )
        self.adoptions = Counter(
            "coda_planner_adoptions_total", "Plans taken over from another leader", registry=registry
        )
        self.dropped_placements = Counter(
            "coda_planner_dropped_plans_total", "Plans dropped before release", ["reason"], registry=registry
        )
        self.refused_writes = Counter(
            "coda_planner_refused_writes_total", "Status writes that were not done", ["reason"], registry=registry
        )
        self.unwritable_jobs = Gauge(
            "coda_planner_unwritable_jobs",
            "Jobs left out because their status cannot be written (not those that only wait for a slow write)",
            registry=registry,
        )
        self.pending_writes = Counter("coda_planner_pending_writes_total", "Reasons written", registry=registry)
        self.first_reason_s = Histogram(
            "coda_planner_first_reason_delay_seconds",
            "From the creation of a job (in whole seconds, so up to one too much) to the first reason it shows",
            buckets=_REASON_S,
            registry=registry,
        )
        self.takeover_s = Histogram(
            "coda_planner_takeover_duration_seconds",
            "From the last renewal of the leader before to the first round of this one",
            buckets=_TAKEOVER_S,
            registry=registry,
        )
        self.answered_wishes = Counter(
            "coda_planner_answered_wishes_total", "Wishes for cores of running jobs", ["answer"], registry=registry
        )
        self.planner_processes_lost = Counter(
            "coda_planner_processes_lost_total",
            "Planner processes that hung, died or failed, and were replaced",
            ["cause"],
            registry=registry,
        )
        self._planner_pid: int | None = None
        memory = Gauge("coda_extender_memory_bytes", "Resident memory, by process", ["process"], registry=registry)
        memory.labels("extender").set_function(lambda: resident_bytes("self"))
        memory.labels("planner").set_function(lambda: resident_bytes(self._planner_pid))
        self.errors = Counter(
            "coda_planner_errors_total", "Unexpected errors, each with a traceback", registry=registry
        )
        self.set_apart = Gauge(
            "coda_planner_set_apart",
            "What is left out of every decision because judging it raised an error, until it changes",
            ["kind"],
            registry=registry,
        )

    def count_answer(self, verb: str, outcome: str) -> None:
        """Count one more answer."""
        counter = self._answers.get((verb, outcome))
        if counter is None:  # a search by labels takes longer than the count
            counter = self._answers[verb, outcome] = self.answers.labels(verb, outcome)
        counter.inc()

    def count_refused(self, reason: str) -> None:
        """Count one more request or connection that was refused before it was read."""
        self.refused_requests.labels(reason).inc()

    def watch_planner_process(self, pid: int | None) -> None:
        """Show the memory of this process as the planner's; None: there is none."""
        self._planner_pid = pid

    def show_queue(self, result: CycleResult | None) -> None:
        """Set the gauges of the queue, as a round left it. None: this replica does not plan, and shows zeros."""
        for code in WaitCode:
            self.waiting_jobs.labels(code.value).set(0 if result is None else result.jobs_by_code.get(code, 0))
        self.gpus_wanted.set(0 if result is None else result.gpus_wanted)
        self.gpus_unmatched.set(0 if result is None else result.gpus_unmatched)

    def text(self) -> bytes:
        """Return all metrics in the exposition format."""
        return generate_latest(self.registry)


def resident_bytes(process: int | str | None) -> float:
    """Return the resident memory of a process; 0 for None, for one that is gone, and where there is no /proc."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * float(_PAGE_BYTES)
    except (OSError, IndexError):
        return 0.0
