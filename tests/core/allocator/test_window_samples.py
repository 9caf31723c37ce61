"""What one window of samples says: its mean without pauses, and how far that can be trusted."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.allocator import CoreSearchConfig
from coda.allocator.window_samples import Look, is_at_limit, result_of_window
from tests.core.allocator.signals import Signal, SignalModel, plateau_job

CONFIG = CoreSearchConfig()
Shares = Callable[[int], float]


def samples(share_at: Shares, *, full: bool | None = None, seconds: int = 90) -> list[Look]:
    return [Look(float(at_s), share_at(at_s), full) for at_s in range(seconds + 1)]


def between(first: int, last: int, level: float) -> Shares:
    return lambda at_s: level if first <= at_s <= last else 0.8


def test_a_reading_is_the_second_half_of_its_window() -> None:
    late = [look if look.at_s <= 90 else look._replace(share=0.0) for look in samples(split, seconds=120)]
    reading = result_of_window(late, CONFIG).reading
    assert reading is not None
    assert reading.share == pytest.approx(0.81, abs=0.001)
    assert reading.variance == pytest.approx(0.0001 / 46, rel=0.05)


def split(at_s: int) -> float:
    return 0.6 if at_s < 45 else 0.8 + 0.02 * (at_s % 2)


def test_all_of_a_window_counts_where_the_cores_did_not_change() -> None:
    reading = result_of_window(samples(split), CONFIG, changed=False).reading
    assert reading is not None
    assert reading.share == pytest.approx((45 * 0.6 + 46 * 0.81) / 91, abs=0.001)
    assert not reading.steady


def test_too_few_samples_are_no_reading() -> None:
    result = result_of_window([Look(50.0 + at_s, 0.5) for at_s in range(9)], CONFIG)
    assert (result.reading, result.paused) == (None, False)


@pytest.mark.parametrize(
    ("share_at", "full", "expected"),
    [
        pytest.param(between(60, 70, 0.0), None, 0.8, id="a checkpoint is left out"),
        pytest.param(between(70, 90, 0.5), False, 0.8, id="an evaluation is left out"),
        pytest.param(between(0, 60, 0.2), None, 0.8, id="one that ends in the second half too"),
        pytest.param(between(60, 62, 0.0), None, 0.748, id="three seconds are no pause"),
        pytest.param(between(60, 70, 0.6), None, 0.752, id="a little less is no pause"),
        pytest.param(between(60, 70, 0.0), True, None, id="who uses all its cores may wait for them"),
        pytest.param(lambda at_s: 0.0 if at_s % 20 < 6 else 0.8, True, 0.574, id="in a rhythm, surely"),
        pytest.param(lambda at_s: 0.0 if at_s % 20 < 6 else 0.8, None, 0.574, id="a rhythm is how it trains"),
        pytest.param(lambda at_s: 0.0 if at_s % 20 < 6 else 0.8, False, 0.8, id="but not if cores are left unused"),
        pytest.param(between(45, 75, 0.0), None, None, id="more than half a pause says nothing"),
        pytest.param(between(0, 90, 0.0), None, 0.0, id="nothing but idle seconds are no pause"),
    ],
)
def test_pauses_are_left_out(share_at: Shares, full: bool | None, expected: float | None) -> None:
    result = result_of_window(samples(share_at, full=full), CONFIG)
    assert (result.reading and result.reading.share) == (
        None if expected is None else pytest.approx(expected, abs=2e-3)
    )
    assert result.paused == (expected is None)


@pytest.mark.parametrize(
    ("used", "throttled", "expected"),
    [(3.7, 0.0, True), (3.5, 0.0, False), (2.0, 0.2, True), (2.0, 0.05, False), (0.0, 0.0, False)],
)
def test_cores_hold_a_job_up_that_uses_or_is_denied_them(used: float, throttled: float, expected: bool) -> None:
    assert is_at_limit(used, throttled, cores=4) is expected


@pytest.mark.parametrize(("every", "is_known"), [(15, True), (5, False)])
def test_cpu_use_is_known_though_a_few_looks_lack_it(every: int, is_known: bool) -> None:
    """A file that could not be read once says nothing against the others."""
    looks = [
        Look(float(at_s), 0.8) if at_s % every == 0 else Look(float(at_s), 0.8, True, 3.0, 1.0) for at_s in range(91)
    ]
    work = result_of_window(looks, CONFIG).work
    assert (work and (work.cores, work.throttled_share)) == ((3.0, 1.0) if is_known else None)


@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        pytest.param(SignalModel(white=0.03), 0.8, 1.5, id="white noise: what its samples say"),
        pytest.param(SignalModel(white=0, ar=(0.05, 3)), 0.6, 1.4, id="correlated over seconds"),
        pytest.param(SignalModel(white=0, ar=(0.05, 10)), 0.5, 1.4, id="over ten: some of it shows in a window"),
        pytest.param(SignalModel(white=0.03, ar=(0.03, 10)), 0.3, 1.4, id="hidden in white noise: a part of it"),
    ],
)
def test_the_error_of_a_mean_grows_with_the_correlation_of_its_samples(
    model: SignalModel, least: float, most: float
) -> None:
    rng = random.Random("errors")
    shares, errors = [], []
    for _ in range(200):
        job = plateau_job(rng, 1)
        level = Signal(model, job, rng, 100).curve_at(0)[20]
        window = Signal(model, job, rng, 100).samples(20, 0, 90)
        looks = [Look(float(at_s), share) for at_s, share in enumerate(window)]
        reading = result_of_window(looks, CONFIG).reading
        assert reading is not None
        shares.append(reading.share / level - 1)
        errors.append(reading.variance**0.5 / level)
    assert least <= statistics.fmean(errors) / statistics.pstdev(shares) <= most


@given(st.lists(st.floats(0, 1), max_size=100), st.booleans(), st.sampled_from((True, False, None)))
def test_any_samples_are_a_reading_or_none(shares: list[float], changed: bool, full: bool | None) -> None:
    result = result_of_window(
        [Look(float(at_s), share, full) for at_s, share in enumerate(shares)], CONFIG, changed=changed
    )
    if result.reading is not None:
        counted = shares[45:91] if changed else shares[:91]
        assert min(counted) - 1e-9 <= result.reading.share <= max(counted) + 1e-9


def test_the_variance_of_a_mean_is_at_most_the_square_of_the_range() -> None:
    looks = [Look(50.0 + at_s, 0.7 if at_s < 5 else 1.0) for at_s in range(10)]
    reading = result_of_window(looks, CONFIG).reading
    assert reading is not None
    assert reading.variance == pytest.approx(0.3**2)
