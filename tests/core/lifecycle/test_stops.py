"""A job that asked for notice of a stop: what it is told, what counts as an answer, and how long it is waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.lifecycle import PodState, RankPod, Situation, Step, Terms
from coda.lifecycle.state import StopAnswer
from coda.lifecycle.steps import next_step
from coda.model import JobId, Phase
from coda.model.job import StopCause, StopOrder
from tests.core.gangs import CONFIG, NOW_S, plan, progress, running, situation

NOTICE_S = 60.0
ORDER = StopOrder(cause=StopCause.MIGRATE, by=JobId("team/other"), since_s=NOW_S - 1, notice_s=NOTICE_S)
PLACED = plan(stop=ORDER)
GANG = (running(0), running(1))
TOLD = (running(0, told="p1"), running(1, told="p1"))
TERMS = Terms(replicas=2, resumable=True)


def ended(pod: RankPod, state: PodState = PodState.SUCCEEDED, **changes: Any) -> RankPod:
    return replace(pod, state=state, ended=True, **changes)


def told(*pods: RankPod, due_s: float = NOW_S + 30, **changes: Any) -> Situation:
    """A job whose stop is announced. It holds its GPUs since 10 s."""
    now = progress(Phase.RUNNING, stop_due_s=due_s, reason="Stopping")
    return situation(Phase.RUNNING, *(pods or TOLD), placement=PLACED, progress=now, terms=TERMS, **changes)


def test_its_ranks_are_told_and_go_on() -> None:
    step = next_step(situation(Phase.RUNNING, *GANG, placement=PLACED), NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.reason, step.delete) == (Phase.RUNNING, "Stopping", ())
    assert (step.progress.stop_due_s, step.wake_s) == (NOW_S + NOTICE_S, NOW_S + NOTICE_S)
    assert step.progress.message == "is to save and end within 60 s, so that team/other gets its room"
    assert [pod.rank for pod in step.announce] == [0, 1]


def test_who_was_told_is_not_told_again_and_the_moment_stays() -> None:
    step = next_step(told(TOLD[0], GANG[1]), NOW_S + 7, CONFIG)
    assert ([pod.rank for pod in step.announce], step.progress.stop_due_s) == ([1], NOW_S + 30)


@pytest.mark.parametrize(
    ("now", "answer"),
    [
        pytest.param(told(), None, id="it works on"),
        pytest.param(told(answered="p0"), None, id="an answer to an earlier stop"),
        pytest.param(told(answered="p1"), StopAnswer.SAVED, id="it has saved"),
        pytest.param(told(ended(TOLD[0]), ended(TOLD[1])), StopAnswer.EXITED, id="all ranks ended well"),
        pytest.param(told(ended(TOLD[0]), TOLD[1]), None, id="one rank ended well, the others may still save"),
        pytest.param(told(ended(TOLD[0], PodState.FAILED), TOLD[1]), StopAnswer.EXITED, id="one rank failed"),
        pytest.param(told(TOLD[0], vanished=frozenset({1})), StopAnswer.CUT_SHORT, id="somebody deleted a pod"),
        pytest.param(told(unready_since_s={"n1": NOW_S - 100}), StopAnswer.CUT_SHORT, id="its node is lost"),
        pytest.param(told(due_s=NOW_S), StopAnswer.LATE, id="its time is over"),
    ],
)
def test_what_ends_it(now: Situation, answer: StopAnswer | None) -> None:
    step = next_step(now, NOW_S, CONFIG)
    after = step.progress
    assert (after.stopped and after.stopped.answer) == answer
    if answer is None:
        assert (after.phase, step.delete) == (Phase.RUNNING, ())
        return
    assert (after.phase, after.reason, after.stop_due_s) == (Phase.RESTARTING, "Migrated", 0.0)
    assert (after.failures, after.disruptions, after.returned) == (0, 0, True)
    assert {pod.uid for pod in step.delete} == {pod.uid for pod in now.pods}


@pytest.mark.parametrize(
    ("due_s", "found_s", "ends_s"),
    [
        pytest.param(NOW_S - 70, NOW_S, NOW_S + 30, id="the clock of who wrote it was behind: half is left"),
        pytest.param(NOW_S - 70, NOW_S - 20, NOW_S + 10, id="it is counted from when the job was found"),
        pytest.param(NOW_S + 45, NOW_S, NOW_S + 45, id="more is left"),
        pytest.param(NOW_S + 10, NOW_S - 300, NOW_S + 10, id="it is this operator's own"),
    ],
)
def test_whoever_leads_after_a_fail_over_leaves_half_of_the_notice(due_s: float, found_s: float, ends_s: float) -> None:
    now = told(due_s=due_s, found_s=found_s)
    step = next_step(now, NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.stop_due_s, step.wake_s) == (Phase.RUNNING, ends_s, ends_s)
    late = next_step(now, ends_s, CONFIG).progress
    assert late.stopped is not None
    assert late.stopped.answer is StopAnswer.LATE


def test_a_job_that_ended_before_anybody_told_it_has_succeeded() -> None:
    now = situation(Phase.RUNNING, *map(ended, GANG), placement=PLACED)
    assert next_step(now, NOW_S, CONFIG).progress.phase is Phase.SUCCEEDED


def test_a_job_that_ended_while_nobody_could_tell_it_has_succeeded() -> None:
    """The moment is written, and each pod refused the announcement."""
    assert next_step(told(*map(ended, GANG)), NOW_S, CONFIG).progress.phase is Phase.SUCCEEDED
    assert next_step(told(*map(ended, (TOLD[0], GANG[1]))), NOW_S, CONFIG).progress.phase is Phase.RESTARTING


def test_a_job_that_has_done_all_its_steps_has_succeeded() -> None:
    assert next_step(told(*map(ended, TOLD), is_done=True), NOW_S, CONFIG).progress.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("phase", [Phase.LAUNCHED, Phase.STARTING])
def test_a_job_that_does_not_run_yet_has_nothing_to_save(phase: Phase) -> None:
    step = next_step(situation(phase, *GANG, placement=PLACED), NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.stopped and step.progress.stopped.answer) == (
        Phase.RESTARTING,
        StopAnswer.UNASKED,
    )


def test_an_order_that_a_restored_backup_lacks_is_forgotten() -> None:
    now = replace(told(), placement=plan())
    after = next_step(now, NOW_S, CONFIG).progress
    assert (after.phase, after.reason, after.stop_due_s) == (Phase.RUNNING, "Running", 0.0)


@pytest.mark.parametrize(
    ("resumable", "saved_s", "lost_s"),
    [
        pytest.param(True, NOW_S - 4, 4.0, id="since it last saved"),
        pytest.param(True, 0.0, 10.0, id="it never said that it saved: since the attempt began"),
        pytest.param(True, NOW_S - 500, 10.0, id="no longer than the attempt"),
        pytest.param(True, NOW_S + 9, 0.0, id="a save in the future"),
        pytest.param(False, NOW_S - 4, 10.0, id="it begins again in any case"),
    ],
)
def test_what_a_stop_throws_away(resumable: bool, saved_s: float, lost_s: float) -> None:
    now = replace(told(answered="p1", saved_s=saved_s), terms=replace(TERMS, resumable=resumable))
    now = replace(now, progress=replace(now.progress, lost_s=100.0))
    after = next_step(now, NOW_S, CONFIG).progress
    assert after.stopped is not None
    assert (after.stopped.lost_s, after.lost_s) == (lost_s, 100.0 + lost_s)
    waits = next_step(replace(now, progress=after), NOW_S + 3, CONFIG).progress
    assert waits.lost_s == after.lost_s  # it is counted once


# --- laws -------------------------------------------------------------------------------------------------------------

moments = st.lists(st.floats(0.0, 40.0), min_size=1, max_size=12)
"""Seconds between two steps: an operator that is away, or dies and comes back, takes none meanwhile."""


def steps(pauses: list[float], notice_s: float, **said: Any) -> list[tuple[float, Step]]:
    """The steps of one job, each on what the last one wrote; what the API server stores is all that survives."""
    now = situation(Phase.RUNNING, *GANG, placement=plan(stop=replace(ORDER, notice_s=notice_s)), terms=TERMS, **said)
    now_s, taken = NOW_S, []
    for pause_s in pauses:
        step = next_step(now, now_s, CONFIG)
        taken.append((now_s, step))
        if step.progress.phase is not Phase.RUNNING:
            return taken
        ranks = {pod.rank for pod in step.announce}
        pods = tuple(replace(pod, told="p1") if pod.rank in ranks else pod for pod in now.pods)
        now = replace(now, progress=step.progress, pods=pods)
        now_s += pause_s
    return taken


@given(moments, st.floats(1.0, 120.0))
def test_no_pod_is_deleted_before_the_notice_is_over_and_the_first_step_after_it_does(
    pauses: list[float], notice_s: float
) -> None:
    taken = steps(pauses, notice_s)
    for now_s, step in taken:
        is_over = now_s >= NOW_S + notice_s
        assert (step.progress.phase is Phase.RESTARTING) == bool(step.delete) == is_over
        if not is_over:
            assert step.progress.stop_due_s == NOW_S + notice_s  # neither begun again nor cut
            assert step.wake_s == NOW_S + notice_s


@given(moments, st.floats(1.0, 120.0))
def test_nobody_is_told_before_the_moment_is_written_and_each_rank_once(pauses: list[float], notice_s: float) -> None:
    told_ranks: list[int] = []
    for _, step in steps(pauses, notice_s):
        if step.announce:
            assert step.progress.stop_due_s > 0  # written before the announcement, in the same step
        told_ranks += [pod.rank for pod in step.announce]
    assert told_ranks in ([], [0, 1])


@given(st.floats(-900.0, 5000.0), st.floats(1.0, 120.0))  # no clock shows a time before 1970: 0 means none
def test_a_clock_that_jumps_makes_no_notice_longer(jump_s: float, notice_s: float) -> None:
    now = situation(Phase.RUNNING, *TOLD, placement=plan(stop=replace(ORDER, notice_s=notice_s)), terms=TERMS)
    first = next_step(now, NOW_S, CONFIG).progress
    second = next_step(replace(now, progress=first), NOW_S + jump_s, CONFIG)
    if second.progress.phase is Phase.RUNNING:
        assert second.progress.stop_due_s <= NOW_S + jump_s + notice_s
        third = next_step(replace(now, progress=second.progress), second.progress.stop_due_s, CONFIG).progress
        assert third.phase is Phase.RESTARTING
