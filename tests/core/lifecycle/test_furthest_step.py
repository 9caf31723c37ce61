"""What one step of a gang's life does beside its phase: pods made and deleted, counts, messages, the next look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.lifecycle import TEMPLATE_REFUSED, PodState, Situation, Terms, furthest_step, step_refused
from coda.lifecycle.event_rules import is_passing
from coda.lifecycle.steps import next_step
from coda.lifecycle.transitions import MESSAGE_LIMIT, is_refused_for_good, not_admitted, template_refused
from coda.model import Phase, Placement, PlacementState
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, running, situation


def test_creates_only_the_missing_pods_of_a_released_plan() -> None:
    assert next_step(situation(Phase.QUEUED), NOW_S, CONFIG).create == (0, 1)
    assert next_step(situation(Phase.QUEUED, pod(1)), NOW_S, CONFIG).create == (0,)


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(None, id="no plan"),
        pytest.param(plan(state=PlacementState.COMMITTED), id="not released"),
        pytest.param(plan(attempt=2), id="another attempt"),
        pytest.param(plan(generation=2), id="another spec"),
        pytest.param(plan(epoch=6), id="a stale leader's"),
        pytest.param(plan(replicas=3), id="another size"),
    ],
)
def test_creates_nothing_without_a_plan_that_holds(placement: Placement | None) -> None:
    assert next_step(situation(Phase.QUEUED, placement=placement), NOW_S, CONFIG).create == ()


def test_creates_nothing_beside_a_living_pod_of_another_attempt() -> None:
    """Late creates of a process that died; on a lost node only the kubelet could confirm the end."""
    queued = situation(Phase.QUEUED, progress=progress(Phase.QUEUED, attempt=2), placement=plan(attempt=2))
    old = pod(0, attempt=1)
    assert next_step(replace(queued, pods=(old,)), NOW_S, CONFIG).create == ()
    assert next_step(replace(queued, pods=(replace(old, ended=True),)), NOW_S, CONFIG).create == (0, 1)
    leaving = replace(queued, pods=(replace(old, terminating=True),))
    assert next_step(leaving, NOW_S, CONFIG).create == ()
    assert next_step(replace(leaving, unready_since_s={"n1": 900.0}), NOW_S, CONFIG).create == (0, 1)


def test_a_rolled_back_attempt_deletes_every_pod_and_counts_once() -> None:
    now = situation(Phase.LAUNCHED, pod(0), pod(1, node=None), placement=plan(bind_deadline_s=999.0))
    step = next_step(now, NOW_S, CONFIG)
    assert [gone.rank for gone in step.delete] == [0, 1]
    assert (step.progress.failures, step.progress.disruptions) == (0, 1)
    again = next_step(replace(now, progress=step.progress), NOW_S, CONFIG)
    assert again.progress == step.progress


def test_the_next_attempt_keeps_its_age_and_waits_out_its_back_off() -> None:
    failed = situation(Phase.RUNNING, running(0), pod(1, state=PodState.FAILED, exit_code=1))
    restarting = next_step(failed, NOW_S, CONFIG).progress
    step = next_step(replace(failed, progress=restarting, pods=()), NOW_S + 1, CONFIG)
    assert step.accept
    assert step.progress.attempt == 2
    assert step.progress.queued_s == 900.0
    assert step.progress.not_before_s == NOW_S + CONFIG.failure_backoff_s


def test_back_off_doubles_up_to_its_limit() -> None:
    waits = []
    for failures in (0, 1, 2, 20):
        failed = situation(
            Phase.RUNNING,
            running(0),
            pod(1, state=PodState.FAILED, exit_code=1),
            progress=progress(Phase.RUNNING, failures=failures),
            terms=Terms(replicas=2, retries=100),
        )
        waits.append(next_step(failed, NOW_S, CONFIG).progress.not_before_s - NOW_S)
    assert waits == [10.0, 20.0, 40.0, 360.0]


def test_keeps_away_from_the_node_that_refused_it() -> None:
    refused = pod(1, node="n9", state=PodState.FAILED, ended=True, disrupted=True, reason="OutOfcpu")
    step = next_step(situation(Phase.LAUNCHED, pod(0), refused), NOW_S, CONFIG)
    assert step.progress.avoid == {"n9": NOW_S + CONFIG.disruption_backoff_s + CONFIG.avoid_node_s}


def test_an_edited_waiting_job_is_accepted_again() -> None:
    step = next_step(situation(Phase.QUEUED, generation=2), NOW_S, CONFIG)
    assert (step.accept, step.create, step.progress.generation) == (True, (), 2)


def test_an_edit_after_the_release_takes_a_new_attempt() -> None:
    """Creates of the released plan may still be under way; under the next plan their pods would be misplaced."""
    assert next_step(situation(Phase.QUEUED, generation=2), NOW_S, CONFIG).progress.attempt == 2
    committed = situation(Phase.QUEUED, generation=2, placement=plan(state=PlacementState.COMMITTED))
    assert next_step(committed, NOW_S, CONFIG).progress.attempt == 1


def test_a_wiped_status_goes_on_behind_the_newest_pod() -> None:
    wiped = situation(None, running(0, attempt=3), running(1, attempt=2), placement=None)
    step = next_step(wiped, NOW_S, CONFIG)
    assert (step.progress.attempt, len(step.delete)) == (3, 2)
    assert next_step(replace(wiped, progress=step.progress, pods=()), NOW_S, CONFIG).progress.attempt == 4


def test_suspending_a_running_job_deletes_its_pods_and_counts_nothing() -> None:
    now = situation(Phase.RUNNING, running(0), running(1), terms=Terms(replicas=2, suspend=True))
    step = next_step(now, NOW_S, CONFIG)
    assert (step.progress.phase, len(step.delete)) == (Phase.SUSPENDED, 2)
    assert (step.progress.failures, step.progress.disruptions) == (0, 0)


def test_resuming_takes_a_new_attempt_when_the_old_one_had_a_plan() -> None:
    assert next_step(situation(Phase.SUSPENDED), NOW_S, CONFIG).progress.attempt == 2
    assert next_step(situation(Phase.SUSPENDED, placement=None), NOW_S, CONFIG).progress.attempt == 1


def test_a_deleted_job_is_let_go_only_when_its_pods_are_gone() -> None:
    deleting = situation(Phase.RUNNING, running(0), running(1), deleting=True)
    step = next_step(deleting, NOW_S, CONFIG)
    assert (len(step.delete), step.finalize) == (2, False)
    assert next_step(replace(deleting, pods=()), NOW_S, CONFIG).finalize


def test_a_deletion_looks_again_when_the_node_of_a_leaving_pod_counts_as_lost() -> None:
    leaving = running(0, terminating=True, gone_by_s=2000.0)
    now = situation(Phase.RUNNING, leaving, deleting=True, unready_since_s={"n1": 990.0})
    assert next_step(now, NOW_S, CONFIG).wake_s == 990.0 + CONFIG.node_loss_s
    assert next_step(now, 990.0 + CONFIG.node_loss_s, CONFIG).finalize


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(situation(Phase.RESTARTING, progress=progress(Phase.RESTARTING, message="old")), id="restarting"),
        pytest.param(situation(Phase.SUSPENDED, progress=progress(Phase.SUSPENDED, message="old")), id="resumed"),
        pytest.param(
            situation(Phase.RUNNING, progress=progress(Phase.RUNNING, message="old"), deleting=True), id="deleted"
        ),
    ],
)
def test_a_pod_that_does_not_go_is_named_with_what_keeps_it(now: Situation) -> None:
    stuck = running(1, terminating=True, gone_by_s=NOW_S - CONFIG.stuck_s, finalizers=("example.com/keep",))
    fresh = running(0, terminating=True, gone_by_s=NOW_S + 30)
    told = next_step(replace(now, pods=(fresh, stuck)), NOW_S, CONFIG).progress
    assert told.message == "old; waits for pod j-1-1 on n1 to be gone: its finalizers example.com/keep"
    again = next_step(replace(now, progress=told, pods=(fresh, stuck)), NOW_S, CONFIG)
    assert again.progress == told
    assert again.wake_s == fresh.gone_by_s + CONFIG.stuck_s
    assert next_step(replace(now, progress=told, pods=(fresh,)), NOW_S, CONFIG).progress.message == "old"


def test_what_others_say_at_length_is_cut() -> None:
    chatty = pod(1, reason="ImagePullBackOff", message="x" * 5000)
    now = situation(Phase.STARTING, running(0), chatty)
    told = next_step(now, NOW_S, CONFIG).progress
    assert len(told.message) == MESSAGE_LIMIT
    assert next_step(replace(now, progress=told), NOW_S, CONFIG).progress == told


def test_what_a_container_says_at_its_end_has_no_escapes() -> None:
    rude = pod(1, reason="ImagePullBackOff", message="no\x1b]0;a window\x07 such\x9b2J\ntag\x7f")
    told = next_step(situation(Phase.STARTING, running(0), rude), NOW_S, CONFIG).progress
    assert told.message.endswith("no]0;a window such2J\ntag")


def test_time_to_live_removes_a_finished_job_and_says_when() -> None:
    done = situation(
        Phase.SUCCEEDED, progress=progress(Phase.SUCCEEDED, completion_s=995.0), terms=Terms(replicas=2, ttl_s=10)
    )
    early = next_step(done, NOW_S, CONFIG)
    assert (early.remove, early.wake_s) == (False, 1005.0)
    assert next_step(done, 1005.0, CONFIG).remove


def test_pods_of_an_older_attempt_are_deleted() -> None:
    stray = pod(0, attempt=1)
    now = situation(Phase.QUEUED, stray, progress=progress(Phase.QUEUED, attempt=2), placement=None)
    assert next_step(now, NOW_S, CONFIG).delete == (stray,)


def test_a_refused_template_fails_the_job_until_it_is_edited() -> None:
    refused = template_refused(progress(None), 1, "spec.foo: unknown field", NOW_S)
    now = situation(None, progress=refused, placement=None)
    assert next_step(now, NOW_S, CONFIG).progress == refused
    assert refused.reason == TEMPLATE_REFUSED
    edited = next_step(replace(now, generation=2), NOW_S, CONFIG)
    assert (edited.accept, edited.progress.phase) == (True, Phase.QUEUED)


def test_a_refused_launch_rolls_back_without_counting_against_the_job() -> None:
    now = situation(Phase.QUEUED)
    launched = replace(now, pods=(pod(0),))
    step = step_refused(launched, next_step(now, NOW_S, CONFIG), "QuotaExceeded", "exceeded quota", NOW_S, CONFIG)
    assert step is not None
    assert (step.progress.phase, step.progress.failures, len(step.delete)) == (Phase.RESTARTING, 0, 1)


@pytest.mark.parametrize(
    ("now", "phase"),
    [
        pytest.param(situation(Phase.QUEUED, pod(0, node=None), pod(1)), Phase.LAUNCHED, id="one is not bound"),
        pytest.param(situation(Phase.QUEUED, pod(0), pod(1)), Phase.STARTING, id="all are bound"),
        pytest.param(situation(Phase.QUEUED, running(0), running(1)), Phase.RUNNING, id="all have started"),
        pytest.param(situation(Phase.LAUNCHED, running(0), running(1)), Phase.RUNNING, id="since it was launched"),
        pytest.param(situation(Phase.QUEUED, running(0)), Phase.QUEUED, id="one is not created"),
    ],
)
def test_phases_that_are_over_are_passed_in_one_step(now: Situation, phase: Phase) -> None:
    assert furthest_step(now, NOW_S, CONFIG).progress.phase is phase


def test_an_end_is_never_passed_over() -> None:
    """That the job ran, and when, is in its status before its end is."""
    ended = situation(Phase.LAUNCHED, pod(0, state=PodState.SUCCEEDED), pod(1, state=PodState.SUCCEEDED))
    step = furthest_step(ended, NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.start_s) == (Phase.RUNNING, NOW_S)


def test_only_a_start_without_trouble_may_be_kept_back() -> None:
    bound = situation(Phase.LAUNCHED, pod(0), pod(1))
    assert is_passing(bound.progress, furthest_step(bound, NOW_S, CONFIG).progress)
    troubled = situation(Phase.LAUNCHED, pod(0), pod(1, reason="ErrImagePull"))
    assert not is_passing(troubled.progress, furthest_step(troubled, NOW_S, CONFIG).progress)
    created = situation(Phase.QUEUED, pod(0), pod(1))  # from here on a missing pod fails the attempt: write it now
    assert not is_passing(created.progress, furthest_step(created, NOW_S, CONFIG).progress)


def test_a_cordon_that_was_ended_is_forgotten_and_what_failed_there_itself_is_not() -> None:
    avoid = {"n1": NOW_S + 10.001, "n2": NOW_S + 20, "n3": NOW_S + 30}
    ended = {"n1": frozenset({NOW_S + 5, NOW_S + 10.0014}), "n2": frozenset({NOW_S + 5})}
    waits = situation(Phase.QUEUED, placement=None, progress=progress(Phase.QUEUED, avoid=avoid), ended_cordons=ended)
    assert next_step(waits, NOW_S, CONFIG).progress.avoid == {"n2": NOW_S + 20, "n3": NOW_S + 30}


def test_a_job_that_waits_looks_again_when_a_node_is_avoided_no_more() -> None:
    """The planner knows no time: without this a gang that needs every node would wait for ever."""
    waits = progress(Phase.QUEUED, avoid={"n1": NOW_S + 10, "n2": NOW_S + 20})
    step = next_step(situation(Phase.QUEUED, progress=waits, placement=None), NOW_S, CONFIG)
    assert (step.progress, step.wake_s) == (waits, NOW_S + 10)
    later = next_step(situation(Phase.QUEUED, progress=waits, placement=None), NOW_S + 10, CONFIG)
    assert (later.progress.avoid, later.wake_s) == ({"n2": NOW_S + 20}, NOW_S + 20)


@pytest.mark.parametrize(
    ("phase", "was_accepted", "generation", "for_good"),
    [
        pytest.param(None, False, 1, True, id="a new job"),
        pytest.param(Phase.SUSPENDED, False, 1, True, id="one that was created suspended"),
        pytest.param(Phase.SUSPENDED, True, 1, False, id="one that was accepted and suspended"),
        pytest.param(Phase.RESTARTING, False, 1, False, id="between two attempts, its status lost"),
        pytest.param(Phase.QUEUED, True, 1, False, id="one that goes on without its trial"),
        pytest.param(Phase.QUEUED, True, 2, True, id="an edit in the queue"),
    ],
)
def test_a_refusal_is_for_good_unless_the_template_was_accepted_before(
    phase: Phase | None, was_accepted: bool, generation: int, for_good: bool
) -> None:
    assert is_refused_for_good(progress(phase), generation, was_accepted=was_accepted) is for_good


def test_a_mended_template_that_is_not_admitted_waits_like_an_edit_in_the_queue() -> None:
    refused = template_refused(progress(None, launch_s=0.0), 1, "spec.foo: unknown field", NOW_S - 60)
    waits = not_admitted(refused, "QuotaExceeded", "exceeded quota: team", NOW_S)
    assert (waits.phase, waits.reason, waits.message) == (Phase.QUEUED, "QuotaExceeded", "exceeded quota: team")
    assert (waits.generation, waits.completion_s, waits.waiting_s) == (1, 0.0, NOW_S)
    again = next_step(situation(None, progress=waits, placement=None, generation=2), NOW_S, CONFIG)
    assert (again.accept, again.progress.phase, again.progress.generation) == (True, Phase.QUEUED, 2)
    assert is_refused_for_good(waits, 2, was_accepted=False)
    assert not_admitted(waits, "QuotaExceeded", "exceeded quota: team", NOW_S + 60) == waits
