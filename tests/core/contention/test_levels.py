"""Whether two levels of a job's utilisation differ by more than noise explains."""

from __future__ import annotations

import pytest

from coda.contention.levels import BusyLevel, Verdict, verdict_on_rise
from coda.contention.reference import Reference


def level(*shares: float, cores: int = 4) -> BusyLevel:
    return BusyLevel(job="a", cores=cores, shares=shares)


@pytest.mark.parametrize(
    ("low", "high", "error", "expected"),
    [
        pytest.param(level(0.4, 0.4, 0.4), level(0.8, 0.8, 0.8), 0.0, Verdict.PROVED, id="a clear rise"),
        pytest.param(level(0.4, 0.4, 0.4), level(0.8, 0.8), 0.0, Verdict.OPEN, id="too few samples"),
        pytest.param(level(*[0.4] * 5), level(*[0.8] * 5, cores=5), 0.0, Verdict.OPEN, id="with other cores"),
        pytest.param(level(0.2, 0.6, 0.4), level(0.6, 0.3, 0.7), 0.0, Verdict.OPEN, id="these samples scatter"),
        pytest.param(level(*[0.4] * 5), level(*[0.5] * 5), 0.05, Verdict.OPEN, id="the job is known to scatter"),
        pytest.param(level(*[0.4] * 5), level(*[0.4] * 5), 0.005, Verdict.REFUTED, id="nothing, and that is certain"),
        pytest.param(level(*[0.4] * 5), level(*[0.4] * 5), 0.05, Verdict.OPEN, id="nothing, perhaps"),
        pytest.param(level(*[0.8] * 5), level(*[0.4] * 5), 0.0, Verdict.REFUTED, id="a fall"),
    ],
)
def test_a_rise_counts_if_it_is_large_and_certain(
    low: BusyLevel, high: BusyLevel, error: float, expected: Verdict
) -> None:
    assert verdict_on_rise(low, high, least=0.02, error=error, certainty=3) is expected


def test_means_that_swing_by_themselves_are_less_certain_than_their_noise_says() -> None:
    calm = Reference(job="a", cores=4, noise=0.03)
    swinging = Reference(job="a", cores=4, noise=0.03, swing=0.04)
    assert calm.error_of(10, 10) == pytest.approx(0.0134, abs=1e-4)
    assert swinging.error_of(10, 10) == pytest.approx(0.0566, abs=1e-4)
