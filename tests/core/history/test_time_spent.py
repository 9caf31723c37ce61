"""How a job's time is split: every second once, whatever was seen of it, and by whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history.delay_causes import DelayCause
from coda.history.time_spent import Doing, Split, StatusTimes, TimeSpent, begun, counted, moved_on, split_of

MOMENTS = st.floats(0.0, 1e6)
SPANS = st.floats(-1e3, 1e5)  # a clock may be put back
STEPS = st.lists(st.tuples(st.sampled_from(Doing), st.sampled_from(DelayCause), SPANS), max_size=40)
UNSEEN = DelayCause.UNSEEN.value


def times(queued: float, launched: float, started: float, ended: float) -> StatusTimes:
    return StatusTimes(queued_s=queued, launched_s=launched, started_s=started, ended_s=ended)


def whole_s(spent: TimeSpent) -> int:
    return spent.wait_s + spent.held_s


def test_a_job_that_was_seen_whole_is_split_as_it_went() -> None:
    spent = begun(Doing.WAITING, DelayCause.CODA, 100.0)
    spent = moved_on(spent, Doing.WAITING, DelayCause.CAPACITY, 110.9)
    spent = moved_on(spent, Doing.HOLDING, None, 200.0)
    spent = moved_on(spent, Doing.RUNNING, None, 205.0)
    spent = moved_on(spent, Doing.WAITING, DelayCause.RESTART, 305.0)
    spent = moved_on(spent, Doing.WAITING, DelayCause.CAPACITY, 307.0)
    spent = moved_on(spent, Doing.RUNNING, None, 310.0)
    expected = Split(waits=(("Capacity", 93.0), ("Coda", 10.0), ("Restart", 2.0)), held_s=195.0, run_s=190.0)
    assert split_of(spent, times(100.0, 309.0, 205.0, 400.0)) == expected


def test_who_sees_only_the_end_knows_the_last_attempt_from_the_status() -> None:
    expected = Split(waits=((UNSEEN, 60.0),), held_s=340.0, run_s=330.0)
    assert split_of(None, times(100.0, 160.0, 170.0, 500.0)) == expected


def test_a_job_that_never_started_only_waited() -> None:
    assert split_of(None, times(100.0, 0.0, 0.0, 500.0)) == Split(waits=((UNSEEN, 400.0),), held_s=0.0, run_s=0.0)


def test_the_same_thing_again_changes_nothing() -> None:
    spent = begun(Doing.WAITING, DelayCause.QUOTA, 100.0)
    assert moved_on(spent, Doing.WAITING, DelayCause.QUOTA, 150.0) is spent
    running = moved_on(spent, Doing.RUNNING, None, 150.0)
    assert moved_on(running, Doing.RUNNING, DelayCause.HOLD, 160.0) is running


def test_a_job_that_starts_as_it_comes_has_waited_for_nothing() -> None:
    spent = moved_on(begun(Doing.WAITING, DelayCause.CODA, 100.2), Doing.RUNNING, None, 100.9)
    assert moved_on(spent, Doing.ENDED, None, 160.0).waits == ()


def account(steps: list[tuple[Doing, DelayCause, float]], now_s: float) -> tuple[TimeSpent | None, float, float]:
    """The account of these steps; the last moment, and the latest."""
    spent, latest_s = None, now_s
    for doing, cause, span_s in steps:
        spent = begun(doing, cause, now_s) if spent is None else moved_on(spent, doing, cause, now_s)
        latest_s = max(latest_s, now_s)
        now_s = max(0.0, now_s + span_s)
    return spent, now_s, latest_s


@given(STEPS, MOMENTS, MOMENTS, MOMENTS, MOMENTS)
def test_every_second_is_counted_once(
    steps: list[tuple[Doing, DelayCause, float]], queued: float, launched: float, started: float, ended: float
) -> None:
    """Also where the clock was put back, and where status and account contradict each other."""
    spent, _, _ = account(steps, queued)
    split = split_of(spent, times(queued, launched, started, ended))
    total_s = max(0.0, ended - queued) if queued else 0.0
    assert sum(seconds for _, seconds in split.waits) + split.held_s == pytest.approx(total_s)
    assert 0.0 <= split.run_s <= split.held_s
    assert all(seconds > 0 for _, seconds in split.waits)
    assert [cause for cause, _ in split.waits] == sorted({cause for cause, _ in split.waits})


@given(STEPS, MOMENTS)
def test_the_seconds_of_an_account_are_its_whole_time_exactly(
    steps: list[tuple[Doing, DelayCause, float]], queued: float
) -> None:
    steps = [(doing, cause, abs(span_s)) for doing, cause, span_s in steps if doing is not Doing.ENDED]
    spent, now_s, _ = account(steps, queued)
    if spent is not None:
        assert whole_s(counted(spent, now_s)) == int(now_s) - int(queued)
        ended = moved_on(spent, Doing.ENDED, None, now_s)
        assert whole_s(counted(ended, now_s + 1e6)) == int(now_s) - int(queued)


@given(STEPS, MOMENTS)
def test_a_clock_that_goes_back_neither_adds_nor_takes(
    steps: list[tuple[Doing, DelayCause, float]], queued: float
) -> None:
    spent, before_s = None, 0
    for number in range(len(steps) + 1):
        spent, _, latest_s = account(steps[:number], queued)
        if spent is not None:
            assert before_s <= whole_s(spent) <= int(latest_s) - int(queued)
            before_s = whole_s(spent)


@given(STEPS, MOMENTS, st.floats(0.0, 1e5))
def test_counting_in_between_changes_nothing(
    steps: list[tuple[Doing, DelayCause, float]], queued: float, later_s: float
) -> None:
    """So it does not matter how often an account is written, nor which operator goes on with it."""
    spent, now_s, latest_s = account(steps, queued)
    if spent is not None:
        end_s = max(now_s, latest_s) + later_s
        once = moved_on(counted(spent, now_s), Doing.ENDED, None, end_s)
        assert once == moved_on(spent, Doing.ENDED, None, end_s) or spent.doing is Doing.ENDED
