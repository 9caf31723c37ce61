"""A trial: one rank on one GPU before the gang. What it proves, what it does not, and that it always ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle import PodState, Progress, RankPod, Situation, Step, Terms
from coda.lifecycle.retry import TRIAL_FAILED
from coda.lifecycle.steps import next_step
from coda.lifecycle.transitions import MESSAGE_LIMIT
from coda.model import FINISHED, JobId, Phase, PlacementState
from coda.model.job import StopCause, StopOrder
from coda.model.trial_run import TrialOutcome, TrialRun, TrialTerms
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress

TERMS = Terms(replicas=1, trial=TrialTerms(run_s=300.0, wait_s=60.0))
OPEN = TrialRun(attempt=1, since_s=990.0)
BROKEN = Diagnosis(reason=Reason.IMPORT, retry=Retry.NO, explicit=True, rank=0, evidence="No module named 'numpyy'")


def tried(phase: Phase | None, *pods: RankPod, trial: TrialRun = OPEN, **changes: object) -> Situation:
    """The trial of a job in the middle of its life: it has one rank."""
    base = Situation(
        terms=TERMS,
        generation=1,
        progress=progress(phase, trial=trial, waiting_s=900.0, start_s=995.0 if phase is Phase.RUNNING else 0.0),
        held=True,
        placement=plan(replicas=1),
        epoch=7,
        pods=tuple(pods),
        wants_trial=True,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name the fields they change


def rank(state: PodState, **changes: Any) -> RankPod:
    return pod(0, state=state, ended=state in (PodState.SUCCEEDED, PodState.FAILED), **changes)


def outcome(step: Step) -> TrialOutcome | None:
    trial = step.progress.trial
    assert trial is not None
    return trial.outcome


def gang_after(step: Step, **changes: Any) -> Progress:
    """The job once the pods of its trial are gone."""
    now = tried(None, progress=step.progress, pods=(), placement=plan(replicas=1), **changes)
    return next_step(now, NOW_S + 30, CONFIG).progress


def test_a_new_job_that_wants_a_trial_begins_with_it() -> None:
    new = Situation(terms=Terms(replicas=4), generation=1, progress=Progress(), wants_trial=True)
    step = next_step(new, NOW_S, CONFIG)
    assert step.accept
    assert step.progress.trial == TrialRun(attempt=1, since_s=NOW_S)
    assert step.progress.is_tried
    assert next_step(replace(new, wants_trial=False), NOW_S, CONFIG).progress.trial is None


def test_a_job_that_ever_held_its_gang_has_no_trial_any_more() -> None:
    later = Situation(
        terms=Terms(replicas=4), generation=1, progress=progress(Phase.RESTARTING, attempt=3), wants_trial=True
    )
    assert next_step(later, NOW_S, CONFIG).progress.trial is None


@pytest.mark.parametrize(
    ("now", "at_s", "came_out"),
    [
        pytest.param(tried(Phase.RUNNING, rank(PodState.STARTED)), NOW_S, None, id="it runs on"),
        pytest.param(
            tried(Phase.RUNNING, rank(PodState.STARTED), has_stepped=True), NOW_S, TrialOutcome.PASSED, id="first step"
        ),
        pytest.param(tried(Phase.RUNNING, rank(PodState.SUCCEEDED)), NOW_S, TrialOutcome.PASSED, id="a good end"),
        pytest.param(
            tried(Phase.RUNNING, rank(PodState.STARTED)), 1294.9, None, id="a hang is not known before its time is over"
        ),
        pytest.param(
            tried(Phase.RUNNING, rank(PodState.STARTED)), 1295.0, TrialOutcome.TIME_OVER, id="a hang ends with its time"
        ),
        pytest.param(
            tried(Phase.RUNNING, rank(PodState.STARTED), converged="no longer learns"), NOW_S, None, id="not converged"
        ),
        pytest.param(
            tried(Phase.RUNNING, rank(PodState.FAILED, disrupted=True)), NOW_S, TrialOutcome.UNCLEAR, id="evicted"
        ),
        pytest.param(tried(Phase.RUNNING), NOW_S, TrialOutcome.UNCLEAR, id="its pod is gone"),
        pytest.param(
            tried(Phase.STARTING, rank(PodState.WAITING), terms=replace(TERMS, start_deadline_s=60.0)),
            1050.0,
            TrialOutcome.SKIPPED,
            id="it does not start in time",
        ),
        pytest.param(
            tried(
                Phase.RUNNING,
                rank(PodState.STARTED),
                placement=plan(
                    replicas=1, stop=StopOrder(cause=StopCause.MIGRATE, by=JobId("a/b"), since_s=NOW_S, notice_s=60.0)
                ),
            ),
            NOW_S,
            TrialOutcome.UNCLEAR,
            id="stopped for another job, without a notice",
        ),
    ],
)
def test_what_comes_of_a_trial(now: Situation, at_s: float, came_out: TrialOutcome | None) -> None:
    step = next_step(now, at_s, CONFIG)
    assert outcome(step) is came_out
    assert step.progress.phase is (Phase.RESTARTING if came_out else now.progress.phase)
    if came_out:
        assert {one.uid for one in step.delete} == {one.uid for one in now.pods}
        assert (step.progress.failures, step.progress.disruptions, step.progress.lost_s) == (0, 0, 0.0)
    else:
        assert step.wake_s == 1295.0
        assert step.delete == ()


def failed(found: Diagnosis | None, **terms: object) -> Step:
    now = tried(Phase.RUNNING, rank(PodState.FAILED, exit_code=1), diagnosis=found)
    return next_step(replace(now, terms=replace(TERMS, **terms)), NOW_S, CONFIG)  # type: ignore[arg-type]


def test_what_the_gang_would_fail_of_ends_the_job_before_it_holds_one() -> None:
    after = failed(BROKEN).progress
    assert (after.phase, after.reason, after.failures) == (Phase.FAILED, TRIAL_FAILED, 1)
    assert after.message.startswith("trial on one GPU: rank 0 on n1 failed with exit code 1: Import error: No module")
    assert after.message.endswith("no gang was started")
    assert after.failure is not None
    assert after.trial is not None
    assert (after.trial.outcome, after.trial.held_s) == (TrialOutcome.FAILED, 10.0)


def test_what_is_said_of_a_trial_fits_into_its_status_whatever_a_rule_of_the_platform_advises() -> None:
    """The longest texts that a rule may have, and a long word of the kubelet. The CRD allows 1024 characters."""
    wordy = replace(BROKEN, sub_reason="s" * 400, evidence="e" * 400, advice="a" * 400)
    for now in (
        tried(Phase.RUNNING, rank(PodState.FAILED, exit_code=1), diagnosis=wordy),
        tried(Phase.RUNNING, rank(PodState.FAILED, exit_code=1, reason="R", message="m" * 4096), diagnosis=BROKEN),
        tried(Phase.RUNNING, rank(PodState.FAILED, disrupted=True, reason="R", message="m" * 4096)),
    ):
        after = next_step(now, NOW_S, CONFIG).progress
        assert after.trial is not None
        assert after.trial.outcome in (TrialOutcome.FAILED, TrialOutcome.UNCLEAR)
        assert 0 < len(after.trial.message) <= MESSAGE_LIMIT < 1024
        assert len(after.message) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(None, id="no log was read"),
        pytest.param(replace(BROKEN, explicit=False), id="a consequence alone"),
        pytest.param(replace(BROKEN, retry=Retry.ONCE), id="what may be chance"),
        pytest.param(Diagnosis(reason=Reason.ECC, retry=Retry.OTHER_NODE, explicit=True, rank=0), id="a broken GPU"),
        pytest.param(
            Diagnosis(reason=Reason.GPU_MEMORY, retry=Retry.NO, explicit=True, evidence="CUDA out of memory"),
            id="a model that is sharded over the gang does not fit on one GPU",
        ),
        pytest.param(
            Diagnosis(
                reason=Reason.SEMANTIC, retry=Retry.NO, explicit=True, evidence="AssertionError: world_size must be 4"
            ),
            id="a script that insists on its number of ranks",
        ),
        pytest.param(
            Diagnosis(
                reason=Reason.INPUTS,
                retry=Retry.NO,
                explicit=True,
                evidence="ValueError: num_heads 6 not divisible by tensor parallel size",
            ),
            id="a split that one rank cannot make",
        ),
    ],
)
def test_a_failure_that_the_gang_may_not_share_ends_nothing(found: Diagnosis | None) -> None:
    step = failed(found, retries=0)
    assert (step.progress.phase, outcome(step)) == (Phase.RESTARTING, TrialOutcome.UNCLEAR)
    assert (step.progress.failures, step.progress.disruptions, step.progress.failure) == (0, 0, None)
    assert gang_after(step).attempt == 2


def test_a_trial_whose_image_has_an_invalid_name_ends_the_job_before_it_holds_its_gang() -> None:
    bad = replace(rank(PodState.WAITING), bad_image=("main", "Train"), reason="InvalidImageName")
    now = tried(Phase.STARTING, bad)
    terms = replace(now.terms, images=frozenset({("main", "Train")}))
    step = next_step(replace(now, terms=terms), NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.reason) == (Phase.FAILED, "TrialFailed")
    assert "InvalidImageName" in step.progress.message


def test_a_node_that_is_suspect_after_the_trial_is_avoided_by_the_gang() -> None:
    step = failed(Diagnosis(reason=Reason.ECC, retry=Retry.OTHER_NODE, explicit=True, rank=0))
    assert list(gang_after(step).avoid) == ["n1"]


def test_the_gang_comes_next_with_its_place_in_the_queue_and_clocks_of_its_own() -> None:
    step = next_step(tried(Phase.RUNNING, rank(PodState.STARTED), has_stepped=True), NOW_S, CONFIG)
    gang = gang_after(step)
    assert (gang.phase, gang.attempt, gang.is_tried) == (Phase.QUEUED, 2, False)
    assert (gang.queued_s, gang.waiting_s) == (900.0, 900.0)
    assert (gang.start_s, gang.launch_s, gang.served_s) == (0.0, 0.0, 0.0)
    assert gang.trial is not None
    assert gang.trial.held_s == 40.0


def test_a_trial_without_a_gpu_delays_its_gang_only_for_so_long() -> None:
    waiting = tried(Phase.QUEUED, placement=None)
    step = next_step(waiting, NOW_S, CONFIG)
    assert (step.progress.phase, outcome(step), step.wake_s) == (Phase.QUEUED, None, 1050.0)
    late = next_step(waiting, 1050.0, CONFIG)
    assert (late.progress.attempt, late.accept, outcome(late)) == (2, True, TrialOutcome.SKIPPED)
    assert late.progress.message == "trial on one GPU: no GPU was free for it within 60 s; the gang waits untried"


@pytest.mark.parametrize(
    ("phase", "at_s", "came_out"),
    [
        pytest.param(Phase.QUEUED, 1050.0, TrialOutcome.SKIPPED, id="no GPU came"),
        pytest.param(Phase.LAUNCHED, 1050.0, TrialOutcome.SKIPPED, id="its last try was late"),
        pytest.param(Phase.RUNNING, NOW_S, TrialOutcome.UNCLEAR, id="it was evicted"),
    ],
)
def test_the_tries_of_a_trial_make_its_gang_wait_no_longer(phase: Phase, at_s: float, came_out: TrialOutcome) -> None:
    """Nine tries that nothing came of: the gang is not held back by them, and its own first back-off is short."""
    now = tried(phase, placement=None)
    tired = replace(now, progress=replace(now.progress, disruptions=9, in_a_row=9, not_before_s=4000.0))
    step = next_step(tired, at_s, CONFIG)
    gang = step.progress if step.progress.phase is Phase.QUEUED else gang_after(step)
    assert (outcome(step), gang.attempt, gang.is_tried) == (came_out, 2, False)
    assert (gang.disruptions, gang.in_a_row, gang.not_before_s) == (9, 0, 0.0)
    launched = replace(gang, phase=Phase.LAUNCHED, launch_s=5000.0)
    lost = next_step(replace(tired, progress=launched, terms=Terms(replicas=4)), 5000.0, CONFIG).progress
    assert (lost.phase, lost.in_a_row) == (Phase.RESTARTING, 1)
    assert lost.not_before_s == 5000.0 + CONFIG.disruption_backoff_s


def test_a_trial_that_never_ran_is_repeated_less_and_less_often() -> None:
    now = tried(Phase.LAUNCHED, placement=None, terms=replace(TERMS, trial=TrialTerms(run_s=300.0, wait_s=3600.0)))
    tired = next_step(replace(now, progress=replace(now.progress, in_a_row=3)), NOW_S, CONFIG).progress
    assert (tired.in_a_row, tired.not_before_s) == (4, NOW_S + 8 * CONFIG.disruption_backoff_s)


def test_a_released_trial_is_not_given_up_while_its_pod_is_made() -> None:
    released = tried(Phase.QUEUED, placement=plan(replicas=1, bind_deadline_s=3000.0))
    step = next_step(released, 2000.0, CONFIG)
    assert (outcome(step), step.create) == (None, (0,))


def test_a_suspended_trial_begins_again_when_the_job_is_resumed() -> None:
    now = tried(Phase.RUNNING, rank(PodState.STARTED))
    paused = next_step(replace(now, terms=replace(TERMS, suspend=True)), NOW_S, CONFIG)
    assert paused.progress.phase is Phase.SUSPENDED
    assert {one.uid for one in paused.delete} == {"u-1-0"}
    resumed = next_step(replace(now, progress=paused.progress, pods=()), 5000.0, CONFIG).progress
    assert resumed.trial == TrialRun(attempt=2, since_s=5000.0, held_s=10.0)
    assert (resumed.attempt, resumed.queued_s) == (2, 5000.0)


def test_a_job_suspended_after_its_trial_does_not_repeat_it() -> None:
    """Also if its placement was cleared: the attempt of a trial is never one of the gang."""
    over = next_step(tried(Phase.RUNNING, rank(PodState.SUCCEEDED)), NOW_S, CONFIG).progress
    suspended = replace(over, phase=Phase.SUSPENDED, launch_s=0.0)
    resumed = next_step(tried(None, progress=suspended, placement=None), NOW_S, CONFIG).progress
    assert (resumed.attempt, resumed.is_tried) == (2, False)


def test_a_deleted_job_takes_its_trial_with_it() -> None:
    step = next_step(tried(Phase.RUNNING, rank(PodState.STARTED), deleting=True), NOW_S, CONFIG)
    assert [one.uid for one in step.delete] == ["u-1-0"]


def test_an_edit_may_take_back_a_trial_that_waits() -> None:
    edited = tried(Phase.QUEUED, placement=None, generation=2, wants_trial=False)
    assert next_step(edited, NOW_S, CONFIG).progress.trial is None


WORLD = st.tuples(
    st.sampled_from([None, PlacementState.COMMITTED, PlacementState.RELEASED]),
    st.sampled_from([PodState.WAITING, PodState.STARTED, PodState.STARTED, PodState.FAILED]),
    st.booleans(),  # its pod is unschedulable, evicted or gone
    st.sampled_from([None, BROKEN, replace(BROKEN, retry=Retry.ONCE)]),
    st.floats(1.0, 200.0),
)


@given(st.lists(WORLD, min_size=1, max_size=60))
def test_whatever_happens_a_trial_is_over_after_its_waits_and_its_run(worlds: list[tuple[object, ...]]) -> None:
    """Placed late, dropped, never started, evicted again and again: the gang is next, or the job has failed.

    The bound: its wait for a GPU, one start, its run, and a step of the clock after each of these."""
    terms = replace(TERMS, start_deadline_s=60.0)
    now_s, progress_now = NOW_S, replace(progress(None), launch_s=0.0)
    trial: TrialRun | None = None
    longest_s = TERMS.trial.wait_s * 2 + TERMS.trial.run_s + 5 * 200.0
    for state, pod_state, is_disrupted, found, passes_s in worlds:
        attempt = progress_now.attempt
        under_way = progress_now.phase in (Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING)
        placed = under_way or state is not None
        placement = plan(attempt, 1, state=state or PlacementState.RELEASED, bind_deadline_s=now_s + 30.0)
        lives = under_way and not (is_disrupted and pod_state is PodState.WAITING)
        one = pod(0, attempt=attempt, state=pod_state, ended=pod_state is PodState.FAILED, disrupted=is_disrupted)
        now = Situation(
            terms=terms,
            generation=1,
            progress=progress_now,
            held=True,
            placement=placement if placed else None,
            epoch=7,
            pods=(one,) if lives else (),
            diagnosis=found,  # type: ignore[arg-type]  # drawn from a tuple of several kinds
            wants_trial=True,
        )
        progress_now = next_step(now, now_s, CONFIG).progress
        if progress_now.phase is Phase.QUEUED and state is PlacementState.RELEASED and now.placement is not None:
            progress_now = replace(progress_now, phase=Phase.LAUNCHED, launch_s=now_s)  # all pods were created
        trial = progress_now.trial
        assert trial is not None
        if not trial.is_open:
            break
        assert now_s - trial.since_s <= longest_s
        now_s += passes_s  # type: ignore[operator]  # as above
    else:
        return
    assert trial is not None
    assert progress_now.phase in FINISHED or progress_now.phase in (Phase.RESTARTING, Phase.QUEUED)
    assert (trial.outcome is TrialOutcome.FAILED) == (progress_now.phase is Phase.FAILED)
