"""What Prometheus reads off an operator."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import coda_operator.metrics as module
from coda.errors import Outage
from coda.lifecycle import Progress
from coda.model import Phase
from coda_kube.objects.quantities import seconds_from_time
from coda_operator.metrics import Metrics
from coda_operator.view.packed_jobs import KnownJob


def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def value(shown: Metrics, name: str, **labels: str) -> float | None:
    return shown.registry.get_sample_value(name, labels)


async def test_steps_and_their_failures_are_counted() -> None:
    shown = metrics()

    async def work(error: Exception | None) -> float | None:
        if error is not None:
            raise error
        return 7.0

    assert await shown.timed(work(None)) == 7.0
    with pytest.raises(Outage):
        await shown.timed(work(Outage("away")))
    assert value(shown, "coda_operator_reconcile_duration_seconds_count") == 2
    assert value(shown, "coda_operator_reconcile_errors_total") == 1


def test_jobs_are_counted_by_phase_when_somebody_looks() -> None:
    shown = metrics()
    jobs = [{"status": {"phase": "Running"}}, {"status": {"phase": "Running"}}, {"metadata": {"uid": "new"}}]
    shown.show_jobs(lambda: jobs)
    assert (value(shown, "coda_jobs", phase="Running"), value(shown, "coda_jobs", phase="New")) == (2, 1)
    assert value(shown, "coda_jobs", phase="Failed") == 0
    jobs.pop()
    assert b'coda_jobs{phase="New"} 0.0' in generate_latest(shown.registry)


def test_attempts_that_failed_are_shown_of_the_jobs_with_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_JOBS_SHOWN", 2)
    shown = metrics()

    def known(name: str, phase: str, failures: int, disruptions: int) -> KnownJob:
        status = {"phase": phase, "failures": failures, "disruptions": disruptions}
        return KnownJob({"metadata": {"namespace": "team", "name": name, "uid": name}, "status": status})

    told = [("once", "Queued", 1, 0), ("often", "Running", 1, 4), ("twice", "Running", 2, 0), ("over", "Failed", 9, 0)]
    shown.show_jobs(lambda: [known(*one) for one in told])

    def failed(name: str, fault: str) -> float | None:
        return value(shown, "coda_job_failed_attempts", namespace="team", trainingjob=name, fault=fault)

    assert [failed("often", fault) for fault in ("Job", "Cluster")] == [1, 4]
    assert [failed(name, "Job") for name in ("twice", "once", "over")] == [2, None, None]
    assert value(shown, "coda_jobs", phase="Running") == 2


def test_namespaces_are_shown_whose_jobs_back_off_after_many_attempts_that_never_ran() -> None:
    shown = metrics()

    def known(namespace: str, in_a_row: int, reason: str, until: str, phase: str = "Queued") -> KnownJob:
        status = {"phase": phase, "disruptionsInARow": in_a_row, "reason": reason, "notBefore": until}
        return KnownJob({"metadata": {"namespace": namespace, "name": "j", "uid": "u"}, "status": status})

    later, before = "2026-11-29T11:00:00Z", "2026-11-29T09:00:00Z"
    told = [
        known("a", 12, "BindDeadlineExceeded", later),
        known("a", 6, "BindDeadlineExceeded", later, "Restarting"),
        known("b", 5, "BindDeadlineExceeded", later),  # too few
        known("c", 12, "BindDeadlineExceeded", before),  # it waits for capacity now
        known("d", 12, "NodeLost", later),  # it had started
        known("e", 6, "Unschedulable", later),
        known("f", 12, "BindDeadlineExceeded", later, "Running"),
    ]
    shown.show_jobs(lambda: told, lambda: seconds_from_time("2026-11-29T10:00:00Z"))
    found = {
        reason: value(shown, "coda_operator_kept_out_namespaces", reason=reason)
        for reason in ("BindDeadlineExceeded", "Unschedulable", "StartDeadlineExceeded")
    }
    assert found == {"BindDeadlineExceeded": 1, "Unschedulable": 1, "StartDeadlineExceeded": 0}
    assert value(shown, "coda_operator_kept_out_jobs", reason="BindDeadlineExceeded") == 2
    assert value(shown, "coda_operator_kept_out_jobs", reason="Unschedulable") == 1


def test_jobs_that_start_late_are_shown_until_they_run_or_for_three_hours() -> None:
    now_s = [0.0]
    shown = Metrics(CollectorRegistry(), lambda: now_s[0])

    def late() -> float | None:
        return value(shown, "coda_operator_late_start_jobs")

    assert late() == 0
    for uid in ("a", "b", "a"):
        missed = Progress(phase=Phase.RESTARTING, reason="StartDeadlineExceeded")
        shown.count_ends(Progress(phase=Phase.STARTING), missed, uid=uid)
    shown.count_ends(Progress(phase=Phase.STARTING), Progress(phase=Phase.RESTARTING, reason="Unschedulable"), uid="c")
    assert late() == 2
    shown.count_ends(Progress(phase=Phase.STARTING), Progress(phase=Phase.RUNNING), uid="a")
    assert late() == 1
    now_s[0] = 3 * 3600.0
    assert late() == 0


def test_jobs_that_are_gone_or_of_an_earlier_term_do_not_start_late() -> None:
    """Another replica may have seen them run."""
    shown = metrics()
    known = [KnownJob({"metadata": {"namespace": "n", "name": "a", "uid": "a"}})]
    shown.show_jobs(lambda: known)
    missed = Progress(phase=Phase.FAILED, reason="StartDeadlineExceeded")
    for uid in ("a", "b"):
        shown.count_ends(Progress(phase=Phase.STARTING), missed, uid=uid)
    assert value(shown, "coda_operator_late_start_jobs") == 1
    shown.begin_term()
    assert value(shown, "coda_operator_late_start_jobs") == 0


def test_jobs_that_stay_new_or_restart_for_long_are_shown_by_the_longest() -> None:
    shown, now_s = metrics(), [100.0]

    def known(name: str, phase: str | None, reason: str = "") -> KnownJob:
        status = {"phase": phase, "reason": reason}
        return KnownJob({"metadata": {"namespace": "team", "name": name, "uid": name}, "status": status})

    told = [known("stays", None), known("told-why", None, "QuotaExceeded"), known("ends", "Restarting")]
    shown.show_jobs(lambda: told, lambda: now_s[0])

    def oldest() -> list[float | None]:
        generate_latest(shown.registry)
        return [value(shown, "coda_jobs_oldest_seconds", phase=phase) for phase in ("New", "Restarting")]

    assert oldest() == [0, 0]
    now_s[0], told[1:] = 400.0, [known("told-why", None, "QuotaExceeded"), known("ends", "Queued")]
    assert oldest() == [300, 0]
    now_s[0], told[:] = 700.0, [known("younger", None), known("ends", "Restarting")]
    assert oldest() == [0, 0]
    now_s[0] = 760.0
    assert oldest() == [60, 60]


def test_the_leader_shows_itself() -> None:
    shown = metrics()
    held = [True]
    shown.show_leader(lambda: held[0])
    assert value(shown, "coda_operator_is_leader") == 1
    held[0] = False
    assert value(shown, "coda_operator_is_leader") == 0


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [
        pytest.param(Phase.RUNNING, Phase.RESTARTING, True, id="rolled back"),
        pytest.param(Phase.QUEUED, Phase.RESTARTING, True, id="rolled back while launching"),
        pytest.param(Phase.RUNNING, Phase.SUCCEEDED, True, id="succeeded"),
        pytest.param(Phase.STARTING, Phase.FAILED, True, id="failed for good"),
        pytest.param(Phase.LAUNCHED, Phase.SUSPENDED, True, id="suspended"),
        pytest.param(Phase.QUEUED, Phase.SUSPENDED, False, id="suspended while it waited"),
        pytest.param(Phase.RESTARTING, Phase.FAILED, False, id="its end was counted before"),
        pytest.param(Phase.LAUNCHED, Phase.STARTING, False, id="goes on"),
        pytest.param(None, Phase.FAILED, False, id="its template was refused"),
    ],
)
def test_each_attempt_that_ends_is_counted_once(before: Phase | None, after: Phase, counted: bool) -> None:
    shown = metrics()
    shown.count_ends(Progress(phase=before), Progress(phase=after, reason="Why"))
    assert value(shown, "coda_operator_attempts_ended_total", reason="Why") == (1 if counted else None)


@pytest.mark.parametrize(
    ("before", "after", "waits", "launches"),
    [
        pytest.param(Phase.QUEUED, Phase.LAUNCHED, 50.0, 0.0, id="its wait ended"),
        pytest.param(Phase.QUEUED, Phase.STARTING, 50.0, 3.0, id="its pods are bound already"),
        pytest.param(Phase.QUEUED, Phase.RUNNING, 50.0, 3.0, id="its pods run already: who created them was killed"),
        pytest.param(Phase.QUEUED, Phase.SUCCEEDED, 50.0, 0.0, id="rank 0 has decided already"),
        pytest.param(Phase.QUEUED, Phase.RESTARTING, 0.0, 0.0, id="rolled back while launching"),
        pytest.param(Phase.LAUNCHED, Phase.STARTING, 0.0, 3.0, id="all its pods are bound"),
        pytest.param(Phase.LAUNCHED, Phase.RUNNING, 0.0, 3.0, id="bound and started at once"),
        pytest.param(Phase.STARTING, Phase.RUNNING, 0.0, 0.0, id="it was bound before"),
        pytest.param(Phase.LAUNCHED, Phase.RESTARTING, 0.0, 0.0, id="rolled back"),
    ],
)
def test_waits_and_launches_are_measured(before: Phase, after: Phase, waits: float, launches: float) -> None:
    shown = metrics()
    begun = Progress(phase=before, waiting_s=100.0)
    shown.count_start(begun, Progress(phase=after, waiting_s=100.0, launch_s=150.0), placed_s=149.0, now_s=152.0)
    assert value(shown, "coda_job_wait_seconds_sum") == waits
    assert value(shown, "coda_operator_launch_duration_seconds_sum") == launches


def test_reasons_in_the_words_of_others_are_bounded() -> None:
    shown = metrics()
    for number in range(100):
        shown.count_ends(Progress(phase=Phase.RUNNING), Progress(phase=Phase.FAILED, reason=f"Why{number}"))
    (family,) = (one for one in shown.registry.collect() if one.name == "coda_operator_attempts_ended")
    totals = {one.labels["reason"]: one.value for one in family.samples if one.name.endswith("_total")}
    assert (len(totals), totals["Why0"], totals["Other"]) == (65, 1, 39)
