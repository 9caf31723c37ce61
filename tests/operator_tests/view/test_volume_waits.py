"""Pods that kube-scheduler does not bind yet because a volume of theirs is being made: nobody has refused them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coda.lifecycle import Terms
from coda.lifecycle.steps import next_step
from coda.model import Phase
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.view.rank_pods import rank_pod_from_json
from tests.core.gangs import CONFIG, NOW_S, plan, pod, progress, situation

SCRATCH = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "gp3"}}}}
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
CODE = {"name": "code", "configMap": {"name": "code"}}
NO_CLAIM_YET = (
    "0/8 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim "
    '"j-1-0-scratch". preemption: 0/8 nodes are available: 8 Preemption is not helpful for scheduling.'
)
UNBOUND = "0/8 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
ERROR = 'binding rejected: running PreBind plugin "VolumeBinding": binding volumes: timed out'
NO_ROOM = "0/8 nodes are available: 1 Insufficient cpu"


def seen(
    *volumes: dict[str, Any], said: str = "", why: str = "Unschedulable", nominated: str = "", node: str = ""
) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    refusal = {"type": "PodScheduled", "status": "False", "reason": why, "message": said}
    labels = {"job": "j", "job-uid": "u", "attempt": "1", "rank": "0"}
    return {
        "metadata": {
            "name": "j-1-0",
            "uid": "p",
            "labels": {f"coda.scheduler/{key}": value for key, value in labels.items()},
            "annotations": {"coda.scheduler/plan": "p1"},
            "ownerReferences": [{"kind": "TrainingJob", "uid": "u", "name": "j"}],
        },
        "spec": {
            "containers": [{"name": "main"}],
            "volumes": list(volumes),
            "affinity": {"nodeAffinity": required},
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": "Pending",
            "conditions": [refusal] if said else [],
            **({"nominatedNodeName": nominated} if nominated else {}),
        },
    }


@pytest.mark.parametrize(
    ("item", "refused_s", "awaits"),
    [
        pytest.param(seen(SCRATCH, said=NO_CLAIM_YET), None, True, id="its claim is not made yet"),
        pytest.param(seen(SCRATCH, said=UNBOUND), None, True, id="its claim has no volume yet"),
        pytest.param(seen(SCRATCH, said=NO_ROOM, nominated="n1"), None, True, id="old words: it has the node"),
        pytest.param(seen(SCRATCH, nominated="n1"), None, True, id="its node is chosen"),
        pytest.param(seen(DATA, said=UNBOUND), None, True, id="a claim of the namespace"),
        pytest.param(seen(SCRATCH), None, False, id="kube-scheduler says nothing yet"),
        pytest.param(seen(CODE, DATA), None, False, id="its claim is bound, perhaps"),
        pytest.param(seen(DATA, said=ERROR, why="SchedulerError"), None, False, id="kube-scheduler's own error"),
        pytest.param(
            seen(SCRATCH, said=ERROR, why="SchedulerError", nominated="n1"), None, False, id="an error at the binding"
        ),
        pytest.param(seen(SCRATCH, said=NO_ROOM), NOW_S, False, id="no room"),
        pytest.param(seen(SCRATCH, said=NO_ROOM, nominated="n2"), NOW_S, False, id="nominated elsewhere"),
        pytest.param(seen(CODE, said=NO_ROOM, nominated="n1"), NOW_S, False, id="no claim"),
        pytest.param(seen(CODE), None, False, id="no claim and no refusal"),
        pytest.param(seen(SCRATCH, node="n1"), None, False, id="bound"),
    ],
)
def test_who_waits_for_a_volume_is_not_refused(item: dict[str, Any], refused_s: float | None, awaits: bool) -> None:
    rank = rank_pod_from_json(item, now_s=NOW_S)
    assert (rank.unschedulable_since_s, rank.awaits_volume) == (refused_s, awaits)


def test_a_refusal_after_such_a_wait_counts_from_when_it_is_said() -> None:
    waits = rank_pod_from_json(seen(SCRATCH, said=NO_CLAIM_YET), now_s=NOW_S - 30)
    assert rank_pod_from_json(seen(SCRATCH, said=NO_ROOM), now_s=NOW_S, before=waits).unschedulable_since_s == NOW_S


@pytest.mark.parametrize("said", [NO_CLAIM_YET, UNBOUND])
def test_a_gang_waits_for_a_disk_until_its_bind_deadline_and_says_so(said: str) -> None:
    waits = rank_pod_from_json(seen(SCRATCH, said=said), now_s=NOW_S)
    now = situation(
        Phase.LAUNCHED,
        waits,
        terms=Terms(replicas=1),
        progress=progress(Phase.LAUNCHED, launch_s=NOW_S),
        placement=plan(replicas=1, committed_s=NOW_S, bind_deadline_s=NOW_S + 660),
    )
    step = next_step(now, NOW_S + 600, CONFIG)
    assert (step.progress.phase, step.delete) == (Phase.LAUNCHED, ())
    assert step.progress.reason == "AwaitsVolume"
    assert said[:60] in step.progress.message
    ended = next_step(now, NOW_S + 661, CONFIG).progress
    assert (ended.reason, dict(ended.avoid)) == ("BindDeadlineExceeded", {})


@pytest.mark.parametrize(
    ("bound", "in_a_row", "avoided"),
    [
        pytest.param(True, 0, ["n2", "n3"], id="others were bound: these nodes made no volume"),
        pytest.param(False, 0, [], id="no volume was made: the first time no node is at fault"),
        pytest.param(False, 1, ["n3"], id="nor the next time"),
    ],
)
def test_a_node_where_no_volume_is_made_does_not_get_its_job_for_ever(
    bound: bool, in_a_row: int, avoided: list[str]
) -> None:
    first = pod(0) if bound else pod(0, node=None, pinned_to="n1")
    late = pod(1, node=None, pinned_to="n2")
    waits = pod(2, node=None, pinned_to="n3", awaits_volume=True)
    now = situation(
        Phase.LAUNCHED,
        first,
        late,
        waits,
        terms=Terms(replicas=3),
        progress=progress(Phase.LAUNCHED, in_a_row=in_a_row),
        placement=plan(replicas=3, bind_deadline_s=NOW_S - 1),
    )
    assert list(next_step(now, NOW_S, CONFIG).progress.avoid) == avoided


@pytest.mark.parametrize("start_deadline_s", [1, 300])
def test_no_start_deadline_is_over_before_the_binding_and_all_of_it_is_left_then(start_deadline_s: float) -> None:
    waits = rank_pod_from_json(seen(SCRATCH, said=NO_CLAIM_YET), now_s=NOW_S)
    now = situation(
        Phase.LAUNCHED,
        waits,
        terms=Terms(replicas=1, start_deadline_s=start_deadline_s, retries=0),
        progress=progress(Phase.LAUNCHED, launch_s=NOW_S),
        placement=plan(replicas=1, committed_s=NOW_S, bind_deadline_s=NOW_S + 660),
    )
    step = next_step(now, NOW_S + 400, CONFIG)
    assert (step.progress.phase, step.wake_s) == (Phase.LAUNCHED, NOW_S + 660.001)
    bound = rank_pod_from_json(seen(SCRATCH, node="n1"), now_s=NOW_S + 400, before=waits)
    later = rank_pod_from_json(seen(SCRATCH, node="n1"), now_s=NOW_S + 401, before=bound)
    now = replace(now, pods=(later,))
    step = next_step(now, NOW_S + 400.5, CONFIG)
    assert (step.progress.phase, step.wake_s) == (Phase.STARTING, NOW_S + 400 + start_deadline_s)
    now = replace(now, progress=step.progress)
    ended = next_step(now, NOW_S + 400 + start_deadline_s, CONFIG).progress
    assert (ended.phase, ended.reason) == (Phase.FAILED, "StartDeadlineExceeded")


def test_a_new_operator_counts_the_start_deadline_from_the_binding_that_it_did_not_see() -> None:
    item = seen(SCRATCH, node="n1")
    item["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": time_from_seconds(NOW_S + 480)}
    ]
    now = situation(
        Phase.STARTING,
        rank_pod_from_json(item, now_s=NOW_S + 490, seen_until_s=0.0),
        terms=Terms(replicas=1, start_deadline_s=300, retries=0),
        progress=progress(Phase.STARTING, launch_s=NOW_S),
        placement=plan(replicas=1, committed_s=NOW_S, bind_deadline_s=NOW_S + 660),
    )
    assert next_step(replace(now, found_s=NOW_S + 490), NOW_S + 490, CONFIG).wake_s == NOW_S + 480 + 300


def test_a_rank_that_cannot_start_is_named_before_one_that_awaits_a_volume() -> None:
    waits = pod(0, node=None, awaits_volume=True, reason="Unschedulable", message=UNBOUND)
    now = situation(Phase.LAUNCHED, waits, pod(1, reason="ImagePullBackOff", message="back-off"))
    assert next_step(now, NOW_S, CONFIG).progress.reason == "ImagePullBackOff"
    chosen = situation(Phase.LAUNCHED, pod(0, node=None, awaits_volume=True), pod(1, creating_since_s=NOW_S - 60))
    told = next_step(chosen, NOW_S, CONFIG).progress
    assert (told.reason, told.message) == ("AwaitsVolume", "rank 0 waits until its volumes are made")
