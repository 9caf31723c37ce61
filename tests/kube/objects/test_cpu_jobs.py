"""CPU jobs as their pods say."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model import Job, JobId, Phase, Placement, PlacementState
from coda.model.live_placement import is_waiting, live_placement, withheld_ranks
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS, ANNOTATION_PLAN, ANNOTATION_PLANNED, GATE, SERVICE
from coda_kube.objects.pods.cpu_job import cpu_job_id, ignores_disruptions, pod_id_of, release_patch
from coda_kube.objects.pods.node_terms import pin_of
from coda_kube.objects.read import job_from_pod, pod_from_json
from tests.extender.objects import pod_json

JOB = JobId("default/pod/work")
RELEASED = {ANNOTATION_PLAN: "p1", ANNOTATION_PLANNED: "2026-01-01T00:00:00Z"}


def gated(*gates: str, **more: Any) -> Json:
    """A CPU pod that waits."""
    spec = {"schedulingGates": [{"name": gate} for gate in gates or (GATE,)]} | more.pop("spec", {})
    return pod_json("work", cpu="2", spec=spec, **more)


def released(*, node: str | None = None, notes: Json | None = None, **more: Any) -> Json:
    """A CPU pod that was released to n1, and perhaps bound."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    metadata = {"annotations": RELEASED | (notes or {})} | more.pop("metadata", {})
    return pod_json(
        "work", cpu="2", node=node, metadata=metadata, spec={"affinity": {"nodeAffinity": required}}, **more
    )


def read(pod: Json, *ignoring: str) -> Job | None:
    return job_from_pod(pod_from_json(pod), ignored_disruptions=frozenset(ignoring))


def job(pod: Json, *ignoring: str) -> Job:
    found = read(pod, *ignoring)
    assert found is not None
    return found


def test_a_gated_pod_waits_and_holds_nothing() -> None:
    waiting = job(gated(metadata={"creationTimestamp": "2026-01-01T00:00:00Z"}, spec={"priority": 7}))
    assert (waiting.id, waiting.uid, waiting.user, waiting.priority) == (JOB, "uid-work", "default", 7)
    assert is_waiting(waiting)
    assert not waiting.leftovers
    assert waiting.queued_s == 1767225600.0
    assert waiting.request.cpu_m == 2000


def test_a_released_pod_withholds_its_place_until_it_is_bound() -> None:
    unbound, bound = job(released()), job(released(node="n1"))
    assert (unbound.phase, [*withheld_ranks(unbound)]) == (Phase.STARTING, [(0, "n1")])
    assert (bound.phase, [*withheld_ranks(bound)]) == (Phase.RUNNING, [])
    for one in (unbound, bound):
        placement = live_placement(one)
        assert placement is not None
        assert (placement.nodes, placement.plan_id, placement.borrows) == (("n1",), "p1", False)


def test_a_bound_pod_that_is_deleted_holds_nothing_any_more() -> None:
    leaving = job(released(node="n1", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert leaving.placement is not None
    assert live_placement(leaving) is None


def test_a_pod_that_is_deleted_with_a_long_grace_period_holds_what_it_has() -> None:
    """Who deletes a pod chooses how long it may go on: a month of cores that nobody is charged for."""
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 121}
    pod = pod_from_json(released(node="n1", metadata=deleted))
    going_on, evicted = job_from_pod(pod), job_from_pod(pod, is_evicted=True)
    assert going_on is not None
    assert live_placement(going_on) is not None
    assert evicted is not None
    assert live_placement(evicted) is None


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_json("work"), id="a plain pod"),
        pytest.param(pod_json("work", metadata={"annotations": {ANNOTATION_PLAN: "p1"}}), id="half of the annotations"),
        pytest.param(gated("kueue.x-k8s.io/admission"), id="the gate of another"),
        pytest.param(gated(GATE, "kueue.x-k8s.io/admission"), id="two gates"),
        pytest.param(gated(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), id="deleted while it waits"),
        pytest.param(released(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), id="deleted before its bind"),
        pytest.param(released(node="n1", status={"phase": "Succeeded"}), id="ended"),
    ],
)
def test_what_is_no_cpu_job(pod: Json) -> None:
    assert read(pod) is None


