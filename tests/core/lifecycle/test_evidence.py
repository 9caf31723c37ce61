"""What is read from the API server before a step is decided: all that the step rests on, and rarely more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from coda.lifecycle import Evidence, PodState, Situation, Terms, evidence_needed, furthest_step
from coda.lifecycle.failures import POD_GONE
from coda.model import Phase, PlacementState
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, running, situation
from tests.core.lifecycle.test_lifecycle_laws import situations


def rests_on_absent_pods(now: Situation) -> bool:
    """A step that ends an attempt, begins the next, or lets the job go, because a pod is not there."""
    step = furthest_step(now, NOW_S, CONFIG)
    before, after = now.progress.phase, step.progress.phase
    begins_next = before in (Phase.RESTARTING, Phase.SUSPENDED) and after is Phase.QUEUED
    return (
        (step.finalize and now.deleting and not now.orphaning)
        or begins_next
        or (after is Phase.RESTARTING and step.progress.reason == POD_GONE)
    )


@given(situations)
def test_no_step_rests_on_the_absence_of_a_pod_unless_the_pods_were_asked_for(now: Situation) -> None:
    if rests_on_absent_pods(now):
        assert evidence_needed(now, NOW_S, CONFIG) is Evidence.PODS


@given(situations)
def test_no_pod_is_created_unless_the_epoch_was_asked_for(now: Situation) -> None:
    if furthest_step(now, NOW_S, CONFIG).create:
        assert evidence_needed(now, NOW_S, CONFIG) is Evidence.EPOCH
    assert not furthest_step(replace(now, epoch=None), NOW_S, CONFIG).create


@given(situations)
def test_pods_are_asked_for_only_before_the_job_leaves_its_phase(now: Situation) -> None:
    """A job that stays as it is would ask for them at every look."""
    if evidence_needed(now, NOW_S, CONFIG) is Evidence.PODS:
        step = furthest_step(now, NOW_S, CONFIG)
        assert step.finalize or now.deleting or step.progress.phase is not now.progress.phase


@pytest.mark.parametrize(
    ("now", "evidence"),
    [
        pytest.param(situation(None), None, id="a new job"),
        pytest.param(situation(Phase.QUEUED, placement=None), None, id="a job that waits"),
        pytest.param(situation(Phase.QUEUED, placement=plan(state=PlacementState.COMMITTED)), None, id="not released"),
        pytest.param(situation(Phase.QUEUED), Evidence.EPOCH, id="a released placement"),
        pytest.param(situation(Phase.QUEUED, epoch=None), Evidence.EPOCH, id="whose epoch was not read yet"),
        pytest.param(situation(Phase.QUEUED, pod(0)), Evidence.EPOCH, id="a launch that was interrupted"),
        pytest.param(situation(Phase.QUEUED, pod(0), running(0, attempt=2)), None, id="beside another attempt"),
        pytest.param(situation(Phase.QUEUED, pod(0), pod(1)), None, id="all pods exist"),
        pytest.param(
            situation(Phase.QUEUED, pod(1), vanished=frozenset({0})), Evidence.PODS, id="a created pod is gone"
        ),
        pytest.param(
            situation(Phase.RUNNING, running(0), running(1), vanished=frozenset({2})), None, id="a forged pod is gone"
        ),
        pytest.param(situation(Phase.QUEUED, generation=2), None, id="an edited job"),
        pytest.param(situation(Phase.RUNNING, running(0), running(1)), None, id="a gang that runs"),
        pytest.param(situation(Phase.RUNNING, running(0)), Evidence.PODS, id="a rank has no pod"),
        pytest.param(
            situation(Phase.RUNNING, terms=Terms(replicas=2, suspend=True)), None, id="it is suspended, pods or not"
        ),
        pytest.param(situation(Phase.RESTARTING, running(0, terminating=True)), None, id="a pod has yet to go"),
        pytest.param(situation(Phase.RESTARTING), Evidence.PODS, id="all pods are gone"),
        pytest.param(situation(Phase.SUSPENDED), Evidence.PODS, id="a job that is resumed"),
        pytest.param(situation(Phase.RUNNING, running(0), deleting=True), Evidence.PODS, id="a deleted job with pods"),
        pytest.param(
            situation(Phase.RUNNING, running(0, terminating=True), deleting=True), None, id="whose pods are leaving"
        ),
        pytest.param(situation(Phase.RUNNING, running(0), deleting=True, orphaning=True), None, id="its pods stay"),
        pytest.param(situation(Phase.RUNNING, deleting=True), Evidence.PODS, id="a deleted job without pods"),
        pytest.param(
            situation(Phase.SUCCEEDED, progress=progress(Phase.SUCCEEDED, completion_s=990.0)), None, id="finished"
        ),
        pytest.param(
            situation(Phase.STARTING, pod(0, state=PodState.FAILED, exit_code=1)), Evidence.PODS, id="failed, and a gap"
        ),
    ],
)
def test_what_is_asked_for(now: Situation, evidence: Evidence | None) -> None:
    assert evidence_needed(now, NOW_S, CONFIG) is evidence
