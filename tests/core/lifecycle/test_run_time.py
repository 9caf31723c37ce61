"""How long a job may run: the time of all its attempts counts, and none of its waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.lifecycle import Progress, Situation, Terms
from coda.lifecycle.state import PodState
from coda.lifecycle.steps import furthest_step, next_step
from coda.model import JobId, Phase
from coda.model.job import StopCause, StopOrder
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, running, situation

LIMIT_S = 3600.0
DAY_S = 86_400.0
LENT = StopOrder(cause=StopCause.FAIR_SHARE, by=JobId("team/other"), since_s=NOW_S)
LIMITED = Terms(replicas=2, active_deadline_s=LIMIT_S, resumable=True)


def runs(**changes: object) -> Situation:
    return situation(Phase.RUNNING, running(0), running(1), terms=LIMITED, progress=progress(Phase.RUNNING, **changes))


def after(now: Situation, at_s: float) -> Progress:
    return next_step(now, at_s, CONFIG).progress


def test_what_a_job_waits_for_after_a_stop_takes_nothing_from_its_time() -> None:
    stopped = after(replace(runs(launch_s=NOW_S), placement=plan(stop=LENT)), NOW_S + 600.0)
    assert stopped.phase is Phase.RESTARTING
    queued = after(situation(Phase.RESTARTING, terms=LIMITED, progress=stopped), NOW_S + 600.0)
    waits = situation(Phase.QUEUED, terms=LIMITED, progress=queued, placement=None)
    step = next_step(waits, NOW_S + DAY_S, CONFIG)
    assert (step.progress.phase, step.progress.served_s, step.wake_s) == (Phase.QUEUED, 600.0, None)
    again = replace(queued, phase=Phase.RUNNING, launch_s=NOW_S + DAY_S)
    pods = (running(0, attempt=2), running(1, attempt=2))
    on = situation(Phase.RUNNING, *pods, terms=LIMITED, progress=again, placement=plan(2))
    assert next_step(on, NOW_S + DAY_S, CONFIG).wake_s == NOW_S + DAY_S + 3000.0
    assert after(on, NOW_S + DAY_S + 2999.0).phase is Phase.RUNNING
    over = after(on, NOW_S + DAY_S + 3000.0)
    assert (over.phase, over.reason) == (Phase.FAILED, "DeadlineExceeded")
    assert over.message == (
        "ran for 3600 s, all that spec.activeDeadlineSeconds allows: delete it and submit it again with more time"
    )


@pytest.mark.parametrize("phase", [None, Phase.QUEUED, Phase.RESTARTING, Phase.SUSPENDED])
def test_only_a_job_with_a_launch_is_over(phase: Phase | None) -> None:
    """Its limit may have been lowered beneath what it ran, and it first ran long ago."""
    waits = progress(phase, launch_s=0.0, start_s=5.0, served_s=LIMIT_S + 1)
    now = situation(phase, terms=replace(LIMITED, suspend=phase is Phase.SUSPENDED), progress=waits, placement=None)
    assert after(now, NOW_S + DAY_S).phase is not Phase.FAILED


@pytest.mark.parametrize("phase", [Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING])
def test_a_job_that_succeeded_while_nobody_looked_is_not_over(phase: Phase) -> None:
    """No operator ran from before its end until after its limit."""
    done = (pod(0, state=PodState.SUCCEEDED), pod(1, state=PodState.SUCCEEDED))
    now = situation(phase, *done, terms=LIMITED, progress=progress(phase, launch_s=NOW_S))
    ran = replace(now, progress=furthest_step(now, NOW_S + DAY_S, CONFIG).progress)  # that it ran is written first
    assert furthest_step(ran, NOW_S + DAY_S, CONFIG).progress.phase is Phase.SUCCEEDED
    half = replace(now, pods=(done[0], running(1)))
    assert furthest_step(half, NOW_S + DAY_S, CONFIG).progress.phase is Phase.FAILED


def test_pods_that_take_long_to_go_are_a_wait_too() -> None:
    """A node that is lost while the brake is on, or a foreign finalizer, may keep them for days."""
    ending = progress(Phase.RESTARTING, launch_s=NOW_S - 600.0, served_s=100.0)
    stuck = situation(Phase.RESTARTING, pod(0, terminating=True), terms=LIMITED, progress=ending, ended_s=NOW_S)
    assert after(stuck, NOW_S + DAY_S).phase is Phase.RESTARTING
    gone = after(replace(stuck, pods=()), NOW_S + DAY_S)
    assert (gone.phase, gone.served_s) == (Phase.QUEUED, 700.0)


def test_an_attempt_whose_end_was_written_before_its_launch_adds_nothing() -> None:
    ending = progress(Phase.RESTARTING, launch_s=NOW_S, served_s=100.0)
    gone = situation(Phase.RESTARTING, terms=LIMITED, progress=ending, ended_s=NOW_S - 50.0)
    assert after(gone, NOW_S + 9.0).served_s == 100.0


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 90_000)), max_size=8))
def test_it_is_ended_once_its_attempts_took_as_long_as_it_may_run(parts: list[tuple[int, int]]) -> None:
    """Attempts and the waits after them, in seconds: the last attempt goes on until the job is ended."""
    now_s, ran_s, told = NOW_S, 0, progress(Phase.QUEUED, launch_s=0.0)
    for run_s, wait_s in parts:
        assert ran_s + run_s < LIMIT_S
        told = replace(told, phase=Phase.RUNNING, launch_s=now_s)
        now_s, ran_s = now_s + run_s, ran_s + run_s
        pods = (running(0, attempt=told.attempt), running(1, attempt=told.attempt))
        stop = plan(told.attempt, stop=LENT)
        told = after(situation(Phase.RUNNING, *pods, terms=LIMITED, progress=told, placement=stop), now_s)
        ended_s, now_s = now_s, now_s + wait_s
        told = after(situation(Phase.RESTARTING, terms=LIMITED, progress=told, ended_s=ended_s), now_s)
        assert (told.phase, told.served_s) == (Phase.QUEUED, ran_s)
    pods = (running(0, attempt=told.attempt), running(1, attempt=told.attempt))
    told = replace(told, phase=Phase.RUNNING, launch_s=now_s)
    now = situation(Phase.RUNNING, *pods, terms=LIMITED, progress=told, placement=plan(told.attempt))
    assert after(now, now_s + LIMIT_S - ran_s - 0.5).phase is Phase.RUNNING
    assert after(now, now_s + LIMIT_S - ran_s).phase is Phase.FAILED
