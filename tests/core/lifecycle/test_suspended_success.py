"""A job whose ranks have succeeded before anybody looked, and that is suspended meanwhile, has succeeded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.lifecycle import PodState, RankPod, Situation, Terms
from coda.lifecycle.steps import furthest_step
from coda.model.job import JobId, Phase, StopCause, StopOrder
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, running, situation

SUSPENDED = Terms(replicas=2, suspend=True)
ORDER = StopOrder(cause=StopCause.RECLAIM, by=JobId("default/b"), since_s=NOW_S - 1, notice_s=30.0)


def done(rank: int, told: str = "") -> RankPod:
    return pod(rank, state=PodState.SUCCEEDED, ended=True, ended_s=NOW_S - 60, held=True, told=told)


def after(now: Situation) -> Phase | None:
    """Its phase once nothing more changes."""
    for _ in range(3):
        now = replace(now, progress=furthest_step(now, NOW_S, CONFIG).progress)
    return now.progress.phase


@pytest.mark.parametrize("phase", [Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING])
def test_it_has_succeeded_and_does_not_run_again(phase: Phase) -> None:
    now = situation(phase, done(0), done(1), terms=SUSPENDED)
    assert after(now) is Phase.SUCCEEDED


def test_rank_zero_alone_may_decide() -> None:
    now = situation(Phase.RUNNING, done(0), running(1), terms=replace(SUSPENDED, rank_zero_decides=True))
    assert after(now) is Phase.SUCCEEDED


def test_one_of_which_a_rank_still_runs_is_suspended() -> None:
    assert after(situation(Phase.RUNNING, done(0), running(1), terms=SUSPENDED)) is Phase.SUSPENDED


@pytest.mark.parametrize(("is_done", "phase"), [(False, Phase.SUSPENDED), (True, Phase.SUCCEEDED)])
def test_ranks_that_ended_because_they_were_told_to_stop_have_succeeded_only_if_nothing_is_left(
    is_done: bool, phase: Phase
) -> None:
    told = progress(Phase.RUNNING, stop_due_s=NOW_S + 5)
    pods = (done(0, told="p1"), done(1, told="p1"))
    now = situation(Phase.RUNNING, *pods, terms=SUSPENDED, progress=told, placement=plan(stop=ORDER), is_done=is_done)
    assert after(now) is phase
