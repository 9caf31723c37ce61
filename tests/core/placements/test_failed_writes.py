"""How long what cannot be written or evicted is left out."""

from __future__ import annotations

import pytest

from coda.placements.failed_writes import LONGEST_PAUSE_S, UNPROVEN_PAUSE_S, BudgetRefusals, WriteFailures


def test_the_pauses_of_an_owner_double_until_an_eviction_works() -> None:
    refusals, now_s, pauses_s = BudgetRefusals(), 1000.0, []
    for _ in range(7):
        refusals = refusals.with_refusal(now_s)
        pauses_s.append(refusals.until_s - now_s)
        assert refusals.with_refusal(now_s + 1.0) == refusals  # of the same moment, or of a late answer
        now_s = refusals.until_s
    assert pauses_s == [10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    refusals = refusals.with_refusal(now_s)
    assert refusals.with_eviction(now_s) == refusals  # beside the refusal: it gave nobody enough room
    worked = refusals.with_eviction(refusals.until_s)
    assert worked.with_refusal(refusals.until_s).until_s == refusals.until_s + 10.0


@pytest.mark.parametrize(
    ("answered", "others_work", "pauses_s"),
    [
        pytest.param(True, True, [0, 2, 4, 8, 16, 32, 64], id="this object is to blame"),
        pytest.param(False, True, [0, 2, 4, 8, 16, UNPROVEN_PAUSE_S, UNPROVEN_PAUSE_S], id="perhaps an overload"),
        pytest.param(True, False, [0, 2, 4, 8, 16, UNPROVEN_PAUSE_S, UNPROVEN_PAUSE_S], id="perhaps all are refused"),
        pytest.param(False, False, [0, 2, 2, 2, 2, 2, 2], id="an outage"),
    ],
)
def test_the_pauses_of_a_job_double_as_far_as_it_is_to_blame(
    answered: bool, others_work: bool, pauses_s: list[float]
) -> None:
    failures, found_s = WriteFailures(since_s=0.0), []
    for _ in pauses_s:
        failures = failures.with_failure(0.0, answered=answered)
        found_s.append(failures.pause_s(others_work=others_work))
    assert found_s == pauses_s
    many = WriteFailures(since_s=0.0, points=10_000, answered=answered)
    assert many.pause_s(others_work=others_work) == (LONGEST_PAUSE_S if others_work and answered else pauses_s[-1])
