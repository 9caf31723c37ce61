"""The life of one gang: a table of situations, and the phase that follows each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.lifecycle import PodState, Situation, Terms, furthest_step
from coda.lifecycle.state import Untuned
from coda.lifecycle.steps import next_step
from coda.lifecycle.transitions import GangSize, after_acceptance
from coda.model import JobId, Phase
from coda.model.job import StopCause, StopOrder
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, running, situation

RECLAIMED = StopOrder(cause=StopCause.RECLAIM, by=JobId("team/other"), since_s=990.0)
RANK_ZERO = Terms(replicas=2, rank_zero_decides=True)
DONE = pod(0, state=PodState.SUCCEEDED)
MIGRATED = StopOrder(cause=StopCause.MIGRATE, by=JobId("team/other"), since_s=990.0)


@pytest.mark.parametrize("phase", [Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING])
def test_a_refusal_that_is_written_after_the_binding_ends_no_attempt(phase: Phase) -> None:
    """kube-scheduler writes it beside its work: on a busy machine later than the pod is bound and runs."""
    now = situation(phase, pod(0), pod(1, unschedulable_since_s=1.0, message="0/8 nodes"))
    step = next_step(now, NOW_S, CONFIG)
    assert (step.progress.attempt, step.progress.disruptions, step.delete) == (now.progress.attempt, 0, ())


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.LAUNCHED])
def test_whoever_is_not_bound_in_time_hears_what_kube_scheduler_says(phase: Phase) -> None:
    said = "0/8 nodes are available: 8 node(s) didn't satisfy existing pods anti-affinity rules\x1b[2J\n" + "x" * 999
    late = pod(1, node=None, reason="Unschedulable", unschedulable_since_s=NOW_S - 1, message=said)
    now = situation(phase, pod(0, message="not asked"), late, placement=plan(bind_deadline_s=NOW_S - 1))
    words = next_step(now, NOW_S, CONFIG).progress.message
    expected = "only 1 of 2 pods were bound by the deadline; kube-scheduler says of rank 1: 0/8 nodes are available: "
    assert expected + "8 node(s) didn't satisfy existing pods anti-affinity rules [2J xxx" in words
    assert words.isprintable()
    assert len(words) < 500


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
            situation(Phase.QUEUED, pod(0, plan_id="p0")), Phase.RESTARTING, "PlanDropped", id="pods of a plan before"
        ),
        pytest.param(
            situation(Phase.QUEUED, pod(0, plan_id="p0"), pod(1, plan_id="p0")),
            Phase.RESTARTING,
            "PlanDropped",
            id="all pods exist, but for a plan before",
        ),
        pytest.param(
            situation(Phase.QUEUED, pod(1), vanished=frozenset({0})),
            Phase.RESTARTING,
            "PodGone",
            id="a pod is gone while others are created",
        ),
        pytest.param(
            situation(None, pod(0, attempt=3, state=PodState.STARTED)),
            Phase.RESTARTING,
            "StatusLost",
            id="the status was wiped while pods run",
        ),
        pytest.param(
            situation(Phase.QUEUED, pod(0), placement=plan(bind_deadline_s=999.0)),
            Phase.RESTARTING,
            "BindDeadlineExceeded",
            id="operator was away past the deadline",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None)),
            Phase.LAUNCHED,
            "Launched",
            id="waits for the last pod",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None), placement=plan(bind_deadline_s=999.0)),
            Phase.RESTARTING,
            "BindDeadlineExceeded",
            id="half bound at the deadline",
        ),
        pytest.param(situation(Phase.LAUNCHED, pod(0)), Phase.RESTARTING, "PodGone", id="a pod is gone"),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None), placement=plan(stop=RECLAIMED)),
            Phase.RESTARTING,
            "Reclaimed",
            id="stopped for another before it ran",
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), running(1), placement=plan(stop=MIGRATED)),
            Phase.RESTARTING,
            "Migrated",
            id="stopped for another while it runs",
        ),
        pytest.param(
            situation(Phase.QUEUED, placement=plan(stop=MIGRATED), progress=progress(Phase.QUEUED, attempt=2)),
            Phase.QUEUED,
            "",
            id="what was stopped is the attempt before",
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), running(1), vanished=frozenset({1})),
            Phase.RESTARTING,
            "PodGone",
            id="another pod took the name of one that is gone",
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), running(1), vanished=frozenset({2})),
            Phase.RUNNING,
            "",
            id="the pod of a rank that the job does not have is gone",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None, unschedulable_since_s=994.0, message="0/8 nodes")),
            Phase.RESTARTING,
            "Unschedulable",
            id="somebody took the place",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, pod(0), pod(1, node=None, unschedulable_since_s=998.0)),
            Phase.LAUNCHED,
            "Launched",
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
            situation(Phase.STARTING, running(0), pod(1), progress=progress(Phase.STARTING, reason="ErrImagePull")),
            Phase.STARTING,
            "Starting",
            id="a trouble that is over is no longer told",
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
            situation(Phase.STARTING, DONE, pod(1, reason="ImagePullBackOff"), terms=RANK_ZERO),
            Phase.SUCCEEDED,
            "Succeeded",
            id="rank 0 decides before the others have started",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, DONE, pod(1, node=None), terms=RANK_ZERO),
            Phase.SUCCEEDED,
            "Succeeded",
            id="or are bound",
        ),
        pytest.param(
            situation(Phase.STARTING, DONE, pod(1), terms=replace(RANK_ZERO, start_deadline_s=10)),
            Phase.SUCCEEDED,
            "Succeeded",
            id="it decides after the start deadline, too",
        ),
        pytest.param(
            situation(Phase.STARTING, DONE, pod(1, state=PodState.FAILED, exit_code=1), terms=RANK_ZERO),
            Phase.RUNNING,
            "Running",
            id="it has decided when another fails before that is written",
        ),
        pytest.param(
            situation(Phase.LAUNCHED, DONE, pod(1), placement=plan(stop=RECLAIMED), terms=RANK_ZERO),
            Phase.SUCCEEDED,
            "Succeeded",
            id="it cannot be stopped any more",
        ),
        pytest.param(
            situation(Phase.STARTING, pod(0), replace(DONE, rank=1, name="j-1-1", uid="u-1-1"), terms=RANK_ZERO),
            Phase.STARTING,
            "Starting",
            id="another rank decides nothing",
        ),
        pytest.param(situation(Phase.STARTING, DONE, pod(1)), Phase.STARTING, "Starting", id="nor does one of all"),
        pytest.param(
            replace(situation(Phase.RUNNING, running(0), running(1)), converged="the loss has not improved"),
            Phase.SUCCEEDED,
            "Converged",
            id="it no longer learns",
        ),
        pytest.param(
            replace(
                situation(Phase.RUNNING, running(0), pod(1, state=PodState.FAILED, exit_code=1)), converged="no better"
            ),
            Phase.RESTARTING,
            "RankFailed",
            id="it failed before it was seen to have converged",
        ),
        pytest.param(
            replace(situation(Phase.STARTING, running(0), pod(1, started_s=None)), converged="no better"),
            Phase.STARTING,
            "Starting",
            id="a gang that does not run yet has learned nothing",
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
                progress=progress(Phase.RUNNING, launch_s=950.0),
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


def test_a_job_that_was_stopped_for_another_pays_nothing_for_it() -> None:
    now = situation(Phase.RUNNING, running(0), running(1), placement=plan(stop=MIGRATED))
    step = next_step(now, NOW_S, CONFIG)
    assert {pod.rank for pod in step.delete} == {0, 1}
    after = step.progress
    assert (after.failures, after.disruptions, after.not_before_s, after.returned) == (0, 0, 0.0, True)
    assert after.message == "attempt 1: stopped so that team/other gets its room"
    queued = next_step(situation(Phase.RESTARTING, progress=after, placement=now.placement), NOW_S + 5, CONFIG).progress
    assert (queued.phase, queued.attempt, queued.queued_s, queued.returned) == (Phase.QUEUED, 2, 900.0, True)


def test_what_an_attempt_held_counts_as_served_once_it_has_ended() -> None:
    held = progress(Phase.RESTARTING, launch_s=NOW_S - 500.4, served_s=100.0)
    waits = situation(Phase.RESTARTING, pod(0, terminating=True), progress=held)
    assert next_step(waits, NOW_S, CONFIG).progress.served_s == 100.0
    queued = next_step(situation(Phase.RESTARTING, progress=held), NOW_S, CONFIG).progress
    assert (queued.phase, queued.served_s) == (Phase.QUEUED, 600.0)
    assert next_step(situation(Phase.QUEUED, progress=queued, placement=None), NOW_S, CONFIG).progress.served_s == 600.0


def test_a_suspended_attempt_counts_as_served_too() -> None:
    held = progress(Phase.RUNNING, launch_s=NOW_S - 500.0)
    terms = Terms(replicas=2, suspend=True)
    suspended = next_step(situation(Phase.RUNNING, running(0), running(1), progress=held, terms=terms), NOW_S, CONFIG)
    assert (suspended.progress.phase, suspended.progress.served_s) == (Phase.SUSPENDED, 500.0)


@pytest.mark.parametrize("phase", [Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING])
def test_a_job_that_has_succeeded_cannot_be_stopped_any_more(phase: Phase) -> None:
    done = (running(0, ended=True), running(1, ended=True))
    now = situation(phase, *(replace(pod, state=PodState.SUCCEEDED) for pod in done), placement=plan(stop=MIGRATED))
    step = furthest_step(now, NOW_S, CONFIG)
    after = furthest_step(replace(now, progress=step.progress), NOW_S, CONFIG).progress
    assert (after.phase, after.attempt) == (Phase.SUCCEEDED, 1)


def test_it_waits_at_the_head_until_its_next_attempt_is_launched() -> None:
    waiting = progress(Phase.QUEUED, returned=True)
    launched = next_step(situation(Phase.QUEUED, pod(0), pod(1), progress=waiting), NOW_S, CONFIG).progress
    assert (launched.phase, launched.returned) == (Phase.LAUNCHED, False)


def test_whoever_suspends_a_job_that_waits_at_the_head_gives_up_its_place() -> None:
    suspended = progress(Phase.SUSPENDED, returned=True)
    resumed = next_step(situation(Phase.SUSPENDED, progress=suspended), NOW_S, CONFIG).progress
    assert (resumed.phase, resumed.queued_s, resumed.returned) == (Phase.QUEUED, NOW_S, False)


@pytest.mark.parametrize(("gpus", "expected"), [(8, (NOW_S, NOW_S, False)), (1, (900.0, 950.0, True))])
def test_whoever_enlarges_a_job_that_waits_at_the_head_gives_up_its_place(
    gpus: int, expected: tuple[float, float, bool]
) -> None:
    before = progress(Phase.QUEUED, queued_s=900.0, waiting_s=950.0, returned=True)
    edited = replace(before, generation=before.generation + 1)
    one_rank, asked = GangSize(1, {"gpus": 1}), GangSize(1, {"gpus": gpus})
    after = after_acceptance(before, edited, one_rank, asked, NOW_S)
    assert (after.queued_s, after.waiting_s, after.returned) == expected


STARTED_S = NOW_S - 61.0
ALL = "all 2 ranks have started"
NOBODY = f"{ALL}; node n1 has no agent that looks for its cores"
OFF = f"{ALL}; the agent of node n1 is set not to look for its cores"
SILENT = f"{ALL}; the agent of node n1 does not look for its cores: it may be gone"
SAID = {"NoAgent": NOBODY, "TuningOff": OFF, "AgentSilent": SILENT}


@pytest.mark.parametrize(
    ("untuned", "start_s", "reason", "expected"),
    [
        pytest.param(Untuned.NO_AGENT, STARTED_S, "Running", ("NoAgent", NOBODY), id="no agent for a minute"),
        pytest.param(Untuned.OFF, STARTED_S, "Running", ("TuningOff", OFF), id="one that is set not to"),
        pytest.param(Untuned.SILENT, STARTED_S, "Running", ("AgentSilent", SILENT), id="one that was there once"),
        pytest.param(Untuned.UNKNOWN, STARTED_S, "Running", ("Running", ALL), id="it is not known which"),
        pytest.param(Untuned.UNKNOWN, STARTED_S, "NoAgent", ("NoAgent", NOBODY), id="another operator knew which"),
        pytest.param(Untuned.NO_AGENT, NOW_S - 59.0, "Running", ("Running", ALL), id="it has just started"),
        pytest.param(None, STARTED_S, "Running", ("Running", ALL), id="an agent tunes it, or nobody asked for that"),
        pytest.param(Untuned.NO_AGENT, STARTED_S, "NoAgent", ("NoAgent", NOBODY), id="it is said once"),
        pytest.param(Untuned.OFF, STARTED_S, "NoAgent", ("TuningOff", OFF), id="an agent has come that is set not to"),
        pytest.param(None, STARTED_S, "NoAgent", ("Running", ALL), id="an agent has come"),
        pytest.param(Untuned.SEARCHED, STARTED_S, "AgentSilent", ("Running", ALL), id="it is back, and looks for them"),
    ],
)
def test_a_job_says_why_nobody_looks_for_its_cores(
    untuned: Untuned | None, start_s: float, reason: str, expected: tuple[str, str]
) -> None:
    before = progress(Phase.RUNNING, reason=reason, message=SAID.get(reason, ALL), start_s=start_s)
    now = situation(Phase.RUNNING, running(0), running(1), progress=before, placement=plan(), untuned=untuned)
    step = next_step(now, NOW_S, CONFIG)
    assert (step.progress.reason, step.progress.message) == expected
    expected_wake_s: dict[Untuned | None, float | None] = {
        Untuned.UNKNOWN: NOW_S + 60.0,
        Untuned.SEARCHED: NOW_S + 600.0,
    }
    assert step.wake_s == expected_wake_s.get(untuned, start_s + 60.0 if untuned and start_s + 60.0 > NOW_S else None)
