"""The division from history: what the past says, and that it is approached in steps and never swings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history.cpu_jobs import CpuUse
from coda.history.division import (
    CORES_SLACK,
    CORES_STEP,
    LEAST_JOBS,
    SHARE_SLACK,
    SHARE_STEP,
    CategoryUse,
    HeldSpan,
    PastUse,
    Shares,
    held_span,
    next_shares,
    past_use,
    with_cpu_use,
)
from tests.operator_tests.history.records import record

WEEK_S = 7 * 86400.0


def spans(count: int, *, gpus: int = 1, cores: int = 5, at_s: float = 0.0, category: str = "CV") -> list[HeldSpan]:
    """One after the other, an hour each."""
    return [
        HeldSpan(at_s + 3600.0 * number, at_s + 3600.0 * (number + 1), gpus, cores, category) for number in range(count)
    ]


def test_few_jobs_say_nothing() -> None:
    past = past_use(spans(LEAST_JOBS - 1), 0.0, WEEK_S)
    assert (past.jobs, past.cores_per_gpu, past.large_share) == (LEAST_JOBS - 1, None, None)
    assert past_use(spans(LEAST_JOBS), 0.0, WEEK_S).cores_per_gpu == 5.0


def test_jobs_that_nobody_tuned_say_nothing_of_cores() -> None:
    past = past_use(spans(LEAST_JOBS, cores=0), 0.0, WEEK_S)
    assert (past.tuned_jobs, past.cores_per_gpu, past.large_share) == (0, None, 0.0)


def test_the_reserve_is_what_tuned_jobs_used_at_once_but_for_the_highest_tenth_of_the_time() -> None:
    low, high = spans(92, cores=3), spans(8, cores=20, at_s=3600.0 * 92)
    assert past_use([*low, *high], 0.0, WEEK_S).cores_per_gpu == 3.0
    low, high = spans(88, cores=3), spans(12, cores=20, at_s=3600.0 * 88)
    assert past_use([*low, *high], 0.0, WEEK_S).cores_per_gpu == 20.0


def test_jobs_at_once_count_together() -> None:
    """Two GPUs with 2 cores beside one with 8: four cores per GPU."""
    both = [*spans(60, gpus=2, cores=4), *spans(60, gpus=1, cores=8, category="NLP")]
    past = past_use(both, 0.0, WEEK_S)
    assert past.cores_per_gpu == 4.0
    assert past.categories == (CategoryUse("CV", 60, 2.0), CategoryUse("NLP", 60, 8.0))


def test_the_large_share_is_that_of_gpu_time() -> None:
    assert past_use([*spans(60, gpus=6), *spans(60, gpus=2)], 0.0, WEEK_S).large_share == pytest.approx(0.75)


def test_only_what_lies_in_the_span_counts() -> None:
    assert past_use(spans(60), 3600.0 * 58, WEEK_S).jobs == 2


def test_a_record_becomes_what_the_whole_gang_held() -> None:
    assert held_span(record()) == HeldSpan(1_700_000_000.0 - 3600.0, 1_700_000_000.0, 16, 48, "NLP")
    assert held_span(record(cores_tuned=None)).tuned_cores == 0  # type: ignore[union-attr]
    assert held_span(record(held_s=0.0)) is None


def test_nothing_moves_without_a_past_or_within_the_slack() -> None:
    now = Shares(4.0, 0.7)
    assert next_shares(now, PastUse()) == now
    assert next_shares(now, PastUse(cores_per_gpu=4.0 + CORES_SLACK, large_share=0.7 - SHARE_SLACK + 1e-9)) == now


@given(
    st.floats(0, 20),
    st.floats(0, 1),
    st.lists(st.floats(-1, 1), min_size=200, max_size=200),
    st.floats(0, 20),
    st.floats(0, 1),
)
def test_it_comes_near_in_bounded_steps_and_never_swings(
    cores: float, share: float, noise: list[float], cores_target: float, share_target: float
) -> None:
    """The past trembles by less than slack and step differ: it moves one way only, and in the end not at all."""
    trail = [Shares(cores, share)]
    for wave in noise:
        past = PastUse(
            cores_per_gpu=cores_target + wave * (CORES_SLACK - CORES_STEP) / 2,
            large_share=share_target + wave * (SHARE_SLACK - SHARE_STEP) / 2,
        )
        trail.append(next_shares(trail[-1], past))
    for number, step in ((0, CORES_STEP), (1, SHARE_STEP)):
        moves = [after[number] - before[number] for before, after in pairwise(trail)]
        assert all(abs(move) <= step + 1e-5 for move in moves)
        assert not (any(move > 0 for move in moves) and any(move < 0 for move in moves))
        assert moves[-1] == 0


@pytest.mark.parametrize(
    ("wanted", "cores"),
    [
        pytest.param(None, 3.5, id="nothing is known of CPU jobs: towards what training used"),
        pytest.param(0.2, 3.5, id="they borrowed or waited: the cores are theirs now"),
        pytest.param(0.001, 4.0, id="their own array was enough: nobody would gain"),
    ],
)
def test_cores_go_to_the_cpu_array_only_if_it_wanted_them(wanted: float | None, cores: float) -> None:
    past = PastUse(jobs=90, tuned_jobs=90, cores_per_gpu=2.0, cpu_jobs=90, cpu_wanted_share=wanted)
    assert next_shares(Shares(4.0, 0.7), past).cores_per_gpu == cores
    assert next_shares(Shares(1.0, 0.7), past).cores_per_gpu == 1.5  # training gets what it used, whatever they wanted


def test_few_cpu_jobs_say_nothing() -> None:
    use = CpuUse(jobs=LEAST_JOBS - 1, core_s=1.0)
    assert with_cpu_use(PastUse(), use).cpu_wanted_share is None
    assert with_cpu_use(PastUse(), replace(use, jobs=LEAST_JOBS)).cpu_wanted_share == 0.0
