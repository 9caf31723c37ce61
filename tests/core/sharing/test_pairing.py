"""Who suits whom: Xonar's filter and Eq. 1, expected speeds, and the class that is chosen for a job."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda.sharing.config import GIB, SharingConfig
from coda.sharing.job_classes import SharingClass, SharingWish, class_for
from coda.sharing.pairing import (
    NOTHING_MEASURED,
    GpuProfile,
    MeasuredPairs,
    duty_sum,
    equation_1,
    equation_1_log,
    expected_speed,
    partner_for,
)

CONFIG = SharingConfig()


def profile(duty: float, peak: float = 1, key: str = "k") -> GpuProfile:
    return GpuProfile(key=key, duty=duty, step_s=0.1, peak_bytes=int(peak * GIB))


@given(st.floats(0.02, 0.98))
def test_every_score_is_0_exactly_where_the_duty_cycles_fill_the_gpu(duty: float) -> None:
    for score in (equation_1, equation_1_log, duty_sum):
        assert score(profile(duty), profile(1 - duty)) == pytest.approx(0, abs=1e-9)
        assert score(profile(duty), profile(0.5)) == score(profile(0.5), profile(duty))


def test_equation_1_spends_idle_jobs_first_and_its_logarithm_does_not() -> None:
    busy, idle, fuller = profile(0.5), profile(0.1), profile(0.7)
    assert equation_1(busy, idle) < equation_1(busy, fuller)
    assert equation_1_log(busy, idle) > equation_1_log(busy, fuller)
    assert math.isfinite(equation_1(profile(1.0), profile(1.0)))


def test_the_partner_fits_the_memory_and_suits_best() -> None:
    queued = [profile(0.2, peak=20), profile(0.9), profile(0.4), profile(0.4)]
    assert partner_for(profile(0.6, peak=15), queued, 32 * GIB, equation_1) == 2
    assert partner_for(profile(0.6, peak=15), queued, 32 * GIB, None) == 1
    assert partner_for(profile(0.6, peak=32), queued, 32 * GIB, equation_1) is None


def test_a_measured_pair_wins_over_the_prediction() -> None:
    guaranteed, newcomer = profile(0.5, key="g"), profile(0.8, key="n")
    assert expected_speed(newcomer, guaranteed, NOTHING_MEASURED, CONFIG) == pytest.approx(0.4 * 0.5 / 0.8)
    runs = (0.9,) * 5 + (0.5,) * 10
    assert expected_speed(newcomer, guaranteed, MeasuredPairs(runs={("n", "g"): runs}), CONFIG) == 0.5
    assert expected_speed(newcomer, profile(1.0), NOTHING_MEASURED, CONFIG) == CONFIG.floor_share / 1000
    assert expected_speed(profile(0.0), profile(0.0), NOTHING_MEASURED, CONFIG) == 1


@pytest.mark.parametrize(
    ("wish", "wait_s", "expected"),
    [
        (SharingWish.AUTO, 301, SharingClass.OPPORTUNISTIC),
        (SharingWish.AUTO, 300, SharingClass.GUARANTEED),
        (SharingWish.AUTO, None, SharingClass.GUARANTEED),
        (SharingWish.OPPORTUNISTIC, 0, SharingClass.OPPORTUNISTIC),
        (SharingWish.GUARANTEED, 1e9, SharingClass.GUARANTEED),
    ],
)
def test_only_who_leaves_it_to_coda_and_would_wait_long_becomes_opportunistic(
    wish: SharingWish, wait_s: float | None, expected: SharingClass
) -> None:
    assert class_for(wish, expected_wait_s=wait_s, config=CONFIG) is expected


@pytest.mark.parametrize("wrong", [{"duty": 1.1}, {"step_s": 0}, {"floor_bytes": 2}])
def test_impossible_profiles_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        GpuProfile(**{"key": "k", "duty": 0.5, "step_s": 1.0, "peak_bytes": 1, **wrong})  # type: ignore[arg-type]
