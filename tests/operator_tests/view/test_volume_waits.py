"""Pods that kube-scheduler does not bind yet because a volume of theirs is being made: nobody has refused them."""

from __future__ import annotations

from typing import Any

import pytest

from coda.lifecycle import Terms
from coda.lifecycle.steps import next_step
from coda.model import Phase
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
NO_ROOM = "0/8 nodes are available: 1 Insufficient cpu"


def seen(*volumes: dict[str, Any], said: str = "", nominated: str = "", node: str = "") -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
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
        pytest.param(seen(SCRATCH), None, True, id="without a refusal"),
        pytest.param(seen(CODE, DATA), None, True, id="a claim of the namespace"),
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
    assert said[:60] in step.progress.message
    ended = next_step(now, NOW_S + 661, CONFIG).progress
    assert (ended.reason, dict(ended.avoid)) == ("BindDeadlineExceeded", {})


def test_at_the_bind_deadline_no_node_is_to_blame_for_a_volume() -> None:
    late = pod(1, node=None, pinned_to="n2")
    waits = pod(2, node=None, pinned_to="n3", awaits_volume=True)
    placement = plan(replicas=3, bind_deadline_s=NOW_S - 1)
    now = situation(Phase.LAUNCHED, pod(0), late, waits, terms=Terms(replicas=3), placement=placement)
    assert list(next_step(now, NOW_S, CONFIG).progress.avoid) == ["n2"]
