"""Expected run times of waiting jobs: fixed when first asked, and forgotten with the job."""

from __future__ import annotations

from dataclasses import replace

from coda.history import FinishedRun, RunTimes
from coda.history.queue_estimates import LEAST_RUNS, ExpectedRuns
from tests.builders import job

WAITING = job("a", gpus=8, user="ann")


def learned(run_s: float) -> RunTimes:
    run_times = RunTimes()
    run_times.add(FinishedRun("ann", "", 8, run_s))
    return run_times


def test_an_answer_stays_while_the_job_waits() -> None:
    run_times = learned(600.0)
    expected = ExpectedRuns(run_times)
    first_s = expected.run_s(WAITING)
    run_times.add(FinishedRun("ann", "", 8, 60_000.0))
    expected.forget_all_but([WAITING.id])
    assert expected.run_s(WAITING) == first_s > 0.0
    assert expected.run_s(replace(WAITING, attempt=2, waiting_s=50.0)) == first_s


def test_an_edit_of_its_shape_asks_anew() -> None:
    run_times = learned(600.0)
    expected = ExpectedRuns(run_times)
    first_s = expected.run_s(WAITING)
    run_times.add(FinishedRun("ann", "", 16, 60_000.0))
    assert expected.run_s(replace(WAITING, replicas=2)) > first_s


def test_no_job_is_expected_to_run_beyond_its_limit() -> None:
    expected = ExpectedRuns(learned(60_000.0))
    assert expected.run_s(replace(WAITING, run_limit_s=900.0)) == 900.0
    assert expected.run_s(WAITING) > 900.0


def test_jobs_that_wait_no_more_are_forgotten() -> None:
    run_times = learned(600.0)
    expected = ExpectedRuns(run_times)
    first_s = expected.run_s(WAITING)
    for number in range(200):
        expected.run_s(job(f"other-{number}", gpus=8, user="ann"))
    run_times.add(FinishedRun("ann", "", 8, 60_000.0))
    expected.forget_all_but([job("other-1").id])
    assert expected.run_s(WAITING) > first_s


def test_few_finished_jobs_prove_nothing_but_the_limit_does() -> None:
    """The smoke tests of a new installation end within seconds."""
    run_times = RunTimes()
    expected = ExpectedRuns(run_times)
    for _ in range(LEAST_RUNS - 1):
        run_times.add(FinishedRun("ann", "", 8, 2.0))
    assert expected.proven_run_s(WAITING) == 0.0
    assert expected.proven_run_s(replace(WAITING, run_limit_s=900.0)) == 900.0
    assert expected.run_s(WAITING) == 2.0
    run_times.add(FinishedRun("ann", "", 8, 2.0))
    assert expected.proven_run_s(WAITING) == expected.run_s(WAITING)
