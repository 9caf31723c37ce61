"""How a job's time is split: every second once, whatever was seen of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history.time_spent import CAUSES, OTHER, UNSEEN, Doing, Split, StatusTimes, begun, moved_on, split_of

MOMENTS = st.floats(0.0, 1e6)
SPANS = st.floats(0.0, 1e5)
STEPS = st.tuples(st.sampled_from(Doing), st.sampled_from("abcdefghijklmnopq"), SPANS)


def times(queued: float, launched: float, started: float, ended: float) -> StatusTimes:
    return StatusTimes(queued_s=queued, launched_s=launched, started_s=started, ended_s=ended)


def test_a_job_that_was_seen_whole_is_split_as_it_went() -> None:
    spent = begun(Doing.WAITING, "Queued", 100.0)
    spent = moved_on(spent, Doing.WAITING, "NoFreeGpus", 110.0)
    spent = moved_on(spent, Doing.HOLDING, "", 200.0)
    spent = moved_on(spent, Doing.RUNNING, "", 205.0)
    spent = moved_on(spent, Doing.WAITING, "Restarting", 305.0)
    spent = moved_on(spent, Doing.WAITING, "NoFreeGpus", 307.0)
    spent = moved_on(spent, Doing.RUNNING, "", 310.0)
    expected = Split(waits=(("NoFreeGpus", 93.0), ("Queued", 10.0), ("Restarting", 2.0)), held_s=195.0, run_s=190.0)
    assert split_of(spent, times(100.0, 309.0, 205.0, 400.0)) == expected


def test_who_sees_only_the_end_knows_the_last_attempt_from_the_status() -> None:
    expected = Split(waits=((UNSEEN, 60.0),), held_s=340.0, run_s=330.0)
    assert split_of(None, times(100.0, 160.0, 170.0, 500.0)) == expected


def test_a_job_that_never_started_only_waited() -> None:
    assert split_of(None, times(100.0, 0.0, 0.0, 500.0)) == Split(waits=((UNSEEN, 400.0),), held_s=0.0, run_s=0.0)


def test_the_same_thing_again_changes_nothing() -> None:
    spent = begun(Doing.WAITING, "Queued", 100.0)
    assert moved_on(spent, Doing.WAITING, "Queued", 150.0) is spent
    running = moved_on(spent, Doing.RUNNING, "", 150.0)
    assert moved_on(running, Doing.RUNNING, "whatever", 160.0) is running


@given(st.lists(STEPS, max_size=40), MOMENTS, MOMENTS, MOMENTS, MOMENTS)
def test_every_second_is_counted_once(
    steps: list[tuple[Doing, str, float]], queued: float, launched: float, started: float, ended: float
) -> None:
    """Also where the clock was put back, and where status and account contradict each other."""
    now_s, spent = queued, None
    for doing, cause, span_s in steps:
        spent = begun(doing, cause, now_s) if spent is None else moved_on(spent, doing, cause, now_s)
        now_s += span_s
    split = split_of(spent, times(queued, launched, started, ended))
    total_s = max(0.0, ended - queued) if queued else 0.0
    assert sum(seconds for _, seconds in split.waits) + split.held_s == pytest.approx(total_s)
    assert 0.0 <= split.run_s <= split.held_s
    assert all(seconds > 0 for _, seconds in split.waits)
    assert [cause for cause, _ in split.waits] == sorted({cause for cause, _ in split.waits})


@given(st.lists(st.text(max_size=8), min_size=1, max_size=60))
def test_the_causes_of_one_job_have_a_limit(causes: list[str]) -> None:
    spent = begun(Doing.WAITING, "first", 0.0)
    for number, cause in enumerate(causes, start=1):
        spent = moved_on(spent, Doing.WAITING, cause, float(number))
    names = {cause for cause, _ in spent.waits}
    assert len(names) <= CAUSES + 1
    assert sum(seconds for _, seconds in spent.waits) == pytest.approx(spent.since_s)
    assert OTHER not in names or len(names) > CAUSES or OTHER in causes
