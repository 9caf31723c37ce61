"""Laws of the estimated run times."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.history import FinishedRun, RunTimes
from coda.history.run_times import OrderSkill

RUN_S = st.floats(1.0, 3e6)
RUNS = st.lists(
    st.builds(FinishedRun, st.sampled_from(["", "ann", "bob"]), st.sampled_from(["", "CV"]), st.integers(0, 2), RUN_S),
    max_size=12,
)


def after(runs: list[FinishedRun]) -> RunTimes:
    run_times = RunTimes()
    for run in runs:
        run_times.add(run)
    return run_times


@given(runs=RUNS, age_s=RUN_S)
def test_an_estimate_lies_beyond_the_age_and_the_cautious_one_beyond_the_expected(
    runs: list[FinishedRun], age_s: float
) -> None:
    estimate = after(runs).estimate("ann", "CV", 1, age_s)
    assert age_s < estimate.expected_s <= estimate.cautious_s


@given(runs=RUNS, ages=st.tuples(RUN_S, RUN_S))
def test_an_older_job_is_never_expected_to_run_shorter(runs: list[FinishedRun], ages: tuple[float, float]) -> None:
    run_times = after(runs)
    younger, older = (run_times.estimate("ann", "CV", 1, age_s) for age_s in sorted(ages))
    assert younger.expected_s <= older.expected_s
    assert younger.cautious_s <= older.cautious_s


@given(runs=RUNS, age_s=RUN_S, limit_s=RUN_S)
def test_a_limit_is_never_exceeded(runs: list[FinishedRun], age_s: float, limit_s: float) -> None:
    estimate = after(runs).estimate("ann", "CV", 1, age_s, limit_s=limit_s)
    assert max(estimate.expected_s, estimate.cautious_s) <= limit_s


def test_the_owners_own_jobs_count_more_than_those_of_others() -> None:
    run_times = after([FinishedRun("ann", "CV", 8, 100.0), FinishedRun("bob", "CV", 8, 50_000.0)] * 20)
    ann, bob, new = (run_times.estimate(owner, "CV", 8, 0.0) for owner in ("ann", "bob", "eve"))
    assert ann.expected_s < 150 < 40_000 < bob.expected_s < 70_000
    assert ann.cautious_s < bob.cautious_s
    assert ann.expected_s <= new.expected_s <= bob.expected_s


def test_jobs_of_the_owners_other_sizes_count_less_than_those_of_the_same_size() -> None:
    run_times = after([FinishedRun("ann", "CV", 1, 100.0), FinishedRun("ann", "CV", 8, 50_000.0)] * 20)
    assert run_times.estimate("ann", "CV", 1, 0.0).expected_s < 150
    assert run_times.estimate("ann", "CV", 8, 0.0).expected_s > 40_000


def test_a_job_older_than_all_before_it_is_expected_to_run_as_long_again() -> None:
    run_times = after([FinishedRun("ann", "CV", 1, 100.0)] * 50)
    estimate = run_times.estimate("ann", "CV", 1, 1_000_000.0)
    assert 1_600_000 < estimate.expected_s < 2_500_000
    assert estimate.cautious_s > 5_000_000


def test_without_history_the_age_alone_counts_and_nothing_is_known_beyond_two_years() -> None:
    run_times = RunTimes()
    assert 1600 < run_times.estimate("ann", "CV", 1, 1000.0).expected_s < 2500
    assert run_times.estimate("ann", "CV", 1, 6e7).expected_s == inf


def test_the_cautious_estimate_widens_while_it_is_broken_and_narrows_once_it_holds() -> None:
    run_times = after([FinishedRun("", "CV", 1, 100.0)] * 300)
    before_s = run_times.estimate("", "CV", 1, 0.0).cautious_s
    runs_s = [100.0 * 1.4**number for number in range(20)]
    for run_s in runs_s:  # each longer than all before it
        run_times.add(FinishedRun("", "CV", 1, run_s))
    widened_s = run_times.estimate("", "CV", 1, 0.0).cautious_s
    for _ in range(1000):
        run_times.add(FinishedRun("", "CV", 1, 100.0))
    assert before_s < 200
    assert widened_s > 1.2 * before_s
    assert run_times.estimate("", "CV", 1, 0.0).cautious_s == before_s


@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_the_cautious_estimate_holds_as_often_as_promised(seed: int) -> None:
    """Run times from 2 s to 11 days that no owner or category explains."""
    run_times = RunTimes()
    state = seed
    for _ in range(600):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        run_times.add(FinishedRun("ann", "CV", 1, 2.0 ** (1 + 19 * state / 2**31)))
    assert run_times.kept / run_times.trials > 0.8


def test_memory_is_bounded_and_later_jobs_count_more() -> None:
    run_times = after([FinishedRun("ann", "CV", 1, 50_000.0)] * 1000 + [FinishedRun("ann", "CV", 1, 100.0)] * 1000)
    assert run_times.estimate("ann", "CV", 1, 0.0).expected_s < 150
    for number in range(5100):
        run_times.add(FinishedRun(f"user-{number}", "CV", 1, 100.0))
    assert len(run_times._runs_by_group) == 10_000


def test_the_mean_follows_the_owners_own_jobs_and_their_tail() -> None:
    run_times = after([FinishedRun("ann", "CV", 8, 100.0)] * 30 + [FinishedRun("ann", "CV", 8, 100_000.0)] * 10)
    assert 20_000 < run_times.mean_s("ann", "CV", 8) < 26_000  # the median is 100 s
    for _ in range(40):
        run_times.add(FinishedRun("bob", "CV", 8, 100.0))
    assert run_times.mean_s("bob", "CV", 8) < run_times.mean_s("eve", "CV", 8) < run_times.mean_s("ann", "CV", 8)


def test_without_history_no_mean_is_known() -> None:
    assert RunTimes().mean_s("ann", "CV", 8) == 0.0


@given(runs=RUNS.filter(bool))
def test_a_mean_is_between_the_shortest_and_the_longest_run(runs: list[FinishedRun]) -> None:
    mean_s = after(runs).mean_s("ann", "CV", 1)
    run_s = [min(run.run_s, 30 * 86400.0) for run in runs]
    assert min(run_s) * 0.999 <= mean_s <= max(run_s) * 1.001


def test_a_job_that_ran_for_years_counts_as_a_month() -> None:
    assert after([FinishedRun("ann", "CV", 1, 1e9)]).mean_s("ann", "CV", 1) <= 30 * 86400.0


@given(runs=RUNS, age_s=RUN_S)
def test_an_index_is_a_chance_per_second(runs: list[FinishedRun], age_s: float) -> None:
    """Of at least the ten minutes that a job runs at once."""
    assert 0.0 < after(runs).gittins_index("ann", "CV", 1, age_s) <= 1 / 600.0


def test_an_index_rises_with_age_where_all_run_alike_and_falls_where_few_are_long() -> None:
    alike = after([FinishedRun("ann", "CV", 1, 20_000.0)] * 100)
    few_are_long = after([FinishedRun("ann", "CV", 1, 3e6 / number**2) for number in range(1, 100)])
    ages_s = (0.0, 2000.0, 8000.0, 15_000.0)
    rising = [alike.gittins_index("ann", "CV", 1, age_s) for age_s in ages_s]
    falling = [few_are_long.gittins_index("ann", "CV", 1, age_s) for age_s in ages_s]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert rising[-1] > 2 * rising[0]
    assert falling[0] > 2 * falling[-1]


@pytest.mark.parametrize(
    ("estimates", "trust"),
    [
        pytest.param(lambda number: 7919 * number % 1000, 1.0, id="in the order of run times"),
        pytest.param(lambda number: -(7919 * number % 1000), 0.0, id="in the opposite order"),
        pytest.param(lambda number: 104_729 * number % 997, 0.0, id="in an order of their own"),
        pytest.param(lambda _number: 5, 0.0, id="all equal"),
    ],
)
def test_estimates_are_trusted_as_far_as_they_put_jobs_in_order(
    estimates: Callable[[int], float], trust: float
) -> None:
    skill = OrderSkill()
    assert skill.trust == 0.0
    for number in range(1500):
        skill.judge(of_a_kind(number, 7919 * number % 1000), estimates(number))
    assert skill.trust == pytest.approx(trust, abs=0.15)


def test_trust_follows_what_estimates_do_now() -> None:
    skill = OrderSkill()
    for number in range(2000):
        skill.judge(of_a_kind(number, 7919 * number % 1000), 7919 * number % 1000)
    assert skill.trust == 1.0
    for number in range(2000):
        skill.judge(of_a_kind(number, 7919 * number % 1000), -(7919 * number % 1000))
    assert skill.trust == 0.0


def of_a_kind(number: int, run_s: float) -> FinishedRun:
    return FinishedRun(f"user{number % 12}", "", 1, run_s)


@pytest.mark.parametrize("in_a_row", [1, 5, 20, 50])
def test_good_estimates_are_trusted_however_many_jobs_of_a_user_end_in_a_row(in_a_row: int) -> None:
    """The estimates of one user differ by what ended last, and say nothing of the order of its own jobs."""
    draw = Random(1)
    run_times = RunTimes()
    for number in range(6000):
        user = number // in_a_row % 6
        run_times.add(FinishedRun(f"user{user}", "", 1, 60.0 * 4**user * draw.lognormvariate(0.0, 0.7)))
    assert run_times.gpu_skill.trust == 1.0


@pytest.mark.parametrize("users", [1, 8, 100])
def test_estimates_of_users_whose_jobs_run_alike_are_not_trusted(users: int) -> None:
    draw = Random(1)
    run_times, trusts = RunTimes(), []
    for number in range(4000):
        run_times.add(FinishedRun(f"user{number % users}", "", 1, draw.lognormvariate(7.0, 2.0)))
        trusts.append(run_times.gpu_skill.trust)
    assert max(trusts) < 0.5
    assert sum(trusts) < 0.05 * len(trusts)
