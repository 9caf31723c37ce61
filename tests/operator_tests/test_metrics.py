"""What Prometheus reads off an operator."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from coda.errors import Outage
from coda.lifecycle import Progress
from coda.model import Phase
from coda_operator.metrics import Metrics


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
    jobs = [{"status": {"phase": "Running"}}, {"status": {"phase": "Running"}}, {}]
    shown.show_jobs(lambda: jobs)
    assert (value(shown, "coda_jobs", phase="Running"), value(shown, "coda_jobs", phase="New")) == (2, 1)
    assert value(shown, "coda_jobs", phase="Failed") == 0
    jobs.pop()
    assert b'coda_jobs{phase="New"} 0.0' in generate_latest(shown.registry)


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
