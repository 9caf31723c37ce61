"""What an attempt that is stopped tells of the failures before it that were not counted: its time and its reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle import PodState, Step
from coda.lifecycle.steps import next_step
from coda.model import JobId, Phase
from coda.model.job import StopCause, StopOrder
from coda.model.trial_run import TrialRun
from coda.progress.stall import Reached, Stall
from tests.core.gangs import CONFIG, NOW_S, plan, progress, running, situation

HOUR_S = 3600.0
NETWORK = Diagnosis(reason=Reason.MPI, retry=Retry.OTHER_NODE, rank=1, evidence="peer lost", explicit=True)
STALLED = Stall(failures=5, counted=2, row=4, ran_s=3600, reached=Reached(step=10))
STOP = StopOrder(cause=StopCause.FAIR_SHARE, by=JobId("team/other"), since_s=NOW_S)


def stopped(stall: Stall | None, **changes: Any) -> Step:
    """An attempt that ran for two and a half hours is stopped for another job."""
    before = progress(Phase.RUNNING, launch_s=NOW_S - 2.5 * HOUR_S, failures=3, disruptions=4, stall=stall)
    pods = (running(0), running(1))
    return next_step(
        situation(Phase.RUNNING, *pods, progress=before, placement=plan(stop=STOP), **changes), NOW_S, CONFIG
    )


def test_an_attempt_that_is_stopped_counts_as_running_time_and_shortens_the_row() -> None:
    after = stopped(STALLED).progress
    assert (after.phase, after.failures, after.disruptions) == (Phase.RESTARTING, 3, 4)
    assert after.stall == replace(STALLED, row=2, ran_s=int(3.5 * HOUR_S))
    queued = next_step(situation(Phase.RESTARTING, progress=after, placement=None), NOW_S + 60.0, CONFIG).progress
    assert (queued.phase, queued.stall) == (Phase.QUEUED, after.stall)


def test_an_attempt_that_got_further_and_is_stopped_gives_back_what_counted() -> None:
    after = stopped(STALLED, reached=Reached(step=11)).progress
    assert (after.failures, after.disruptions) == (1, 6)
    assert after.stall == Stall(row=2, ran_s=int(3.5 * HOUR_S), reached=Reached(step=11))


def test_before_the_first_failure_a_stop_notes_nothing() -> None:
    assert stopped(None, reached=Reached(step=11)).progress.stall is None


def test_a_trial_that_is_stopped_tells_nothing_of_the_gang() -> None:
    before = progress(Phase.RUNNING, launch_s=NOW_S - HOUR_S, stall=STALLED, trial=TrialRun(attempt=1))
    now = situation(Phase.RUNNING, running(0), progress=before, placement=plan(stop=STOP), reached=Reached(step=11))
    after = next_step(now, NOW_S, CONFIG).progress
    assert (after.phase, after.stall) == (Phase.RESTARTING, STALLED)


@pytest.mark.parametrize(("found", "adds"), [(NETWORK, 1), (None, 0)])
def test_an_attempt_that_fails_counts_once(found: Diagnosis | None, adds: int) -> None:
    before = progress(Phase.RUNNING, launch_s=NOW_S - HOUR_S, stall=STALLED)
    failed = replace(running(1), state=PodState.FAILED, ended=True, exit_code=1, disrupted=found is None)
    pods = (running(0), failed)
    after = next_step(situation(Phase.RUNNING, *pods, progress=before, diagnosis=found), NOW_S, CONFIG).progress
    assert after.phase is Phase.RESTARTING
    assert after.stall is not None
    assert (after.stall.failures, after.stall.ran_s, after.stall.row) == (5 + adds, 7200, 3 + adds)


def test_a_silent_job_that_is_often_stopped_is_allowed_the_failures_of_all_its_time() -> None:
    """Stopped four times a day, each time after five hours; a peer is lost once a day, after an hour."""
    now_s, before = 0.0, progress(Phase.RUNNING)
    for day in range(60):
        for hours in (5, 5, 5, 5, 1):
            now_s += hours * HOUR_S
            before = replace(before, phase=Phase.RUNNING, attempt=before.attempt + 1, launch_s=now_s - hours * HOUR_S)
            order = plan(attempt=before.attempt, stop=STOP) if hours == 5 else plan(attempt=before.attempt)
            pods = [running(0, attempt=before.attempt), running(1, attempt=before.attempt)]
            if hours == 1:
                pods[1] = replace(pods[1], state=PodState.FAILED, ended=True, exit_code=1)
            at_end = situation(Phase.RUNNING, *pods, progress=before, placement=order, diagnosis=NETWORK)
            before = next_step(at_end, now_s, CONFIG).progress
            assert before.phase is Phase.RESTARTING, day
