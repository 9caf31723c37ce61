"""How long capacity counts as taken although it looks free."""

from __future__ import annotations

import pytest

from coda.placements.lingering_use import (
    CALM_S,
    GIVEN_UP_S,
    LONGEST_S,
    LOOKED_ON_S,
    NODE_LOST_S,
    SETTLE_S,
    is_bind_known,
    is_held_back,
    is_outage_over,
    is_stuck,
    may_still_end,
)


@pytest.mark.parametrize(
    ("version", "now_s", "expected"),
    [
        pytest.param(6, 100.0, False, id="newer than what was shown"),
        pytest.param(5, 100.0, True, id="shown itself"),
        pytest.param(4, 100.0, True, id="older than what was shown"),
        pytest.param(6, 100.0 + LONGEST_S - 0.1, False, id="the watch may be away this long"),
        pytest.param(6, 100.0 + LONGEST_S, True, id="the watch is back by now"),
    ],
)
def test_a_bind_is_known_once_it_is_shown_or_a_minute_old(version: int, now_s: float, expected: bool) -> None:
    assert is_bind_known(version, 100.0, proven_version=5, now_s=now_s) is expected


@pytest.mark.parametrize(
    ("since_s", "has_unknown_binds", "expected"),
    [
        pytest.param(0.0, False, False, id="a bind of that moment may not be seen yet"),
        pytest.param(CALM_S, False, False, id="at the limit"),
        pytest.param(CALM_S + 0.1, False, True, id="all were seen, and none is left"),
        pytest.param(CALM_S + 0.1, True, False, id="one is not known yet"),
        pytest.param(LONGEST_S, True, False, id="at the longest limit"),
        pytest.param(LONGEST_S + 0.1, True, True, id="whatever is left is of later"),
    ],
)
def test_an_outage_is_over_once_its_binds_are_known(since_s: float, has_unknown_binds: bool, expected: bool) -> None:
    assert is_outage_over(100.0, 100.0 + since_s, has_unknown_binds=has_unknown_binds) is expected


@pytest.mark.parametrize(
    ("was_bound", "is_stopped", "live_ranks", "expected"),
    [
        pytest.param(True, False, 2, True, id="others run on"),
        pytest.param(True, False, 0, False, id="it was the last one"),
        pytest.param(False, False, 2, False, id="it had no node"),
        pytest.param(True, True, 2, False, id="ordered to stop: free since the order"),
    ],
)
def test_the_first_rank_that_ends_is_held_back_for_the_others(
    was_bound: bool, is_stopped: bool, live_ranks: int, expected: bool
) -> None:
    assert is_held_back(was_bound=was_bound, is_stopped=is_stopped, live_ranks=live_ranks) is expected


def test_the_others_are_waited_for_a_moment_only() -> None:
    assert may_still_end(100.0, 100.0 + SETTLE_S - 0.1)
    assert not may_still_end(100.0, 100.0 + SETTLE_S)
    assert may_still_end(100.0, 109.9, settle_s=10.0)


@pytest.mark.parametrize(
    ("since_s", "given_up_s", "blocked_s", "expected"),
    [
        pytest.param(100.0, GIVEN_UP_S, None, True, id="given up for long"),
        pytest.param(100.0, GIVEN_UP_S - 0.1, None, False, id="given up a moment ago"),
        pytest.param(100.0, None, NODE_LOST_S, True, id="its node is lost"),
        pytest.param(100.0, None, NODE_LOST_S - 0.1, False, id="its node may come back"),
        pytest.param(100.0, None, None, False, id="a scheduler that is away"),
        pytest.param(LOOKED_ON_S - 0.1, GIVEN_UP_S, None, False, id="it may be in back-off at a take-over"),
        pytest.param(LOOKED_ON_S, GIVEN_UP_S, None, True, id="the back-off is over by now"),
    ],
)
def test_a_pod_is_stuck_once_nobody_can_bind_it(
    since_s: float, given_up_s: float | None, blocked_s: float | None, expected: bool
) -> None:
    """Times are ages."""
    now_s = 1000.0
    led_s = now_s - since_s
    seen = {
        "given_up_s": None if given_up_s is None else now_s - given_up_s,
        "blocked_s": None if blocked_s is None else now_s - blocked_s,
    }
    assert is_stuck(now_s, led_s=led_s, **seen) is expected
