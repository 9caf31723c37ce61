"""Opportunistic jobs in the planner: written with their GPUs, released at once, stopped for others."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model import Job, JobId
from coda.policy import PolicyConfig
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, rank_json
from tests.extender.replicas import placement_of, replica, state_of

ON = PolicyConfig(policy="coda", shares_gpus=True)


def seats(name: str, *, gpus: int = 1, seats: int = 2, cpu: int = 16) -> Json:
    node = node_json(name, gpus=gpus, cpu=cpu)
    node["metadata"]["labels"]["nvidia.com/gpu.memory"] = "81920"
    node["status"]["allocatable"] |= {f"coda.scheduler/gpu-{number}": str(seats) for number in range(gpus)}
    return node


def opportunistic(name: str, *, wish: str = "Opportunistic", **status: Any) -> Json:
    job = job_json(name, gpus=1, **status)
    job["spec"] |= {"serviceClass": wish, "gpuMemory": "10Gi"}
    return job


def seat_pod(name: str, node: str, gpu: int, *, plan: str) -> Json:
    pod = rank_json(name, 0, node, node=node, plan=plan, gpus=0)
    for amounts in pod["spec"]["containers"][0]["resources"].values():
        amounts[f"coda.scheduler/gpu-{gpu}"] = "1"
    return pod


def run(api: FakeApi, name: str, node: str = "n1", gpu: int = 0) -> None:
    """As the operator and the kubelet leave it."""
    plan = placement(node, plan=f"of-{name}") | {"gpus": [gpu]}
    sharing = {"class": "Opportunistic", "expectedSpeed": 0.5}
    api.set(JOBS, opportunistic(name, phase="Running", placement=plan, sharing=sharing))
    api.set(PODS, seat_pod(name, node, gpu, plan=f"of-{name}"))


@pytest.fixture
async def api() -> FakeApi:
    api = FakeApi()
    api.set(NODES, seats("n1"))
    return api


async def test_a_seat_is_written_and_released_at_once_though_no_gpu_is_free(api: FakeApi) -> None:
    """It asks for no GPU, so that a node whose whole GPUs nobody may have is as good."""
    api.change(f"{NODES}/n1", lambda item: item["status"]["allocatable"].update({"nvidia.com/gpu": "0"}))
    async with replica(api, policy=ON) as one:
        api.set(JOBS, opportunistic("a"))
        await api.until(lambda: state_of(api, "a") == "Released")
        assert (placement_of(api, "a")["nodes"], placement_of(api, "a")["gpus"]) == (["n1"], [0])
        assert api.item(f"{JOBS}/a")["status"]["sharing"] == {"class": "Opportunistic", "expectedSpeed": 1.0}
        assert one.count("coda_planner_commits_total") == 1


async def test_one_joins_a_guaranteed_job_that_brought_the_files_once_the_agent_tells_of_it(api: FakeApi) -> None:
    """Its name is written; of a job in another namespace only that."""
    api.change(f"{NODES}/n1", lambda item: item["status"]["allocatable"].update({"coda.scheduler/sharing": "128"}))
    async with replica(api, policy=ON) as one:
        api.set(JOBS, job_json("first", gpus=1))
        await api.until(lambda: state_of(api, "first") == "Released")
        assert api.item(f"{JOBS}/first")["status"]["sharing"] == {"class": "Guaranteed"}
        plan = placement_of(api, "first")["planId"]
        rank = rank_json("first", 0, "n1", plan=plan, gpus=1)
        for amounts in rank["spec"]["containers"][0]["resources"].values():
            amounts["coda.scheduler/sharing"] = "1"
        assert tuple(one.ask(rank, ["n1"]).passed) == ("n1",)
        bound = api.set(PODS, rank | {"spec": rank["spec"] | {"nodeName": "n1"}})
        api.change(f"{JOBS}/first", lambda item: item["status"].update(phase="Running"))
        api.set(JOBS, opportunistic("a"))
        await api.until(lambda: bool(api.item(f"{JOBS}/a")["status"].get("pending")))
        assert api.item(f"{JOBS}/a")["status"]["pending"]["code"] == "GPUsNotKnown"
        gpu = {"uuid": "GPU-0", "health": "ready", "index": 0, "podUIDs": [bound["metadata"]["uid"]]}
        gpu |= {"utilization": 0.4, "peakMemoryBytes": 20 * 2**30}
        api.set("/apis/coda.scheduler/v1alpha1/nodeprofiles", {"metadata": {"name": "n1"}, "status": {"gpus": [gpu]}})
        await api.until(lambda: state_of(api, "a") == "Released")
        told = api.item(f"{JOBS}/a")["status"]["sharing"]
        assert told == {"class": "Opportunistic", "expectedSpeed": 0.24, "beside": ["default/first"]}


async def test_one_without_room_on_its_gpu_is_stopped_and_waits_for_another_seat(api: FakeApi) -> None:
    """Its agent says so. Nobody waits, and one that would lose its work stays."""
    run(api, "a")
    run(api, "b")
    api.change(f"{JOBS}/a", lambda item: item["spec"].update(resumable=True))
    plan = placement("n1", plan="of-first")
    api.set(JOBS, job_json("first", gpus=1, phase="Running", placement=plan))
    owner = api.set(PODS, rank_json("first", 0, "n1", node="n1", plan="of-first", gpus=1))
    async with replica(api, policy=ON) as one:
        crowded = [api.item(f"{PODS}/{name}-1-0")["metadata"]["uid"] for name in ("a", "b")]
        gpu = {"uuid": "GPU-0", "health": "ready", "index": 0, "podUIDs": [owner["metadata"]["uid"]]}
        gpu["crowdedOutPodUIDs"] = crowded
        api.set("/apis/coda.scheduler/v1alpha1/nodeprofiles", {"metadata": {"name": "n1"}, "status": {"gpus": [gpu]}})
        await api.until(lambda: bool(placement_of(api, "a").get("stop")))
        assert placement_of(api, "a")["stop"]["cause"] == "Preempt"
        assert placement_of(api, "a")["stop"]["by"] == "default/first"
        assert "stop" not in placement_of(api, "b")
        assert one.count("coda_planner_stops_total", cause="Preempt") == 1


async def test_who_finds_no_seat_is_told_so_with_the_names_of_those_who_have_them(api: FakeApi) -> None:
    run(api, "a")
    run(api, "b")
    async with replica(api, policy=ON):
        api.set(JOBS, opportunistic("c"))
        await api.until(lambda: bool(api.item(f"{JOBS}/c")["status"].get("pending")))
        pending = api.item(f"{JOBS}/c")["status"]["pending"]
        assert (pending["code"], pending["holders"]) == ("SeatsTaken", ["default/a", "default/b"])


async def test_switched_off_it_waits_and_an_auto_job_is_like_any_other(api: FakeApi) -> None:
    async with replica(api, policy=PolicyConfig(policy="coda")):
        api.set(JOBS, opportunistic("a"))
        api.set(JOBS, opportunistic("auto", wish="Auto"))
        await api.until(lambda: bool(api.item(f"{JOBS}/a")["status"].get("pending")))
        assert api.item(f"{JOBS}/a")["status"]["pending"]["code"] == "SharingOff"
        await api.until(lambda: state_of(api, "auto") == "Released")
        assert "gpus" not in placement_of(api, "auto")
        assert "sharing" not in api.item(f"{JOBS}/auto")["status"]


async def test_a_guaranteed_job_gets_the_cores_of_an_opportunistic_one(api: FakeApi) -> None:
    """It is committed at once, and released when the pods of the other are gone. What that was stays written."""
    run(api, "a")
    api.change(f"{JOBS}/a", lambda item: item["status"]["request"]["resources"].update(cpu="14"))
    api.change(f"{PODS}/a-1-0", lambda pod: pod["spec"]["containers"][0]["resources"]["requests"].update(cpu="14"))
    async with replica(api, policy=ON) as one:
        api.set(JOBS, job_json("first", gpus=1))
        await api.until(lambda: bool(placement_of(api, "a").get("stop")))
        assert placement_of(api, "a")["gpus"] == [0]
        assert placement_of(api, "a")["stop"]["by"] == "default/first"
        assert api.item(f"{JOBS}/a")["status"]["sharing"]["expectedSpeed"] == 0.5
        await api.until(lambda: state_of(api, "first") == "Committed")
        api.remove(f"{PODS}/a-1-0")
        api.change(f"{JOBS}/a", lambda item: item["status"].update(phase="Queued", attempt=2))
        await api.until(lambda: state_of(api, "first") == "Released")
        assert one.count("coda_planner_stops_total", cause="Preempt") == 1


async def test_the_filter_lets_a_rank_pass_with_its_own_seat_only(api: FakeApi) -> None:
    api.set(NODES, seats("n2", gpus=2))
    async with replica(api, policy=ON) as one:
        api.set(JOBS, opportunistic("a"))
        await api.until(lambda: state_of(api, "a") == "Released")
        (node,), (gpu,), plan = (placement_of(api, "a")[name] for name in ("nodes", "gpus", "planId"))
        for wanted, passes in ((gpu, True), (gpu + 1, False)):
            pod = seat_pod("a", node, wanted, plan=plan)
            del pod["spec"]["nodeName"]
            assert (tuple(one.ask(pod, [node]).passed) == (node,)) is passes
        whole = rank_json("a", 0, node, plan=plan, gpus=1)
        assert tuple(one.ask(whole, [node]).passed) == ()


def job_of(item: Json) -> Job:
    state = ClusterState()
    item["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    state.on_job(None, item)
    found = state.job(JobId(f"default/{item['metadata']['name']}"))
    assert found is not None
    return found


def test_a_job_counts_as_its_placement_says_whatever_its_class_says_by_now() -> None:
    on_seats = placement("n1") | {"gpus": [0]}
    assert job_of(opportunistic("a", phase="Running", placement=on_seats)).request.gpus == 0
    assert job_of(opportunistic("a", wish="Guaranteed", phase="Running", placement=on_seats)).request.gpus == 0
    assert job_of(opportunistic("a", phase="Running", placement=placement("n1"))).request.gpus == 1
    assert job_of(opportunistic("a", phase="Queued", attempt=2, placement=on_seats)).request.gpus == 1


@pytest.mark.parametrize("phase", ["Queued", "Running"])
def test_no_tenant_is_charged_for_a_seat(phase: str) -> None:
    state = ClusterState()
    tenant = {
        "metadata": {"name": "lab", "uid": "lab", "resourceVersion": "1"},
        "spec": {"namespaces": ["default"], "quota": {"gpus": 1}},
    }
    state.on_virtual_cluster(None, tenant)
    more: dict[str, Any] = {"placement": placement("n1") | {"gpus": [0]}} if phase == "Running" else {}
    job = opportunistic("a", phase=phase, **more)
    job["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    state.on_job(None, job)
    state.read_tenants()
    amounts = state.tenants.amounts_of("lab")
    assert (amounts.gpus, amounts.waiting_gpus, amounts.cpu_m, amounts.waiting_cpu_m) == (0, 0, 0, 0)
