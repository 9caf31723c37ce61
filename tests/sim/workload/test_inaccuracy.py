"""What is told wrongly: by as much as stated, and the same for a job whatever else is simulated."""

import math
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.errors import InvalidInput
from coda_sim.workload.inaccuracy import EXACT, SAMPLES, Inaccuracy

JOBS = [f"cm-{number}" for number in range(4000)]


@given(st.text(max_size=8), st.floats(0, 1), st.integers(0, 9999))
def test_nothing_is_told_wrongly_unless_asked(job_id: str, share: float, window: int) -> None:
    assert EXACT.run_time_factor(job_id) == 1
    assert EXACT.reading(share, job_id, window) == (share, 0.0)


@given(st.floats(1, 100), st.text(max_size=8), st.integers(0, 99))
def test_no_run_time_is_off_by_more_than_stated(error: float, job_id: str, seed: int) -> None:
    factor = Inaccuracy(run_time_error=error, seed=seed).run_time_factor(job_id)
    assert 1 / error <= factor * (1 + 1e-12)
    assert factor <= error * (1 + 1e-12)


def test_run_times_are_off_up_and_down_alike() -> None:
    logs = [math.log(Inaccuracy(run_time_error=5).run_time_factor(job_id), 5) for job_id in JOBS]
    assert fmean(logs) == pytest.approx(0, abs=4.5 / math.sqrt(3 * len(JOBS)))
    assert stdev(logs) == pytest.approx(1 / math.sqrt(3), rel=0.05)


def test_a_reading_spreads_as_the_mean_of_its_samples_does_and_says_so() -> None:
    inaccuracy = Inaccuracy(reading_noise=0.03)
    readings = [inaccuracy.reading(0.5, "a1", window)[0] for window in range(4000)]
    deviation = 0.03 * 0.5 / math.sqrt(SAMPLES)
    assert fmean(readings) == pytest.approx(0.5, abs=4.5 * deviation / math.sqrt(4000))
    assert stdev(readings) == pytest.approx(deviation, rel=0.06)
    assert inaccuracy.reading(0.5, "a1", 0)[1] == pytest.approx(deviation**2)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_reading_is_a_share_whatever_the_noise(noise: float, share: float) -> None:
    assert 0 <= Inaccuracy(reading_noise=noise).reading(share, "a1", 3)[0] <= 1


def test_jobs_and_seeds_have_draws_of_their_own() -> None:
    inaccuracy = Inaccuracy(run_time_error=2, reading_noise=0.1)
    other = Inaccuracy(run_time_error=2, reading_noise=0.1, seed=1)
    assert inaccuracy.run_time_factor("a1") == inaccuracy.run_time_factor("a1") != inaccuracy.run_time_factor("a2")
    assert inaccuracy.run_time_factor("a1") != other.run_time_factor("a1")
    assert inaccuracy.reading(0.5, "a1", 1) != inaccuracy.reading(0.5, "a1", 2)


@pytest.mark.parametrize("wrong", [{"reading_noise": -0.1}, {"reading_noise": 1.5}, {"run_time_error": 0.5}])
def test_impossible_inaccuracies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Inaccuracy(**wrong)  # type: ignore[arg-type]  # values of one field
