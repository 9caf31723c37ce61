"""Expected run times of waiting jobs: fixed when first asked, and forgotten with the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.history import FinishedRun, RunTimes
from coda.history.queue_estimates import LEAST_RUNS, TERM_S, ExpectedRuns, GittinsIndices
from tests.builders import job, running

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


def test_an_expectation_counts_for_the_order_as_far_as_such_were_right_before() -> None:
    """For GPU jobs by GPU jobs, for CPU jobs by CPU jobs."""
    run_times = RunTimes()
    for number in range(400):
        owner, run_s = (("ann", 6000.0), ("bob", 60.0))[number % 2]
        run_times.add(FinishedRun(owner, "", 8, run_s + number))
        run_times.add(FinishedRun(owner, "", 0, 60.0 + 7919.0 * number % 6000.0))
    expected = ExpectedRuns(run_times)
    assert expected.trusted_run_s(WAITING) == expected.run_s(WAITING) > 0.0
    cpu_job = job("b", gpus=0, user="ann")
    assert expected.trusted_run_s(cpu_job) < 0.2 * expected.run_s(cpu_job)


def test_nothing_is_trusted_before_it_was_tried() -> None:
    assert ExpectedRuns(learned(600.0)).trusted_run_s(WAITING) == 0.0


def test_an_index_counts_for_a_term() -> None:
    """What is learned, and how old jobs grow, changes nothing before the next one."""
    runner, run_times = running(WAITING, "a"), learned(60_000.0)
    indices = GittinsIndices(run_times)

    def spares() -> bool:
        return indices.spares(indices.index_of(runner), indices.bar_of(WAITING))

    indices.begin(10 * TERM_S)
    assert not spares()
    assert indices.wake_s is None
    for _ in range(50):
        run_times.add(FinishedRun("ann", "", 8, 7000.0))
    indices.begin(11 * TERM_S - 1.0)
    assert not spares()
    indices.begin(11 * TERM_S)
    assert spares()
    assert indices.wake_s == 12 * TERM_S
    indices.begin(11 * TERM_S + 1.0)
    assert indices.wake_s is None


@pytest.mark.parametrize(
    ("run_s", "counts"),
    [
        pytest.param([7000.0] * 40, 2**0.25, id="all run alike: it rises with age"),
        pytest.param([60.0] * 30 + [100_000.0] * 10, 1.0, id="few are long: it falls"),
    ],
)
def test_the_index_of_who_is_no_less_likely_to_end_than_at_its_start_counts_a_bit_more(
    run_s: list[float], counts: float
) -> None:
    run_times, age_s = RunTimes(), 2.0**11
    for one_s in run_s:
        run_times.add(FinishedRun("ann", "", 8, one_s))
    indices, runner = GittinsIndices(run_times), running(replace(WAITING, served_s=age_s - TERM_S, resumable=True), "a")
    assert runner.placement is not None
    indices.begin(runner.placement.committed_s + TERM_S)
    assert indices.index_of(runner) == counts * run_times.gittins_index("ann", "", 8, age_s)
    assert indices.bar_of(WAITING) == run_times.gittins_index("ann", "", 8, 0.0)


def test_the_bar_of_who_is_tried_first_holds_for_those_of_its_priority_until_the_cycle_ends() -> None:
    run_times = learned(60_000.0)
    for _ in range(50):
        run_times.add(FinishedRun("bob", "", 8, 60.0))
    indices, quick, urgent = GittinsIndices(run_times), job("b", gpus=8, user="bob"), job("c", user="bob", priority=1)
    indices.begin(0.0)
    own = indices.bar_of(quick)
    indices.lower_bar(WAITING)
    assert indices.bar_of(quick) == indices.bar_of(WAITING) < own
    assert indices.bar_of(urgent) > indices.bar_of(WAITING)
    indices.begin(1.0)
    assert indices.bar_of(quick) == own
