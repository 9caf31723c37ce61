"""How long what cannot be written or evicted is left out."""

from __future__ import annotations

from coda.placements.write_limits import LONGEST_PAUSE_S, BudgetRefusals


def test_the_pauses_of_an_owner_double_until_an_eviction_works() -> None:
    refusals, now_s, pauses_s = BudgetRefusals(), 1000.0, []
    for _ in range(7):
        refusals = refusals.with_refusal(now_s)
        pauses_s.append(refusals.until_s - now_s)
        assert refusals.with_refusal(now_s + 1.0) == refusals  # of the same moment, or of a late answer
        now_s = refusals.until_s
    assert pauses_s == [10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    refusals = refusals.with_refusal(now_s)
    worked = refusals.with_eviction()
    assert worked.until_s == refusals.until_s  # the other pods are still protected
    assert worked.with_refusal(worked.until_s).until_s == worked.until_s + 10.0
