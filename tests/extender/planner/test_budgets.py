"""A PodDisruptionBudget keeps its pods, and holds up nobody but the job that waits for their cores."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model import JobId
from coda_extender.planner.write_failures import JobsLeftOut
from coda_extender.written import Written
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS, ANNOTATION_PLAN, ANNOTATION_PLANNED
from coda_kube.objects.pods.cpu_job import cpu_job_id
from tests.extender.cpu_pods import CODA, OTHER, OWNER, budget, events, evictions, fill, gated, is_released, pod
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, rank_json
from tests.extender.replicas import Replica, placement_of, replica, state_of


@pytest.fixture
async def api() -> FakeApi:
    """One node of 48 cores, 32 of them the GPU array's."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


def owner(name: str) -> Json:
    return OWNER | {"name": name, "uid": f"uid-{name}"}


def run(api: FakeApi, name: str, node: str, *, gpus: int) -> None:
    job = job_json(name, gpus=gpus, phase="Running", placement=placement(node, plan=f"of-{name}"))
    job["spec"]["resumable"] = True
    api.set(JOBS, job)
    api.set(PODS, rank_json(name, 0, node, node=node, plan=f"of-{name}", gpus=gpus))


def train(cores: int) -> Any:
    resources = {"nvidia.com/gpu": "8", "cpu": str(cores), "memory": "8Gi"}
    return job_json("train", request={"resources": resources, "cpusPerReplica": cores})


def owner_of(api: FakeApi, name: str) -> str:
    found: str = pod(api, name)["metadata"]["labels"]["app"]
    return found


async def test_no_pod_is_evicted_in_vain_for_a_job_of_whose_victims_one_is_protected(api: FakeApi) -> None:
    budget(api, "other", 0)
    async with replica(api, policy=CODA):
        borrowers = await fill(api, [OWNER, OTHER])
        api.set(JOBS, train(16))  # four of the eight borrowers, of both owners
        await api.until(lambda: state_of(api, "train") == "Committed")
        await api.until(lambda: len(evictions(api)) == 4)
        assert {owner_of(api, name) for name in evictions(api)} == {"web"}
        assert {owner_of(api, name) for name in evictions(api, trials=True)} == {"web", "other"}
        assert len(evictions(api, trials=True)) == 8
        for name in evictions(api):
            api.remove(f"{PODS}/{name}")
        await api.until(lambda: state_of(api, "train") == "Released")
        assert len(borrowers) == 8


@pytest.mark.parametrize("allowed", [0, 8])
async def test_no_gang_stops_in_vain_for_a_job_of_whose_victims_one_is_protected(api: FakeApi, allowed: int) -> None:
    """The job needs the GPU of a guest, which fits on n3, and cores that pods borrow."""
    budget(api, "web", allowed)
    api.set(NODES, node_json("n2"))
    api.set(NODES, node_json("n3", gpus=1))
    run(api, "guest", "n1", gpus=1)
    run(api, "resident", "n2", gpus=8)
    for number in range(8):
        borrower = gated(f"web-{number}", cpu=5, ownerReferences=[OWNER], labels={"app": "web"})
        notes = {ANNOTATION_PLAN: "of-web", ANNOTATION_PLANNED: "2026-01-01T00:00:00Z", ANNOTATION_BORROWS: "true"}
        borrower["metadata"]["annotations"] |= notes
        borrower["spec"] |= {"schedulingGates": [], "nodeName": "n1"}
        api.set(PODS, borrower | {"status": {"phase": "Running"}})
    async with replica(api, policy=CODA):
        api.set(JOBS, train(32))
        if allowed:
            await api.until(lambda: state_of(api, "train") == "Committed")
            assert placement_of(api, "guest")["stop"]["by"] == "default/train"
            assert evictions(api)
        else:
            await api.until(lambda: bool(events(api)) and bool(api.item(f"{JOBS}/train")["status"].get("pending")))
            assert evictions(api, trials=True)
            assert "stop" not in placement_of(api, "guest")


async def test_the_pods_of_an_owner_are_left_alone_together(api: FakeApi) -> None:
    budget(api, "web", 0)
    async with replica(api, policy=CODA) as one:
        await fill(api)
        api.set(JOBS, train(4))
        await api.until(lambda: bool(events(api)))
        (asked,) = evictions(api, trials=True)
        assert (events(api)[0]["reason"], events(api)[0]["involvedObject"]["name"]) == ("ReclaimRefused", asked)
        assert events(api)[0]["message"].endswith("The disruption budget web needs 2 healthy pods and has 2 currently)")
        assert one.count("coda_planner_unwritable_jobs") == 0
        api.set(NODES, node_json("n2", gpus=0, cpu=4))
        api.set(PODS, gated("next", cpu=4, ownerReferences=[OWNER], labels={"app": "web"}))
        await api.until(lambda: is_released(api, "next"))  # the owner's pods start all the same
        assert (evictions(api, trials=True), evictions(api)) == ([asked], [])


