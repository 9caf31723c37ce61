"""The arrays on a cluster: whose cores CPU pods may have, from JSON to the decision."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from coda.cycle import decide
from coda.model.decision import Start
from coda.policy import ArraysConfig, PolicyConfig
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS, ANNOTATION_PLAN, ANNOTATION_PLANNED, GATE
from coda_kube.objects.pods.cpu_job import cpu_job_id
from coda_kube.returned_places import Place
from tests.extender.objects import job_json, node_json, placement, pod_json, rank_json

CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=4.0))
NOW_S = 1_800_000_000.0
CREATED, CREATED_S = "2026-11-23T00:00:00Z", 1_795_392_000.0


def seen(*pods: Json, **job: Any) -> ClusterState:
    """One node of 48 cores and 8 GPUs, 32 cores the GPU array's, and a training job of 4 cores."""
    state = ClusterState()
    state.on_node(None, node_json("n1"))
    item = job_json("train", replicas=1, gpus=1, **job)
    item["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    state.on_job(None, item)
    for pod in pods:
        pod["metadata"] |= {"resourceVersion": "1"}
        state.on_pod(None, pod)
    return state


def gated(name: str, *, cpu: int, kind: str = "", version: str = "apps/v1") -> Json:
    owner = {"apiVersion": version, "kind": kind, "name": "o", "uid": "uid-o", "controller": True}
    metadata = {"creationTimestamp": CREATED, "ownerReferences": [owner] * bool(kind)}
    return pod_json(name, cpu=str(cpu), metadata=metadata, spec={"schedulingGates": [{"name": GATE}]})


def starts(state: ClusterState) -> list[Start]:
    return [start for start in decide(state.snapshot(), CODA, NOW_S).starts if "/pod/" in start.job]


@pytest.mark.parametrize(
    ("kind", "cpu", "expected"),
    [("", 16, [False]), ("", 17, []), ("ReplicaSet", 16, [False]), ("ReplicaSet", 17, [True])],
)
def test_beyond_its_own_cores_the_cpu_array_borrows_or_waits(kind: str, cpu: int, expected: list[bool]) -> None:
    state = seen(gated("work", cpu=cpu, kind=kind), phase="Suspended")
    assert [start.borrows for start in starts(state)] == expected


def test_the_cores_of_a_rank_that_has_ended_are_the_gpu_arrays_again() -> None:
    """The job has not finished yet, as far as its object says. A pod that never gives back must not take its cores."""
    rank = rank_json("train", 0, "n1", node="n1", gpus=1)
    rank["metadata"]["namespace"] = "default"
    running: Json = {"phase": "Running", "placement": placement("n1")}
    assert [start.job for start in starts(seen(rank, gated("work", cpu=16), **running))] == ["default/pod/work"]
    ended = rank | {"status": {"phase": "Succeeded"}}
    assert starts(seen(ended, gated("work", cpu=20), **running)) == []
    assert [start.borrows for start in starts(seen(ended, gated("work", cpu=20, kind="ReplicaSet"), **running))] == [
        True
    ]


@pytest.mark.parametrize(
    ("version", "kind", "takes"),
    [
        ("apps/v1", "ReplicaSet", True),
        ("batch/v1", "Job", True),
        ("batch.volcano.sh/v1alpha1", "Job", False),
        ("argoproj.io/v1alpha1", "Workflow", False),
    ],
)
def test_an_evicted_pods_place_is_for_owners_that_nobody_can_claim(version: str, kind: str, takes: bool) -> None:
    """Anybody may say that a Workflow of any uid made a pod; only its controller makes those of a ReplicaSet."""
    state = seen()
    state.cpu_jobs.places.add("uid-o", Place(queued_s=1.0, evicted_s=CREATED_S))
    pod = gated("next", cpu=1, kind=kind, version=version)
    pod["metadata"]["resourceVersion"] = "1"
    state.on_pod(None, pod)
    job = state.job(cpu_job_id("default", "next"))
    assert job is not None
    assert job.returned is takes


def test_a_pod_that_another_gate_holds_off_saves_up_no_waiting_time() -> None:
    """Else pods could be made days ahead, to be let go when they are wanted, before everybody else's."""
    state = ClusterState(now_s=lambda: NOW_S)
    pod = gated("work", cpu=1)
    pod["metadata"]["resourceVersion"] = "1"
    held_off = pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": GATE}, {"name": "example.com/hold"}]}}
    state.on_pod(None, held_off)
    assert state.job(cpu_job_id("default", "work")) is None
    state.on_pod(held_off, pod)
    let_go = state.job(cpu_job_id("default", "work"))
    assert let_go is not None
    assert let_go.queued_s == NOW_S
    fresh = ClusterState(now_s=lambda: NOW_S)
    fresh.on_pod(None, pod)
    usual = fresh.job(cpu_job_id("default", "work"))
    assert usual is not None
    assert usual.queued_s < NOW_S


def test_one_more_job_that_ignores_disruptions_costs_the_same_after_thousands() -> None:
    """At its start the extender lists them all, and calls are answered only after that."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    state, peaks = ClusterState(), list[int]()

    def add(uid: str) -> None:
        job = {"metadata": {"name": uid, "uid": uid}, "spec": {"podFailurePolicy": {"rules": [rule]}}}
        state.on_batch_job(None, job)

    for number in range(5000):
        add(f"uid-{number}")
    tracemalloc.start()
    try:
        for number in range(3):  # the set may grow in one of them
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            add(f"next-{number}")
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert min(peaks) < 16_384  # bytes; a set of 5000 is many times as large


def test_a_take_over_reads_again_only_pods_of_owners_that_have_places() -> None:
    """There are 20 000 pods, and mostly no places."""
    state = seen(gated("heir", cpu=1, kind="ReplicaSet"), gated("bare", cpu=1))
    assert state.cpu_jobs.load_places({}) == []
    record = {"uid-o": [[1.0, CREATED_S]], "uid-gone": [[1.0, CREATED_S]]}
    assert state.cpu_jobs.load_places(record) == [cpu_job_id("default", "heir")]
    state.read_jobs([cpu_job_id("default", "heir")])
    assert state.cpu_jobs.load_places({}) == [cpu_job_id("default", "heir")]  # it has no place any more


def test_a_pod_whose_placement_was_given_up_holds_it_once_it_is_bound_all_the_same() -> None:
    """kube-scheduler may be quicker than the leader. Else its cores would be nobody's to reclaim for as long as it
    runs."""
    pinned = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [pinned]}]}}
    released = gated("work", cpu=20, kind="ReplicaSet")
    notes = {ANNOTATION_PLAN: "p1", ANNOTATION_PLANNED: CREATED, ANNOTATION_BORROWS: "true"}
    released["metadata"]["annotations"] = notes
    released["spec"] |= {"schedulingGates": [], "affinity": {"nodeAffinity": terms}}
    state, job = seen(released), cpu_job_id("default", "work")
    state.void_placement(job, "p1")
    given_up = state.job(job)
    assert given_up is not None
    assert given_up.placement is None
    state.on_pod(released, released | {"spec": released["spec"] | {"nodeName": "n1"}})
    bound = state.job(job)
    assert bound is not None
    assert bound.placement is not None
    assert bound.placement.borrows