def owned(kind: str, *, version: str = "apps/v1", **labels: str) -> Json:
    owner = {"apiVersion": version, "kind": kind, "name": "o", "uid": "uid-o", "controller": True}
    return gated(metadata={"ownerReferences": [owner], "labels": labels})


def ends_within(grace_s: int) -> Json:
    return {"spec": gated()["spec"] | {"terminationGracePeriodSeconds": grace_s}}


@pytest.mark.parametrize(
    ("pod", "ignoring", "may"),
    [
        pytest.param(gated(), (), False, id="a bare pod"),
        pytest.param(owned("ReplicaSet"), (), True, id="of a deployment"),
        pytest.param(owned("StatefulSet"), (), True, id="of a stateful set"),
        pytest.param(owned("ReplicaSet", **{SERVICE: "true"}), (), False, id="a service"),
        pytest.param(owned("ReplicaSet") | ends_within(120), (), True, id="ends in time"),
        pytest.param(owned("ReplicaSet") | ends_within(121), (), False, id="may take long to end"),
        pytest.param(owned("Job", version="batch/v1"), (), False, id="of a Job that counts evictions"),
        pytest.param(owned("Job", version="batch/v1"), ("uid-o",), True, id="of a Job that ignores them"),
        pytest.param(owned("Job", version="batch/v1"), ("uid-other",), False, id="of another Job than that"),
        pytest.param(owned("ReplicationController", version="v1"), (), True, id="of a replication controller"),
        pytest.param(owned("Workflow"), (), False, id="of who knows what"),
        pytest.param(owned("StatefulSet", version="apps.kruise.io/v1beta1"), (), False, id="of another's kind"),
        pytest.param(
            owned("Job", version="batch.volcano.sh/v1alpha1"), ("uid-o",), False, id="with another's Job's uid"
        ),
    ],
)
def test_who_may_borrow(pod: Json, ignoring: tuple[str, ...], may: bool) -> None:
    assert job(pod, *ignoring).may_borrow is may


DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]


@pytest.mark.parametrize(
    ("rules", "ignores"),
    [
        ([], False),
        ([{"action": "Ignore", "onPodConditions": DISRUPTED}], True),
        ([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}], True),
        ([{"action": "Count", "onPodConditions": DISRUPTED}], False),
        ([{"action": "Ignore", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]}], False),
        ([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}}, *[{"action": "Ignore"}]], False),
        (
            [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}},
                {"action": "Ignore", "onPodConditions": DISRUPTED},
            ],
            False,
        ),
    ],
)
def test_which_jobs_ignore_evictions(rules: list[Json], ignores: bool) -> None:
    assert ignores_disruptions({"spec": {"podFailurePolicy": {"rules": rules}}}) is ignores


def test_a_release_reads_back_as_it_was_decided() -> None:
    placement = Placement(
        attempt=1,
        plan_id="p2",
        epoch=3,
        generation=1,
        state=PlacementState.RELEASED,
        nodes=("n7",),
        cpus_per_replica=0,
        committed_s=1767225600.0,
        bind_deadline_s=1767225630.0,
        borrows=True,
    )
    wish = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wish]}}}
    pod = gated(spec={"affinity": affinity})
    patch = release_patch(affinity, job(pod), placement, version=5)
    assert patch["metadata"]["annotations"][ANNOTATION_BORROWS] == "true"
    pod["metadata"] |= patch["metadata"]
    pod["spec"] |= patch["spec"]
    assert pin_of(pod["spec"]) == "n7"
    back = job(pod).placement
    assert back is not None
    assert (back.plan_id, back.nodes, back.borrows, back.committed_s) == ("p2", ("n7",), True, 1767225600.0)
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchExpressions"] == wish["matchExpressions"]


def test_ids_tell_pods_from_training_jobs() -> None:
    assert cpu_job_id("team", "a") == "team/pod/a"
    assert pod_id_of(cpu_job_id("team", "a")) == "team/a"
    assert pod_id_of(JobId("pod/a")) is None
    assert pod_id_of(JobId("team/pod")) is None
