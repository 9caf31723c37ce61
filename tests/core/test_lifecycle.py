"""The life of one gang: a table of situations, the legal changes of phase, and the promises of every step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.gang import LifecycleConfig, PodState, Progress, RankPod, Situation, Terms
from coda.lifecycle import NEXT, TEMPLATE_REFUSED, launch_refused, next_step, template_refused
from coda.model import FINISHED, Phase, Placement, PlacementState

CONFIG = LifecycleConfig()
NOW_S = 1000.0


def progress(phase: Phase | None, **changes: object) -> Progress:
    base = Progress(phase=phase, generation=1, queued_s=900.0, launch_s=990.0, start_s=0.0)
    return replace(base, **changes)  # type: ignore[arg-type]  # tests name the fields they change


def plan(attempt: int = 1, replicas: int = 2, **changes: object) -> Placement:
    base = Placement(
        attempt=attempt,
        plan_id="p1",
        epoch=7,
        generation=1,
        state=PlacementState.RELEASED,
        nodes=("n1",) * replicas,
        cpus_per_replica=4,
        committed_s=990.0,
        bind_deadline_s=1050.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # as above


def pod(rank: int, *, attempt: int = 1, **changes: object) -> RankPod:
    base = RankPod(name=f"j-{attempt}-{rank}", uid=f"u-{attempt}-{rank}", attempt=attempt, rank=rank, node="n1")
    return replace(base, **changes)  # type: ignore[arg-type]  # as above


def situation(phase: Phase | None, *pods: RankPod, **changes: object) -> Situation:
    base = Situation(
        terms=Terms(replicas=2), generation=1, progress=progress(phase), placement=plan(), epoch=7, pods=tuple(pods)
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # as above


def running(rank: int, **changes: Any) -> RankPod:
    return pod(rank, state=PodState.STARTED, **changes)


@pytest.mark.parametrize(
    ("now", "phase", "reason"),
    [
        pytest.param(situation(None), Phase.QUEUED, "Queued", id="a new job is queued"),
        pytest.param(
            situation(None, terms=Terms(replicas=2, suspend=True)), Phase.SUSPENDED, "Suspended", id="or suspended"
        ),
        pytest.param(situation(Phase.QUEUED, pod(0), pod(1)), Phase.LAUNCHED, "Launched", id="all pods exist"),
        pytest.param(
            situation(Phase.QUEUED, pod(0), placement=None), Phase.RESTARTING, "PlanDropped", id="the plan was dropped"
        ),
        pytest.param(
            situation(Phase.QUEUED, pod(0), placement=plan(bind_deadline_s=999.0)),
            Phase.RESTARTING,
            "BindDeadlineExceeded",
            id="operator was away past the deadline",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None)), Phase.LAUNCHED, "", id="waits for the last pod"
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None), placement=plan(bind_deadline_s=999.0)),
            Phase.RESTARTING,
            "BindDeadlineExceeded",
            id="half bound at the deadline",
        ),
        pytest.param(situation(Phase.LAUNCHED, pod(0)), Phase.RESTARTING, "PodGone", id="a pod is gone"),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None, unschedulable_since_s=994.0, message="0/8 nodes")),
            Phase.RESTARTING,
            "Unschedulable",
            id="somebody took the place",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None, unschedulable_since_s=998.0)),
            Phase.LAUNCHED,
            "",
            id="unschedulable only just now",
        ),
        pytest.param(
            situation(
                Phase.LAUNCHED, pod(0), pod(1, state=PodState.FAILED, ended=True, disrupted=True, reason="OutOfcpu")
            ),
            Phase.RESTARTING,
            "OutOfcpu",
            id="a kubelet refused a rank",
        ),
        pytest.param(situation(Phase.LAUNCHED, pod(0), pod(1)), Phase.STARTING, "Starting", id="all bound"),
        pytest.param(
            situation(Phase.STARTING, running(0), pod(1, reason="ImagePullBackOff", message="back-off")),
            Phase.STARTING,
            "ImagePullBackOff",
            id="says which rank cannot start",
        ),
        pytest.param(
            situation(Phase.STARTING, running(0), pod(1), terms=Terms(replicas=2, start_deadline_s=10)),
            Phase.RESTARTING,
            "StartDeadlineExceeded",
            id="start deadline",
        ),
        pytest.param(situation(Phase.STARTING, running(0), running(1)), Phase.RUNNING, "Running", id="all started"),
        pytest.param(
            situation(Phase.RUNNING, running(0), pod(1, state=PodState.SUCCEEDED)), Phase.RUNNING, "", id="one is done"
        ),
        pytest.param(
            situation(Phase.RUNNING, pod(0, state=PodState.SUCCEEDED), pod(1, state=PodState.SUCCEEDED)),
            Phase.SUCCEEDED,
            "Succeeded",
            id="all succeeded",
        ),
        pytest.param(
            situation(
                Phase.RUNNING,
                pod(0, state=PodState.SUCCEEDED),
                running(1),
                terms=Terms(replicas=2, rank_zero_decides=True),
            ),
            Phase.SUCCEEDED,
            "Succeeded",
            id="rank 0 decides",
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), pod(1, state=PodState.FAILED, exit_code=1)),
            Phase.RESTARTING,
            "RankFailed",
            id="a rank failed",
        ),
        pytest.param(
            situation(
                Phase.RUNNING,
                running(0),
                pod(1, state=PodState.FAILED, exit_code=1),
                terms=Terms(replicas=2, retries=0),
            ),
            Phase.FAILED,
            "RankFailed",
            id="no retries left",
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), running(1, terminating=True)),
            Phase.RESTARTING,
            "PodDeleted",
            id="evicted by hand",
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), running(1), unready_since_s={"n1": 930.0}),
            Phase.RESTARTING,
            "NodeLost",
            id="node lost",
        ),
        pytest.param(
            situation(
                Phase.RUNNING,
                running(0),
                running(1),
                progress=progress(Phase.RUNNING, start_s=950.0),
                terms=Terms(replicas=2, active_deadline_s=50),
            ),
            Phase.FAILED,
            "DeadlineExceeded",
            id="active deadline",
        ),
        pytest.param(
            situation(Phase.RESTARTING, pod(0, terminating=True)), Phase.RESTARTING, "", id="pods still there"
        ),
        pytest.param(situation(Phase.RESTARTING), Phase.QUEUED, "", id="pods gone"),
        pytest.param(
            situation(Phase.RESTARTING, pod(0, terminating=True), unready_since_s={"n1": 900.0}),
            Phase.QUEUED,
            "",
            id="a pod on a lost node does not block",
        ),
        pytest.param(situation(Phase.SUSPENDED, pod(0, terminating=True)), Phase.SUSPENDED, "", id="resume waits"),
        pytest.param(situation(Phase.SUSPENDED), Phase.QUEUED, "Resumed", id="resumed"),
    ],
)
def test_phase_that_follows(now: Situation, phase: Phase, reason: str) -> None:
    step = next_step(now, NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.reason) == (phase, reason)


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
    assert step.progress.avoid == {"n9": NOW_S + CONFIG.avoid_node_s}


def test_an_edited_waiting_job_is_accepted_again() -> None:
    step = next_step(situation(Phase.QUEUED, generation=2), NOW_S, CONFIG)
    assert (step.accept, step.create, step.progress.generation) == (True, (), 2)


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
    step = launch_refused(situation(Phase.QUEUED, pod(0)), "QuotaExceeded", "exceeded quota", NOW_S, CONFIG)
    assert (step.progress.phase, step.progress.failures, len(step.delete)) == (Phase.RESTARTING, 0, 1)


pods = st.builds(
    RankPod,
    name=st.just("p"),
    uid=st.uuids().map(str),
    attempt=st.integers(1, 2),
    rank=st.integers(0, 1),
    node=st.sampled_from([None, "n1", "n2"]),
    state=st.sampled_from(PodState),
    ended=st.booleans(),
    terminating=st.booleans(),
    unschedulable_since_s=st.sampled_from([None, 990.0, 999.0]),
    disrupted=st.booleans(),
)
situations = st.builds(
    Situation,
    terms=st.builds(
        Terms,
        replicas=st.just(2),
        retries=st.integers(0, 2),
        rank_zero_decides=st.booleans(),
        active_deadline_s=st.sampled_from([None, 1.0, 1000.0]),
        start_deadline_s=st.sampled_from([1.0, 1800.0]),
        ttl_s=st.sampled_from([None, 0.0, 50.0]),
        suspend=st.booleans(),
    ),
    generation=st.integers(1, 2),
    progress=st.builds(
        Progress,
        phase=st.sampled_from([None, *Phase]),
        attempt=st.integers(1, 2),
        failures=st.integers(0, 3),
        generation=st.integers(1, 2),
        queued_s=st.just(900.0),
        launch_s=st.just(990.0),
        start_s=st.sampled_from([0.0, 995.0]),
        reason=st.sampled_from(["", TEMPLATE_REFUSED]),
    ),
    deleting=st.booleans(),
    placement=st.one_of(
        st.none(),
        st.builds(plan, st.integers(1, 2), epoch=st.sampled_from([6, 7]), state=st.sampled_from(PlacementState)),
    ),
    epoch=st.sampled_from([None, 7]),
    pods=st.lists(pods, max_size=4, unique_by=lambda pod: (pod.attempt, pod.rank)).map(tuple),
    unready_since_s=st.sampled_from([{}, {"n1": 900.0}, {"n2": 999.0}]),
)


@given(situations)
def test_every_change_of_phase_is_legal(now: Situation) -> None:
    before, after = now.progress.phase, next_step(now, NOW_S, CONFIG).progress.phase
    assert before is after or after in NEXT[before]


@given(situations)
def test_a_step_once_written_is_not_taken_again(now: Situation) -> None:
    """Deciding twice on the same outside world with the first answer written: nothing is counted a second time."""
    first = next_step(now, NOW_S, CONFIG).progress
    second = next_step(replace(now, progress=first), NOW_S, CONFIG).progress
    assert second.failures + second.disruptions <= first.failures + first.disruptions + (
        0 if first.phase in FINISHED | {Phase.RESTARTING, Phase.SUSPENDED} else 1
    )


@given(situations)
def test_pods_are_created_only_for_a_released_plan_of_this_attempt_and_epoch(now: Situation) -> None:
    step = next_step(now, NOW_S, CONFIG)
    if step.create:
        assert now.placement is not None
        assert now.placement.state is PlacementState.RELEASED
        assert now.placement.attempt == now.progress.attempt
        assert now.epoch in (None, now.placement.epoch)
        assert not now.deleting
        assert not now.terms.suspend


@given(situations)
def test_whoever_leaves_the_attempt_deletes_all_its_pods_that_run(now: Situation) -> None:
    step = next_step(now, NOW_S, CONFIG)
    if step.progress.phase in FINISHED | {Phase.RESTARTING, Phase.SUSPENDED}:
        kept = {pod.uid for pod in now.pods} - {pod.uid for pod in step.delete}
        assert all(pod.ended or pod.terminating for pod in now.pods if pod.uid in kept)


@given(situations)
def test_a_wake_up_lies_ahead(now: Situation) -> None:
    wake_s = next_step(now, NOW_S, CONFIG).wake_s
    assert wake_s is None or wake_s > NOW_S
