"""Clocks of suspicions: who is charged for how long, and what is reported once."""

from __future__ import annotations

import pytest

from coda_lab.checker.report import Invariant
from coda_lab.checker.suspicion import Part, Suspicion
from coda_lab.checker.suspicion_clock import OpenSuspicions
from coda_lab.checker.view import Scope

SCOPE: Scope = ("job", "uid-j")


def suspicion(*, allowance_s: float = 5.0, duty: Part | None = Part.PLANNER, not_before_s: float = 0.0) -> Suspicion:
    return Suspicion(
        invariant=Invariant.WAITING_UNEXPLAINED,
        subject=("uid-j", "1"),
        objects=("TrainingJob/ns/j",),
        sentence="job ns/j waits",
        allowance_s=allowance_s,
        duty=duty,
        not_before_s=not_before_s,
    )


def renew(suspicions: OpenSuspicions, term: str, *times_s: float) -> None:
    for time_s in times_s:
        suspicions.services[Part.PLANNER].renewed(term, str(time_s), time_s)


def due(suspicions: OpenSuspicions, now_s: float) -> bool:
    return bool(suspicions.due(now_s))


def test_is_due_when_the_holder_has_worked_for_the_whole_allowance() -> None:
    suspicions = OpenSuspicions()
    renew(suspicions, "one", 0, 2)
    suspicions.enter(SCOPE, [suspicion()], 3.0)
    renew(suspicions, "one", 4, 6)
    assert not due(suspicions, 100.0)
    renew(suspicions, "one", 8)
    assert due(suspicions, 8.0)


def test_a_dead_leader_is_charged_for_nothing() -> None:
    suspicions = OpenSuspicions()
    renew(suspicions, "one", 0, 2)
    suspicions.enter(SCOPE, [suspicion()], 2.0)
    assert not due(suspicions, 1000.0)


@pytest.mark.parametrize("next_term", ["two since 15", "one since 15"])
def test_the_next_term_has_its_whole_allowance(next_term: str) -> None:
    suspicions = OpenSuspicions()
    renew(suspicions, "one since 0", 0, 2, 4, 10)
    suspicions.enter(SCOPE, [suspicion()], 8.0)
    renew(suspicions, next_term, 15, 17, 19)
    assert not due(suspicions, 19.0)
    renew(suspicions, next_term, 21)
    assert due(suspicions, 21.0)


def test_a_leader_that_was_stopped_and_continued_has_its_whole_allowance() -> None:
    suspicions = OpenSuspicions()
    renew(suspicions, "one", 0, 2, 4)
    suspicions.enter(SCOPE, [suspicion()], 0.0)
    renew(suspicions, "one", 12, 14)
    assert not due(suspicions, 14.0)


def test_the_first_state_of_a_lease_proves_no_living_holder() -> None:
    suspicions = OpenSuspicions()
    suspicions.enter(SCOPE, [suspicion()], 0.0)
    renew(suspicions, "one", 9)
    assert not due(suspicions, 100.0)
    assert [each.sentence for each in suspicions.unjudged()] == ["job ns/j waits"]
    renew(suspicions, "one", 11)
    assert suspicions.unjudged() == []


def test_a_released_lease_has_no_holder() -> None:
    suspicions = OpenSuspicions()
    renew(suspicions, "one", 0, 2)
    renew(suspicions, "", 3, 20)
    suspicions.enter(SCOPE, [suspicion(allowance_s=0.5)], 0.0)
    assert not due(suspicions, 20.0)


def test_without_a_duty_the_own_clock_counts() -> None:
    suspicions = OpenSuspicions()
    suspicions.enter(SCOPE, [suspicion(duty=None)], 1.0)
    assert not due(suspicions, 5.9)
    assert due(suspicions, 6.0)


def test_an_outage_starts_all_clocks_again() -> None:
    suspicions = OpenSuspicions()
    renew(suspicions, "one", 0, 2, 4)
    suspicions.enter(SCOPE, [suspicion(), own := suspicion_of_nobody()], 0.0)
    suspicions.interrupted(4.0)
    renew(suspicions, "one", 6, 8)
    assert not due(suspicions, 8.5)
    assert list(suspicions.due(9.0)) == [own.key]
    renew(suspicions, "one", 10, 12)
    assert len(suspicions.due(12.0)) == 2


def suspicion_of_nobody() -> Suspicion:
    return Suspicion(
        invariant=Invariant.POD_WITHOUT_PLAN, subject=("p",), objects=("Pod/ns/p",), sentence="", allowance_s=5.0
    )


def test_a_deadline_ahead_is_waited_for() -> None:
    suspicions = OpenSuspicions()
    suspicions.enter(SCOPE, [suspicion(duty=None, allowance_s=2.0, not_before_s=50.0)], 0.0)
    assert not due(suspicions, 51.9)
    assert due(suspicions, 52.0)


def test_a_state_that_ended_in_time_starts_anew_the_next_time() -> None:
    suspicions = OpenSuspicions()
    suspicions.enter(SCOPE, [suspicion(duty=None)], 0.0)
    suspicions.enter(SCOPE, [], 4.0)
    suspicions.enter(SCOPE, [suspicion(duty=None)], 4.5)
    assert not due(suspicions, 9.0)
    assert due(suspicions, 9.5)


def test_a_breach_is_reported_once_until_it_ended() -> None:
    suspicions = OpenSuspicions()
    suspicions.enter(SCOPE, [again := suspicion(duty=None)], 0.0)
    suspicions.report(again.key)
    suspicions.enter(SCOPE, [again], 6.0)
    assert not due(suspicions, 100.0)
    suspicions.enter(SCOPE, [], 101.0)
    suspicions.enter(SCOPE, [again], 102.0)
    assert due(suspicions, 107.0)


def test_what_the_fresh_list_dropped_has_its_allowance_again() -> None:
    suspicions = OpenSuspicions()
    suspicions.enter(SCOPE, [again := suspicion(duty=None)], 0.0)
    suspicions.restart(again.key, 6.0)
    assert not due(suspicions, 10.9)
    assert due(suspicions, 11.0)
