import pytest

from coda_sim.results.summary import Interval, RunResult, Timing, interval_of, json_from_results, json_from_timings


def result(policy: str, seed: int, **metrics: float | None) -> RunResult:
    timing = Timing(wall_s=1.0 + seed, cpu_s=0.5, peak_rss_bytes=2**20)
    return RunResult(policy=policy, without=(), seed=seed, metrics=metrics, timing=timing)


def test_the_interval_is_students() -> None:
    # three values: mean 2, standard deviation 1, Student's 4.303 with two degrees of freedom
    found = interval_of([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))


def test_one_seed_has_a_mean_and_no_interval() -> None:
    assert interval_of([4.0]) == Interval(mean=4.0, low=None, high=None)


def test_what_one_seed_did_not_measure_is_unknown() -> None:
    assert interval_of([4.0, None]) is None
    assert interval_of([]) is None


def test_means_stand_by_policy_and_what_varies_stands_apart() -> None:
    results = [result("fifo-skip", 1, x=1.0), result("fifo-skip", 2, x=3.0), result("drf", 1, x=None)]
    summary = json_from_results(results, {"version": "1"})
    assert [(one["policy"], one["seeds"], one["metrics"]["x"]["mean"]) for one in summary["means"]] == [
        ("fifo-skip", [1, 2], 2.0),
        ("drf", [1], None),
    ]
    assert "wall_s" not in str(summary)
    assert [one["wall_s"] for one in json_from_timings(results)["runs"]] == [2.0, 3.0, 2.0]
