"""What NodeProfiles say of who has which GPU, joined with the pods that are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from coda.model.job import Job, JobId
from coda.model.world import GpuUse
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.state.node_gpus import gpu_rows
from tests.extender.objects import job_json, placement, pod_json, rank_json

GIB = 2**30
FREE = GpuUse(index=0, is_taken=False)
OWNED = GpuUse(index=0, is_taken=True, job=JobId("default/train"), attempt=1, rank=0, duty=0.4, peak_bytes=20 * GIB)


def profile(*gpus: Json, node: str = "n1") -> Json:
    return {"metadata": {"name": node, "uid": "p", "resourceVersion": "1"}, "status": {"gpus": list(gpus)}}


def gpu(*uids: str, index: int = 0, **more: Any) -> Json:
    return {"uuid": f"GPU-{index}", "health": "ready", "index": index, "podUIDs": list(uids), **more}


def pod(item: Json, uid: str) -> Json:
    item["metadata"] |= {"namespace": "default", "uid": uid, "resourceVersion": "1"}
    return item


def state_with(*pods: Json) -> ClusterState:
    state = ClusterState()
    for one in pods:
        state.on_pod(None, one)
    return state


MEASURED: dict[str, Any] = {"utilization": 0.4, "peakMemoryBytes": 20 * GIB}


def test_a_gpu_belongs_to_the_rank_whose_pod_has_it_as_long_as_that_is_there() -> None:
    rank = pod(rank_json("train", 0, "n1", node="n1"), "u1")
    state = state_with(rank)
    before = state.version
    state.on_node_profile(None, profile(gpu("u1", **MEASURED)))
    assert state.version > before
    assert state.snapshot().gpu_uses == {"n1": (OWNED,)}
    ended = {**rank, "status": {"phase": "Succeeded"}}
    state.on_pod(rank, ended)
    assert state.gpus.uses() == {"n1": (FREE,)}
    state.on_pod(ended, None)
    assert state.gpus.uses() == {"n1": (FREE,)}


def test_a_profile_may_come_before_the_pod() -> None:
    state = ClusterState()
    state.on_node_profile(None, profile(gpu("u1", **MEASURED)))
    assert state.gpus.uses() == {"n1": (FREE,)}
    state.on_pod(None, pod(rank_json("train", 0, "n1", node="n1"), "u1"))
    assert state.gpus.uses() == {"n1": (OWNED,)}


def test_an_agent_is_believed_of_pods_on_its_own_node_only() -> None:
    state = state_with(pod(rank_json("train", 0, "n2", node="n2"), "u1"))
    state.on_node_profile(None, profile(gpu("u1", **MEASURED)))
    assert state.gpus.uses() == {"n1": (FREE,)}


def test_a_foreign_pod_or_several_take_a_gpu_and_are_no_job() -> None:
    state = state_with(pod(pod_json("foreign", node="n1"), "u1"), pod(rank_json("train", 0, "n1", node="n1"), "u2"))
    state.on_node_profile(None, profile(gpu("u1", **MEASURED), gpu("u1", "u2", index=1, **MEASURED)))
    assert state.gpus.uses() == {"n1": (GpuUse(index=0, is_taken=True), GpuUse(index=1, is_taken=True))}


def test_what_did_not_change_is_no_news_and_the_same_object() -> None:
    state = state_with(pod(rank_json("train", 0, "n1", node="n1"), "u1"))
    state.on_node_profile(None, profile(gpu("u1", **MEASURED)))
    state.on_node_profile(None, profile(gpu(), node="n2"))
    before, version = state.gpus.uses(), state.version
    state.on_node_profile(None, profile(gpu("u1", **MEASURED, name="A100")))
    assert state.version == version
    state.on_pod(None, pod(pod_json("other", node="n2"), "u2"))
    assert state.gpus.uses()["n1"] is before["n1"]
    state.on_node_profile(profile(), None)
    assert state.version > version
    assert before.keys() == {"n1", "n2"}, "what a reader was given does not change"


def test_a_profile_that_goes_takes_its_gpus_along() -> None:
    state = ClusterState()
    state.on_node_profile(None, profile(gpu()))
    state.on_node_profile(profile(gpu()), None)
    assert state.gpus.uses() == {}


@pytest.mark.parametrize(
    "senseless",
    [
        {},
        {"status": None},
        {"status": {"gpus": None}},
        profile({"uuid": "GPU-0", "health": "ready"}),  # its GPUs are not shared
        profile({"uuid": "GPU-0", "health": "ready", "index": 0}),  # its pods are not known
        profile(gpu(index=64)),
        profile(gpu(index=-1)),
        profile(gpu(index=True)),
    ],
)
def test_what_says_nothing_is_left_out(senseless: Json) -> None:
    assert gpu_rows(senseless) == ()


def test_impossible_amounts_are_not_known() -> None:
    (row,) = gpu_rows(profile(gpu("u1", utilization=1.5, peakMemoryBytes=-1, memoryBytes=2**60)))
    assert row == {"index": 0, "podUIDs": ["u1"]}
    (row,) = gpu_rows(profile(gpu("u1", utilization=float("nan"), peakMemoryBytes=float("inf"))))
    assert row == {"index": 0, "podUIDs": ["u1"]}


def the_job(state: ClusterState, name: str = "train") -> Job:
    (job,) = [job for job in state.snapshot().jobs if job.id == f"default/{name}"]
    return job


def crowded_job(state: ClusterState, name: str = "train") -> frozenset[int]:
    return the_job(state, name).crowded


def seated_job(name: str, *nodes: str) -> Json:
    job = pod(job_json(name, phase="Running", placement=placement(*nodes)), f"uid-{name}")
    job["spec"]["replicas"] = len(nodes)
    return job


@pytest.mark.parametrize("order", ["pod first", "profile first", "job last"])
def test_ranks_that_have_no_room_are_known_as_long_as_the_agent_says_so(order: str) -> None:
    job = seated_job("train", "n1", "n2")
    ranks = [pod(rank_json("train", rank, node, node=node), f"u{rank}") for rank, node in enumerate(("n1", "n2"))]
    told = profile(gpu("owner", crowdedOutPodUIDs=["u0", "u1", "unknown"]))  # u1 is on another node
    state = ClusterState()
    steps: list[Callable[[], None]] = [partial(state.on_job, None, job)]
    steps += [partial(state.on_pod, None, one) for one in ranks]
    steps.append(partial(state.on_node_profile, None, told))
    for step in {"pod first": steps, "profile first": steps[::-1], "job last": steps[1:] + steps[:1]}[order]:
        step()
    assert crowded_job(state) == {0}
    assert [*state.starting()] == []  # it would lose its work: nothing is decided about it
    resumes = {**job, "spec": job["spec"] | {"resumable": True}, "metadata": job["metadata"] | {"resourceVersion": "2"}}
    resumes["status"] = job["status"] | {"placement": job["status"]["placement"] | {"gpus": [0, 0]}}
    state.on_job(job, resumes)
    assert [one.id for one in state.starting()] == ["default/train"]
    state.on_node_profile(told, profile(gpu("owner")))
    assert crowded_job(state) == frozenset()
    assert [*state.starting()] == []


@pytest.mark.parametrize("told", [True, False, "yes", None])
def test_whether_somebody_waits_for_a_pod_with_a_seat_is_known_as_long_as_the_agent_says_so(told: object) -> None:
    owner = pod(rank_json("large", 0, "n1", node="n1"), "owner")
    state = state_with(owner, pod(rank_json("train", 0, "n1", node="n1"), "u0"))
    state.on_job(None, seated_job("train", "n1"))
    for said, awaited in ((told, told is True), (None, False)):
        more: dict[str, Any] = {} if said is None else {"ownerWaits": said}
        state.on_node_profile(None, profile(gpu("owner", crowdedOutPodUIDs=["u0"], **more)))
        assert (crowded_job(state), the_job(state).awaited) == (frozenset({0}), awaited)


def test_nobody_stops_for_a_pod_that_has_gone_and_nobody_joins_one_that_waits() -> None:
    """Its agent says so for up to a minute longer."""
    owner = pod(rank_json("large", 0, "n1", node="n1"), "owner")
    state = state_with(owner, pod(rank_json("train", 0, "n1", node="n1"), "u0"))
    state.on_job(None, seated_job("train", "n1"))
    state.on_node_profile(None, profile(gpu("owner", crowdedOutPodUIDs=["u0"], ownerWaits=True, **MEASURED)))
    assert the_job(state).awaited
    assert state.gpus.uses()["n1"][0].duty is None
    ended = {**owner, "status": {"phase": "Failed"}}
    state.on_pod(owner, ended)
    assert not the_job(state).awaited
    state.on_pod(ended, None)
    again = pod(rank_json("large", 0, "n1", node="n1"), "owner")
    state.on_pod(None, again)
    assert the_job(state).awaited
    state.on_node_profile(None, profile(gpu("owner", **MEASURED)))
    assert state.gpus.uses()["n1"][0].duty == 0.4


def test_nobody_stops_for_a_pod_that_is_being_deleted_though_it_has_its_gpu_until_it_ends() -> None:
    owner = pod(rank_json("large", 0, "n1", node="n1"), "owner")
    state = state_with(owner, pod(rank_json("train", 0, "n1", node="n1"), "u0"))
    state.on_job(None, seated_job("train", "n1"))
    state.on_node_profile(None, profile(gpu("owner", crowdedOutPodUIDs=["u0"], ownerWaits=True)))
    assert the_job(state).awaited
    deleted = {**owner, "metadata": owner["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    state.on_pod(owner, deleted)
    assert not the_job(state).awaited
    assert crowded_job(state) == {0}
    assert state.gpus.uses()["n1"][0].is_taken


@pytest.mark.parametrize(("said", "expected"), [(None, True), (True, True), ("no", True), (False, False)])
def test_a_job_that_its_agent_does_not_hear_is_known_as_such(said: object, expected: bool) -> None:
    """An older agent says nothing of it."""
    state = state_with(pod(rank_json("train", 0, "n1", node="n1"), "u1"))
    more: dict[str, Any] = {} if said is None else {"ownerHeard": said}
    state.on_node_profile(None, profile(gpu("u1", **MEASURED, **more)))
    assert state.gpus.uses() == {"n1": (replace(OWNED, is_heard=expected),)}
