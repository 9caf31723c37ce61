import pytest

from coda_sim.results.statistics import jain_index, mean, percentile, started_measures, wait_measures


def test_percentiles_lie_between_neighbours() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0, 0.5, 0.9, 1)] == pytest.approx([1.0, 2.5, 3.7, 4.0])


def test_nothing_measured_is_none_and_never_zero() -> None:
    assert percentile([], 0.5) is mean([]) is jain_index([]) is None
    assert set(wait_measures("gpu", []).values()) == {None}
    assert set(started_measures("gpu", [], 0).values()) == {None}


def test_a_job_that_never_started_counts_against_the_share_started() -> None:
    assert started_measures("gpu", [0.0, 10.0, 11.0], 4) == {
        "gpu_started_10s": 0.5,
        "gpu_started_3min": 0.75,
        "gpu_started_10min": 0.75,
        "gpu_started_1h": 0.75,
    }


def test_jain_is_one_for_equals_and_one_nth_for_a_monopoly() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
