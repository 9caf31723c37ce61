"""Who makes room after a slice, by how long jobs like it and like the waiting one have run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.history import FinishedRun
from coda.history.queue_estimates import TERM_S
from coda.model import Decision, Job, JobId
from coda.policy import Component, PolicyConfig
from coda.promises import PromiseBook
from tests.builders import node, world
from tests.core.cycle.test_preemption import CODA, NOW_S, gpu, ran
from tests.core.play import Play

HOUR_S = 3600.0
NODES = (node("a", gpus=4, cores=8),)
BY_ARRIVAL = replace(CODA, without=frozenset({Component.SHORT_FIRST}))
ALIKE = [2 * HOUR_S] * 40
HEAVY_TAILED = [60.0] * 30 + [100 * HOUR_S] * 10


def book_of(run_s: list[float], user: str = "", gpus: int = 4) -> PromiseBook:
    """What a planner knows that has seen jobs run for so long."""
    return taught(PromiseBook(), run_s, user, gpus)


def taught(book: PromiseBook, run_s: list[float], user: str = "", gpus: int = 4) -> PromiseBook:
    for one_s in run_s:
        book.run_times.add(FinishedRun(user, "", gpus, one_s))
    return book


def of(user: str, one: Job) -> Job:
    return replace(one, user=user)


def decided(jobs: list[Job], book: PromiseBook, now_s: float = NOW_S) -> Decision:
    return decide(world(NODES, jobs), CODA, now_s, book=book)


def stopped(jobs: list[Job], book: PromiseBook, now_s: float = NOW_S) -> list[str]:
    return [stop.job for stop in decided(jobs, book, now_s).stops]


def test_where_jobs_run_alike_who_is_nearly_done_is_not_stopped() -> None:
    nearly_done = ran(gpu("old", 4), "a", for_s=1.7 * HOUR_S)
    assert stopped([nearly_done, gpu("new", 4)], book_of(ALIKE)) == []
    assert stopped([nearly_done, gpu("new", 4)], book_of(HEAVY_TAILED)) == [nearly_done.id]


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        pytest.param(34.0, [], id="a bit shorter: means of few jobs differ by as much"),
        pytest.param(15.0, ["team/old"], id="clearly shorter"),
    ],
)
def test_nobody_is_stopped_for_jobs_that_were_a_bit_shorter(minutes: float, expected: list[str]) -> None:
    book = taught(book_of([2400.0] * 40, "ann", gpus=8), [minutes * 60.0] * 40, "bob", gpus=8)
    old = of("ann", ran(gpu("old", 8), "a", for_s=660.0))
    new = of("bob", gpu("new", 8))
    decision = decide(world((node("a", gpus=8, cores=16),), [old, new]), CODA, NOW_S, book=book)
    assert [stop.job for stop in decision.stops] == expected


def test_a_planner_that_knows_nothing_stops_whoever_had_its_slice() -> None:
    old = ran(gpu("old", 4), "a", for_s=1.7 * HOUR_S)
    assert stopped([old, gpu("new", 4)], PromiseBook()) == [old.id]


def test_what_earlier_attempts_ran_counts() -> None:
    """Half of the jobs run for an hour: one that ran longer in all is one of the others."""
    run_s = [HOUR_S, 100 * HOUR_S] * 20
    assert stopped([ran(gpu("old", 4), "a", for_s=0.3 * HOUR_S), gpu("new", 4)], book_of(run_s)) == []
    old = ran(gpu("old", 4, served_s=1.4 * HOUR_S), "a", for_s=0.3 * HOUR_S)
    assert stopped([old, gpu("new", 4)], book_of(run_s)) == [old.id]


def test_a_higher_priority_stops_it_all_the_same() -> None:
    nearly_done = ran(gpu("old", 4), "a", for_s=1.7 * HOUR_S)
    assert stopped([nearly_done, replace(gpu("new", 4), priority=1)], book_of(ALIKE)) == [nearly_done.id]


@pytest.mark.parametrize(
    ("run_s", "priority", "expected"),
    [
        pytest.param(HEAVY_TAILED, 0, "older", id="few are long: who ran longest is least likely to end soon"),
        pytest.param(ALIKE, 1, "old", id="all run alike: who ran longest is nearly done"),
    ],
)
def test_who_is_least_likely_to_end_soon_makes_room_first(run_s: list[float], priority: int, expected: str) -> None:
    old, older = ran(gpu("old", 2), "a", for_s=1.1 * HOUR_S), ran(gpu("older", 2), "a", for_s=1.8 * HOUR_S)
    book = taught(book_of(run_s, gpus=2), run_s)
    assert stopped([old, older, replace(gpu("new", 2), priority=priority)], book) == [f"team/{expected}"]
    assert stopped([older, old, replace(gpu("new", 2), priority=priority)], book) == [f"team/{expected}"]


def test_of_those_that_are_about_as_likely_to_end_who_loses_least_makes_room_first() -> None:
    old = ran(gpu("old", 2), "a", for_s=2.0 * HOUR_S)
    saved = replace(ran(gpu("saved", 2), "a", for_s=1.99 * HOUR_S), saved_s=NOW_S - 60.0)
    assert stopped([old, saved, gpu("new", 2)], book_of(HEAVY_TAILED, gpus=2)) == [saved.id]
    assert stopped([replace(old, saved_s=NOW_S), saved, gpu("new", 2)], book_of(HEAVY_TAILED, gpus=2)) == [old.id]


def test_who_runs_on_for_longer_than_the_others_is_looked_at_again() -> None:
    """Nothing but time passes: the decision says when, and the job goes when it is clearly no job like the others."""
    jobs, book = [ran(gpu("old", 4), "a", for_s=1.9 * HOUR_S), gpu("new", 4)], book_of(ALIKE)
    now_s, decision = NOW_S, decided(jobs, book)
    assert not decision.stops
    while not decision.stops:
        assert decision.wake_s is not None
        assert now_s < decision.wake_s <= now_s + TERM_S
        assert not decided(jobs, book, (now_s + decision.wake_s) / 2).stops
        now_s, decision = decision.wake_s, decided(jobs, book, decision.wake_s)
        assert now_s < NOW_S + 6 * HOUR_S
    assert now_s > NOW_S + 0.1 * HOUR_S


@pytest.mark.parametrize(
    ("config", "first", "starts"),
    [
        pytest.param(CODA, gpu("first", 4), "second", id="whoever is expected to be quick is tried first"),
        pytest.param(BY_ARRIVAL, gpu("first", 4), "running", id="who is spared for the first is spared for the second"),
        pytest.param(BY_ARRIVAL, gpu("first", 4, replicas=2), "second", id="the first could not start there anyhow"),
    ],
)
def test_nobody_takes_what_was_freed_for_somebody_else(config: PolicyConfig, first: Job, starts: str) -> None:
    play = Play(config, NODES)
    taught(play.book, [50 * HOUR_S] * 40, "slow", first.replicas * 4)
    taught(play.book, [60.0] * 40, "quick")
    taught(play.book, [3 * HOUR_S] * 40, "usual")
    play.submit(of("usual", gpu("running", 4)))
    play.settle()
    play.now_s = 2 * HOUR_S
    play.submit(of("slow", first))
    assert not play.decide().stops
    play.now_s += 1.0
    play.submit(of("quick", gpu("second", 4)))
    stops = [(stop.job, stop.by) for stop in play.decide().stops]
    assert stops == ([("team/running", "team/second")] if starts == "second" else [])
    play.decide()
    assert play.running() == [JobId(f"team/{starts}")]


def test_an_urgent_job_that_cannot_make_room_itself_still_waits_for_a_slice_no_longer_than_it_lasts() -> None:
    """It stops jobs of lower priority, so the decision says when the next one has had its slice."""
    young = ran(gpu("young", 4), "a", for_s=300.0)
    urgent = replace(gpu("urgent", 4), priority=1, resumable=False)
    decision = decided([young, urgent], PromiseBook())
    assert not decision.stops
    assert decision.wake_s == NOW_S + 600.0
    assert stopped([young, urgent], PromiseBook(), decision.wake_s) == [young.id]