async def test_a_pod_of_two_budgets_is_left_alone(api: FakeApi) -> None:
    """Kubernetes evicts none such, whatever they allow."""
    budget(api, "web", 5)
    budget(api, "web", 5, "again")
    async with replica(api, policy=CODA):
        await fill(api)
        api.set(JOBS, train(4))
        await api.until(lambda: bool(events(api)))
        assert events(api)[0]["reason"] == "ReclaimRefused"
        assert "more than one PodDisruptionBudget" in events(api)[0]["message"]
        api.set(NODES, node_json("n2", gpus=0, cpu=4))
        api.set(PODS, gated("next", cpu=4, ownerReferences=[OWNER]))
        await api.until(lambda: is_released(api, "next"))
        assert (len(evictions(api, trials=True)), evictions(api)) == (1, [])


async def test_a_pod_that_is_made_again_under_its_name_is_left_alone_too(api: FakeApi) -> None:
    """As a StatefulSet makes it. It is asked for once, whatever the pause of the first one says."""
    async with replica(api, policy=CODA) as one:
        borrowers = await fill(api)
        left_out = JobsLeftOut(api, one.cluster, one.metrics)
        item = pod(api, borrowers[0])
        job = cpu_job_id("default", borrowers[0])
        left_out.note_eviction(job, "uid-web", Written.PROTECTED, "no")
        api.remove(f"{PODS}/{borrowers[0]}")
        item["metadata"]["uid"] = "uid-again"
        api.set(PODS, item)
        pods = one.cluster.state.pod_by_id
        await api.until(lambda: getattr(pods.get(f"default/{borrowers[0]}"), "uid", "") == "uid-again")
        assert not unwritable(one, job)
        left_out.note_eviction(job, "uid-web", Written.PROTECTED, "no")
        assert unwritable(one, job)


def unwritable(one: Replica, job: JobId) -> bool:
    found = one.cluster.state.job(job)
    return found is not None and found.unwritable is not None


async def test_budgets_that_allow_nothing_stop_nobody_else(api: FakeApi) -> None:
    owners = [owner(f"app-{number}") for number in range(12)]
    for one in owners:
        budget(api, one["name"], 0)
    async with replica(api, policy=CODA):
        borrowers = await fill(api, owners)
        api.set(JOBS, train(4))
        await api.until(lambda: set(evictions(api, trials=True)) == set(borrowers))
        api.set(NODES, node_json("n2", gpus=0, cpu=40))
        for number in range(10):
            api.set(PODS, gated(f"other-{number}", cpu=4, ownerReferences=[OTHER]))
        await api.until(lambda: all(is_released(api, f"other-{number}") for number in range(10)))
        assert sorted(evictions(api, trials=True)) == sorted(borrowers)
        assert evictions(api) == []


async def test_a_budget_is_asked_again_after_a_pause(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda.placements.failed_writes.FIRST_BUDGET_PAUSE_S", 0.2)
    budget(api, "web", 0)
    async with replica(api, policy=CODA):
        await fill(api)
        api.set(JOBS, train(4))
        await api.until(lambda: bool(evictions(api, trials=True)))
        budget(api, "web", 1)
        await api.until(lambda: len(evictions(api)) == 1)


async def test_a_budget_that_allows_one_at_a_time_gives_one_and_then_a_pause(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says yes to two questions, and then to one eviction, which is in vain."""
    noted = []
    note = JobsLeftOut.note_eviction

    def observe(left_out: JobsLeftOut, job: JobId, owner: str, written: Written, why: str) -> None:
        note(left_out, job, owner, written, why)
        noted.append(written)

    monkeypatch.setattr(JobsLeftOut, "note_eviction", observe)
    budget(api, "web", 1)
    async with replica(api, policy=CODA):
        await fill(api)
        api.set(JOBS, train(8))
        await api.until(lambda: bool(events(api)))
        assert len(evictions(api, trials=True)) == len(evictions(api)) == 2
        gone = [name for name in evictions(api) if "deletionTimestamp" in pod(api, name)["metadata"]]
        assert len(gone) == 1
        assert noted == [Written.PROTECTED, Written.DONE]  # in this order, so that the next pause is longer
