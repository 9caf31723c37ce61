"""Run times as few numbers, and back."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history import FinishedRun, RunGroup, RunTimes, learn_groups, run_groups
from coda.history.run_groups import MOST_JOBS, PARTS

RUNS = st.lists(
    st.builds(FinishedRun, st.sampled_from("ab"), st.sampled_from(["", "CV"]), st.integers(1, 3), st.floats(1.0, 1e6)),
    max_size=80,
)

OWNERS = {f"user{number}": 60.0 * 30**number for number in range(6)} | {
    f"other{number}": 60.0 * 30**number for number in range(6)
}


def test_a_group_is_the_means_of_its_parts() -> None:
    runs = [FinishedRun("a", "CV", 8, float(number)) for number in range(90)]
    (group,) = run_groups(reversed(runs), 10)
    means = (4.5, 14.5, 24.5, 34.5, 44.5, 54.5, 64.5, 74.5, 84.5)
    assert group == RunGroup(owner="a", category="CV", gpus=8, jobs=90, run_s=means)


def test_the_largest_groups_are_kept() -> None:
    runs = [FinishedRun(owner, "", 1, 60.0) for owner in "aabbbc"]
    assert [group.owner for group in run_groups(runs, 2)] == ["b", "a"]


@given(RUNS)
def test_few_runs_are_kept_as_they_were_and_many_with_their_mean(runs: list[FinishedRun]) -> None:
    for group in run_groups(runs, 100):
        own = sorted(run.run_s for run in runs if run[:3] == (group.owner, group.category, group.gpus))
        assert group.jobs == len(own)
        assert len(group.run_s) == min(len(own), PARTS)
        assert list(group.run_s) == sorted(group.run_s)
        if len(own) % len(group.run_s) == 0:
            assert fmean(group.run_s) == pytest.approx(fmean(own))


def test_a_planner_that_begins_expects_what_the_groups_say() -> None:
    runs = [FinishedRun("ann", "CV", 8, run_s) for run_s in [600.0] * 80 + [60_000.0] * 10]
    runs += [FinishedRun("bob", "CV", 1, 60.0)] * 45
    learned, told = RunTimes(), RunTimes()
    for run in runs:
        learned.add(run)
    learn_groups(told, run_groups(runs, 100))
    assert told.mean_s("ann", "CV", 8) == pytest.approx(learned.mean_s("ann", "CV", 8), rel=0.2)
    for age_s in (0.0, 5000.0):
        assert told.estimate("ann", "CV", 8, age_s).expected_s == learned.estimate("ann", "CV", 8, age_s).expected_s


def test_a_day_of_own_jobs_says_more_than_any_past() -> None:
    run_times = RunTimes()
    learn_groups(run_times, [RunGroup(owner="ann", category="CV", gpus=8, jobs=20_000, run_s=(60_000.0,) * PARTS)])
    for _ in range(2 * int(MOST_JOBS)):
        run_times.add(FinishedRun("ann", "CV", 8, 60.0))
    assert run_times.estimate("ann", "CV", 8, 0.0).expected_s < 100.0


@given(RUNS)
def test_the_order_of_the_runs_does_not_matter(runs: list[FinishedRun]) -> None:
    assert run_groups(runs, 5) == run_groups(reversed(runs), 5)


def test_a_planner_that_begins_trusts_estimates_as_far_as_the_groups_differ() -> None:
    """Not where each owner's jobs run as those of all others do, nor where groups are known by single jobs only."""
    runs = [FinishedRun(owner, "", 8, run_s * (1 + number)) for number in range(18) for owner, run_s in OWNERS.items()]
    apart, alike, single = RunTimes(), RunTimes(), RunTimes()
    learn_groups(apart, run_groups(runs, 100))
    learn_groups(
        alike, run_groups([run._replace(run_s=60.0 * (1 + number // 12)) for number, run in enumerate(runs)], 100)
    )
    learn_groups(single, run_groups(runs[: 2 * len(OWNERS)], 100))
    assert apart.gpu_skill.trust == 1.0
    assert alike.gpu_skill.trust < 0.2
    assert single.gpu_skill.trust == 0.0


@pytest.mark.parametrize("jobs", [9, 12, 20, 50, 200])
def test_groups_that_differ_by_chance_alone_are_not_trusted(jobs: int) -> None:
    draw = Random(jobs)
    runs = [FinishedRun(f"u{number % 100}", "", 1, draw.lognormvariate(7.0, 2.0)) for number in range(100 * jobs)]
    told = RunTimes()
    learn_groups(told, run_groups(runs, 1000))
    assert told.gpu_skill.trust < 0.3
