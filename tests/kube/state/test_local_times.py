"""What other processes wrote by another clock counts for its length, from the moment it is seen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import Job, Phase, Placement, PlacementState
from coda.model.job import TAKEN_BACK, Wish, WishAnswer
from coda_kube.state.local_times import CLOSE_S, HELD_S, LocalTimes
from tests.builders import job

NOW_S = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def placed(ahead_s: float, length_s: float = 60.0, plan: str = "plan") -> Job:
    """A job whose placement was committed now by a clock that is ahead."""
    placement = Placement(
        attempt=1,
        plan_id=plan,
        epoch=1,
        generation=1,
        state=PlacementState.COMMITTED,
        nodes=("n1",),
        cpus_per_replica=1,
        committed_s=NOW_S + ahead_s,
        bind_deadline_s=NOW_S + ahead_s + length_s,
    )
    return replace(job("gang"), placement=placement)


def deadline_s(found: Job) -> float:
    assert found.placement is not None
    return found.placement.bind_deadline_s + found.deadline_shift_s


@given(st.floats(-7200.0, 7200.0), st.floats(1.0, 3600.0))
def test_no_clock_makes_a_deadline_come_before_its_length_is_over(ahead_s: float, length_s: float) -> None:
    found = LocalTimes(Clock()).applied(placed(ahead_s, length_s))
    assert deadline_s(found) >= NOW_S + length_s - CLOSE_S - 1e-3


def test_a_clock_like_ours_changes_nothing() -> None:
    gang = placed(-2.0)
    assert LocalTimes(Clock()).applied(gang) is gang


def test_the_length_counts_once_for_each_placement() -> None:
    clock = Clock()
    times = LocalTimes(clock)
    first = times.applied(placed(-3600.0))
    clock.now_s += 50.0
    assert deadline_s(times.applied(placed(-3600.0))) == deadline_s(first) == NOW_S + 60.0
    assert deadline_s(times.applied(placed(-3600.0, plan="next"))) == NOW_S + 110.0
    assert times.applied(replace(placed(-3600.0), phase=Phase.RUNNING)).deadline_shift_s == 0.0


def test_a_deadline_that_a_release_wrote_by_our_clock_counts_as_it_is() -> None:
    times = LocalTimes(Clock())
    gang = times.applied(placed(-3600.0))
    assert gang.placement is not None
    released = replace(gang, placement=replace(gang.placement, bind_deadline_s=NOW_S + 30.0))
    assert deadline_s(times.applied(released)) == NOW_S + 30.0


@pytest.mark.parametrize(("ahead_s", "counts_s"), [(0.0, 20.0), (3600.0, 20.0), (-3600.0, -3580.0), (2.0, 22.0)])
def test_a_back_off_lasts_no_longer_than_it_was_meant_to(ahead_s: float, counts_s: float) -> None:
    clock = Clock()
    times = LocalTimes(clock)
    waits = replace(job("gang"), waiting_s=NOW_S + ahead_s, not_before_s=NOW_S + ahead_s + 20.0)
    assert times.applied(waits).not_before_s == NOW_S + counts_s
    clock.now_s += 10.0
    assert times.applied(waits).not_before_s == NOW_S + counts_s
    assert times.applied(replace(waits, not_before_s=0.0)).not_before_s == 0.0


@pytest.mark.parametrize(("ahead_s", "counts_s"), [(3600.0, 0.0), (-3600.0, -3620.0), (0.0, -20.0)])
def test_a_back_off_that_was_over_when_the_wait_began_is_over(ahead_s: float, counts_s: float) -> None:
    """Most are: the wait begins once the pods of the last attempt are gone."""
    times = LocalTimes(Clock())
    restarting = replace(job("gang"), waiting_s=NOW_S + ahead_s - 9000.0, not_before_s=NOW_S + ahead_s - 20.0)
    times.applied(restarting)  # it waited long before its last attempt
    found = times.applied(replace(restarting, waiting_s=NOW_S + ahead_s))
    assert found.not_before_s == NOW_S + counts_s
    assert found.waiting_s == min(NOW_S, NOW_S + ahead_s)


def test_a_wait_by_another_clock_began_when_it_was_seen() -> None:
    """It goes on from there: a gang that prefers one rack for five minutes does so for no longer."""
    clock = Clock()
    times = LocalTimes(clock)
    waits = replace(job("gang"), waiting_s=NOW_S + 1800.0)
    assert times.applied(waits).waiting_s == NOW_S
    clock.now_s += 100.0
    assert times.applied(waits).waiting_s == NOW_S
    assert times.applied(replace(waits, waiting_s=NOW_S + 1900.0)).waiting_s == NOW_S + 100.0
    times.forget(waits.id)
    clock.now_s += 3600.0
    assert times.applied(waits) is waits


def wishing(since_s: float, sequence: int = 1) -> Job:
    wish = Wish(sequence=sequence, cores=8, since_s=since_s, deadline_s=since_s + 60.0)
    return replace(running(), wish=wish)


def running(ahead_s: float = -1000.0) -> Job:
    return replace(placed(ahead_s), phase=Phase.RUNNING)


def wish_deadline_s(found: Job) -> float:
    assert found.wish is not None
    return found.wish.deadline_s


@given(st.floats(-7200.0, 7200.0))
def test_an_agents_clock_changes_nothing_about_how_long_a_new_wish_is_open(ahead_s: float) -> None:
    clock = Clock()
    times = LocalTimes(clock)
    times.applied(running(), is_known=False)
    wish = wishing(NOW_S + ahead_s)
    assert wish_deadline_s(times.applied(wish)) == pytest.approx(NOW_S + 60.0, abs=CLOSE_S)
    clock.now_s += 50.0
    assert wish_deadline_s(times.applied(wish)) == pytest.approx(NOW_S + 60.0, abs=CLOSE_S)
    again = wishing(NOW_S + ahead_s + 50.0, sequence=2)
    assert wish_deadline_s(times.applied(again)) == pytest.approx(NOW_S + 110.0, abs=CLOSE_S)


@pytest.mark.parametrize(("ahead_s", "counts_s"), [(-3600.0, -3540.0), (-30.0, 30.0), (3600.0, 60.0)])
def test_a_wish_that_a_process_finds_when_it_begins_may_be_an_old_one(ahead_s: float, counts_s: float) -> None:
    found = LocalTimes(Clock()).applied(wishing(NOW_S + ahead_s), is_known=False)
    assert wish_deadline_s(found) == NOW_S + counts_s


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_what_runs_began_when_it_was_seen_at_the_latest(phase: Phase) -> None:
    clock = Clock()
    times = LocalTimes(clock)
    gang = replace(running(1800.0), phase=phase)
    for _ in range(2):
        found = times.applied(gang).placement
        assert found is not None
        assert found.committed_s == NOW_S
        clock.now_s += 100.0
    assert times.applied(running(-5.0)) == running(-5.0)
    assert times.applied(gang).placement is not None
    times.forget(gang.id)


def searching(cores: int, held: int) -> Job:
    """Its placement gave it 8 cores."""
    gang = running()
    assert gang.placement is not None
    placement = replace(gang.placement, cpus_per_replica=8)
    return replace(gang, placement=placement, searching=True, cpus_per_replica=cores, held_cores=held)


def test_what_a_search_had_and_tries_without_is_withheld_for_it() -> None:
    times = LocalTimes(Clock())
    assert [times.applied(searching(cores, held)).held_cores for cores, held in ((8, 8), (6, 8), (6, 6), (4, 6))] == [
        8, 8, 6, 6,
    ]  # fmt: skip


def test_what_it_has_given_away_or_never_had_is_withheld_for_no_search() -> None:
    times = LocalTimes(Clock())
    assert times.applied(searching(6, 8)).held_cores == 0  # of a process that begins in the middle of it
    times.applied(searching(8, 8))
    times.applied(searching(6, 6))
    assert times.applied(searching(5, 8)).held_cores == 6
    assert times.applied(replace(searching(5, 8), searching=False)).held_cores == 0
    assert times.applied(searching(5, 8)).held_cores == 0


def test_cores_that_a_cpu_job_gets_back_are_withheld_for_no_search() -> None:
    times = LocalTimes(Clock())
    times.applied(searching(8, 8))
    fewer = searching(6, 8)
    assert fewer.placement is not None
    answer = WishAnswer(sequence=1, granted=True, cores=6, answered_s=0.0, deadline_s=0.0, code=TAKEN_BACK)
    assert times.applied(replace(fewer, placement=replace(fewer.placement, answer=answer))).held_cores == 0
    assert times.applied(fewer).held_cores == 0


def test_a_search_that_never_ends_gives_free_what_it_tries_without() -> None:
    clock = Clock()
    times = LocalTimes(clock)
    times.applied(searching(8, 8))
    clock.now_s += 600.0
    times.applied(searching(6, 8))  # the same search: its time goes on
    assert times.next_hold_over_in_s() == HELD_S - 600.0
    assert times.pop_holds_over() == []
    clock.now_s += HELD_S - 600.0
    assert times.pop_holds_over() == [running().id]
    assert times.next_hold_over_in_s() is None
    assert [times.applied(searching(cores, 8)).held_cores for cores in (6, 8, 6)] == [0, 0, 0]
    times.applied(replace(searching(8, 8), searching=False))
    assert times.applied(searching(8, 8)).held_cores == 8
