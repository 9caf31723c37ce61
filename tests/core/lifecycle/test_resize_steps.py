"""A grant of cores as part of a gang's next step: only while it runs, and taken back when a rank cannot have it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.allocator import RankSize
from coda.allocator.resize import ResizeState
from coda.lifecycle import PodState, RankPod, Situation, Step, Terms, furthest_step, step_refused
from coda.model import JobId, Phase
from coda.model.job import StopCause, StopOrder, WishAnswer
from tests.core.gangs import CONFIG, NOW_S, plan, progress, running, situation

GRANT = WishAnswer(sequence=1, cores=9, granted=True, answered_s=NOW_S, deadline_s=NOW_S + 30)
PLAN = plan(answer=GRANT)


def sized(rank: int, cores: int = 4) -> RankPod:
    name, cores_m = f"j-1-{rank}", cores * 1000
    size = RankSize(
        name=name,
        uid=f"u-1-{rank}",
        version="1",
        container="main",
        wanted_m=cores_m,
        allocated_m=cores_m,
        actual_m=(cores_m, cores_m),
    )
    return running(rank, size=size)


RUNS = situation(Phase.RUNNING, sized(0), sized(1), placement=PLAN)


def step_of(now: Situation) -> Step:
    return furthest_step(now, NOW_S, CONFIG)


def refused(now: Situation) -> Step | None:
    return step_refused(now, step_of(now), "QuotaExceeded", "exceeded quota", NOW_S, CONFIG)


def test_a_gang_that_runs_gives_every_rank_what_was_granted() -> None:
    step = step_of(RUNS)
    assert [(size.name, cores_m) for size, cores_m in step.resize] == [("j-1-0", 9000), ("j-1-1", 9000)]
    assert step.progress.resize is not None
    assert (step.progress.phase, step.progress.resize.state) == (Phase.RUNNING, ResizeState.RESIZING)
    assert step.wake_s == GRANT.deadline_s


def test_the_nearer_of_two_moments_is_the_next_look() -> None:
    now = replace(RUNS, terms=Terms(replicas=2, active_deadline_s=10), progress=progress(Phase.RUNNING, launch_s=995.0))
    assert step_of(now).wake_s == 1005.0


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(replace(RUNS, placement=plan()), id="no grant"),
        pytest.param(replace(RUNS, placement=plan(attempt=2, answer=GRANT)), id="another attempt's"),
        pytest.param(replace(RUNS, pods=(sized(0), running(1))), id="the cores of a rank are not known"),
        pytest.param(replace(RUNS, deleting=True), id="the job is deleted"),
        pytest.param(replace(RUNS, terms=Terms(replicas=2, suspend=True)), id="it is suspended"),
        pytest.param(
            replace(RUNS, pods=(sized(0), replace(sized(1), state=PodState.FAILED, exit_code=1))),
            id="the attempt has failed",
        ),
        pytest.param(
            replace(
                RUNS,
                placement=replace(PLAN, stop=StopOrder(cause=StopCause.RECLAIM, by=JobId("a/b"), since_s=990.0)),
            ),
            id="it is stopped for another job",
        ),
        pytest.param(replace(RUNS, progress=progress(Phase.STARTING)), id="that it runs is not written yet"),
    ],
)
def test_no_cores_change_unless_the_gang_runs_and_goes_on_running(now: Situation) -> None:
    step = step_of(now)
    assert (step.resize, step.progress.resize) == ((), None)


def test_one_rank_that_is_refused_takes_all_back_and_is_not_asked_again() -> None:
    step = refused(RUNS)
    assert step is not None
    assert step.resize == ()
    assert step.progress.resize is not None
    assert (step.progress.resize.state, step.progress.resize.reason) == (ResizeState.REVERTING, "QuotaExceeded")


def test_giving_back_is_tried_again_and_never_given_up() -> None:
    given_up = refused(RUNS)
    assert given_up is not None
    gives_back = replace(RUNS, progress=given_up.progress, pods=(sized(0, 9), sized(1)))
    assert [(size.name, cores_m) for size, cores_m in step_of(gives_back).resize] == [("j-1-0", 4000)]
    assert refused(gives_back) is None
