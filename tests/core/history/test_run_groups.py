"""Run times as few numbers, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coda.history import FinishedRun, RunGroup, run_groups, runs_from_groups
from coda.history.run_groups import QUANTILES

RUNS = st.lists(
    st.builds(FinishedRun, st.sampled_from("ab"), st.sampled_from(["", "CV"]), st.integers(1, 3), st.floats(1.0, 1e6)),
    max_size=80,
)


def test_a_group_is_its_quantiles() -> None:
    runs = [FinishedRun("a", "CV", 8, float(number)) for number in range(90)]
    (group,) = run_groups(reversed(runs), 10)
    middles = (5.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 85.0)
    assert group == RunGroup(owner="a", category="CV", gpus=8, jobs=90, run_s=middles)


def test_the_largest_groups_are_kept() -> None:
    runs = [FinishedRun(owner, "", 1, 60.0) for owner in "aabbbc"]
    assert [group.owner for group in run_groups(runs, 2)] == ["b", "a"]
    assert [run.owner for run in runs_from_groups(run_groups(runs, 2))] == list("aabbb")


@given(RUNS)
def test_few_runs_come_back_as_they_were(runs: list[FinishedRun]) -> None:
    """And of many, as many, from the shortest to the longest of what was kept."""
    groups = run_groups(runs, 100)
    back = runs_from_groups(groups, most_runs=1000)
    assert len(back) == len(runs)
    for group in groups:
        own = sorted(run.run_s for run in runs if run[:3] == (group.owner, group.category, group.gpus))
        again = sorted(run.run_s for run in back if run[:3] == (group.owner, group.category, group.gpus))
        assert len(group.run_s) == min(len(own), QUANTILES)
        assert set(again) == set(group.run_s)
        assert set(again) <= set(own)
        if len(own) <= QUANTILES:
            assert again == own


@given(RUNS)
def test_the_order_of_the_runs_does_not_matter(runs: list[FinishedRun]) -> None:
    assert run_groups(runs, 5) == run_groups(reversed(runs), 5)
