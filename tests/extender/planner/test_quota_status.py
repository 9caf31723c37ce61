"""The quotas of Coda at a planner: who is full waits, and each object shows what is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coda.cycle import Part
from coda.errors import Outage
from coda.history.division import PastUse
from coda.nodes import array_use
from coda.policy import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.planner.quota_status import QuotaStatus
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.run_times import map_json
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json
from tests.extender.replicas import replica, state_of
from tests.kube.quotas.test_array_quotas import aq_json
from tests.kube.quotas.test_virtual_clusters import vc_json

VIRTUAL_CLUSTERS = "/apis/coda.scheduler/v1alpha1/virtualclusters"
ARRAY_QUOTAS = "/apis/coda.scheduler/v1alpha1/arrayquotas"
NAMESPACE = JOBS.split("/")[-2]


def shown(api: FakeApi, name: str = "lab") -> Json:
    found: Json = api.item(f"{VIRTUAL_CLUSTERS}/{name}").get("status") or {}
    return found


async def test_who_is_full_waits_until_its_quota_grows() -> None:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    api.set(VIRTUAL_CLUSTERS, vc_json("lab", NAMESPACE, quota={"gpus": 1}, mayBorrow=False))
    api.set(JOBS, job_json("gang", gpus=2))
    async with replica(api):
        await api.until(lambda: "pending" in api.item(f"{JOBS}/gang")["status"])
        assert api.item(f"{JOBS}/gang")["status"]["pending"]["code"] == "VirtualClusterFull"
        await api.until(lambda: shown(api).get("gpus") == {"used": 0, "own": 1, "borrowed": 0, "waiting": 2})
        api.change(f"{VIRTUAL_CLUSTERS}/lab", lambda item: item["spec"].update(quota={"gpus": 2}))
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_the_status_is_written_when_it_changed_and_keeps_the_times_of_its_conditions() -> None:
    api = FakeApi()
    api.set(VIRTUAL_CLUSTERS, vc_json("lab", "team"))
    api.set(VIRTUAL_CLUSTERS, vc_json("firm", "team", created="2026-03-01T00:00:00Z"))
    async with replica(api) as one:
        await api.until(lambda: bool(shown(api) and shown(api, "firm")))
        before = shown(api)["conditions"][0]
        assert (before["type"], before["status"]) == ("Overlapping", "True")
        writes = len(api.writes())
        status = QuotaStatus(api, one.cluster, PolicyConfig())
        await status.write()
        assert len(api.writes()) == writes
        api.remove(f"{VIRTUAL_CLUSTERS}/firm")
        await _until(lambda: len(one.cluster.virtual_clusters.by_key) == 1)
        await status.write()
        assert shown(api)["conditions"][0]["status"] == "False"


async def test_a_tenant_that_owns_more_than_all_nodes_have_says_so() -> None:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    api.set(VIRTUAL_CLUSTERS, vc_json("lab", "team", quota={"gpus": 1000}))
    async with replica(api):
        await api.until(lambda: bool(shown(api)))
        condition = shown(api)["conditions"][2]
        assert (condition["type"], condition["reason"]) == ("Oversubscribed", "ClusterHasLess")


async def test_a_planner_knows_when_a_quota_was_edited_also_after_it_wrote_the_status() -> None:
    api = FakeApi()
    lab = vc_json("lab", "team")
    edit = {"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}}
    lab["metadata"]["managedFields"] = [edit]
    api.set(VIRTUAL_CLUSTERS, lab)
    async with replica(api) as one:
        await api.until(lambda: bool(shown(api)))
        await _until(lambda: "status" in one.cluster.virtual_clusters.by_key["lab"])
        lost_s = one.cluster.state.tenants.by_name()["lab"].lost_s
        assert lost_s == seconds_from_time("2026-01-01T00:00:00Z")


async def test_a_replica_that_does_not_lead_sees_who_comes_to_own_less_and_the_planner_is_told() -> None:
    api = FakeApi()
    for name, gpus in (("org", 16), ("red", 8), ("blue", 8)):
        parent = {} if name == "org" else {"parent": "org"}
        api.set(VIRTUAL_CLUSTERS, vc_json(name, name, quota={"gpus": gpus}, **parent))
    cluster = ExtenderCluster(api, in_flight_limit_s=30.0)
    caches = asyncio.create_task(cluster.run())
    await cluster.wait_until_synced()
    place = cluster.state.changes[Part.TENANTS].end
    api.set(VIRTUAL_CLUSTERS, vc_json("green", parent="org", quota={"gpus": 8}))
    await _until(lambda: cluster.state.tenants.by_name()["blue"].lost_s > 0)
    assert set(cluster.state.changes[Part.TENANTS].since(place) or ()) == {"blue", "green", "red"}
    caches.cancel()


async def test_a_status_that_cannot_be_written_is_written_later() -> None:
    api = FakeApi()
    api.set(VIRTUAL_CLUSTERS, vc_json("lab", "team"))

    def refuse(call: Call) -> None:
        if call.verb == "apply" and call.path.endswith("/virtualclusters/lab/status"):
            raise Outage("gone for a moment")

    api.before = refuse
    async with replica(api) as one:
        await one.cluster.wait_until_synced()
        status = QuotaStatus(api, one.cluster, PolicyConfig())
        await status.write()
        assert shown(api) == {}
        api.before = None
        await status.write()
        assert shown(api)["jobs"] == {"running": 0, "waiting": 0}


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_new_tenant_counts_its_jobs_in_steps_and_no_cycle_begins_before_the_last() -> None:
    api = FakeApi()
    jobs = 250
    for number in range(jobs):
        api.set(JOBS, job_json(f"job-{number}"))
    async with replica(api) as one:
        await one.cluster.wait_until_synced()
        tenants, seen, is_released = one.cluster.state.tenants, set[int](), False

        async def other_work() -> None:
            while not is_released:
                seen.add(tenants.amounts_of("lab").waiting)
                await asyncio.sleep(0)

        other = asyncio.create_task(other_work())
        one.cluster.virtual_clusters.put(vc_json("lab", NAMESPACE))
        assert tenants.amounts_of("lab").waiting == 0
        await one.cluster.wait_until_in_touch()
        is_released = True
        await other
        assert tenants.amounts_of("lab").waiting == jobs
        assert len(seen - {0, jobs}) >= 2


async def test_jobs_start_while_the_quotas_of_coda_cannot_be_read() -> None:
    """A new image before the new ClusterRole. The tenants count from when they can be read."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    api.set(VIRTUAL_CLUSTERS, vc_json("lab", NAMESPACE, quota={"gpus": 1}, mayBorrow=False))
    api.set(JOBS, job_json("gang", gpus=2))

    def refuse(call: Call) -> None:
        if call.path in (VIRTUAL_CLUSTERS, ARRAY_QUOTAS):
            raise Rejected(403, "Forbidden", "no such rule")

    api.before = refuse
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert (one.cluster.is_synced(), one.cluster.is_in_touch()) == (True, True)
        assert not one.cluster.virtual_clusters.in_touch.is_set()
        api.before = None
        await api.until(
            lambda: shown(api).get("gpus") == {"used": 2, "own": 1, "borrowed": 1, "waiting": 0}, timeout_s=10
        )


async def test_an_array_quota_shows_its_arrays_and_overlaps() -> None:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    api.set(ARRAY_QUOTAS, aq_json("all"))
    api.set(JOBS, job_json("gang", gpus=2))
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        status = QuotaStatus(api, one.cluster, PolicyConfig(policy="coda"))
        await status.write()
        assert array_shown(api, "all")["gpuArray"]["largeGPUs"]["lent"] == 2  # its only node is for large jobs
        writes = len(api.writes())
        await status.write()
        assert len(api.writes()) == writes
        api.set(ARRAY_QUOTAS, aq_json("also", created="2026-03-01T00:00:00Z"))
        await _until(lambda: len(one.cluster.array_quotas.by_key) == 2)
        await status.write()
        for name, nodes in (("all", 1), ("also", 0)):
            assert array_shown(api, name)["nodes"] == nodes
            overlap = next(each for each in array_shown(api, name)["conditions"] if each["type"] == "Overlapping")
            assert overlap["status"] == "True"


def array_shown(api: FakeApi, name: str) -> Json:
    found: Json = api.item(f"{ARRAY_QUOTAS}/{name}").get("status") or {}
    return found


async def test_other_work_goes_on_while_the_arrays_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Lease is renewed and filter calls are answered on the same loop."""
    compared = most = 0

    def none_accepts(_constraints: object, _node: object) -> object:
        nonlocal compared
        compared += 1
        return "none"

    async def other_work() -> None:
        nonlocal compared, most
        while True:
            compared, most = 0, max(most, compared)
            await asyncio.sleep(0)

    api = FakeApi()
    api.set(ARRAY_QUOTAS, aq_json("all"))
    async with replica(api) as one:
        await one.cluster.wait_until_synced()
        monkeypatch.setattr(array_use, "exclusion", none_accepts)
        for number in range(3000):
            one.cluster.state.on_node(None, node_json(f"n{number}"))
        waiting = job_json("waits", gpus=2)
        waiting["metadata"] |= {"namespace": NAMESPACE, "resourceVersion": "1"}
        one.cluster.state.on_job(None, waiting)
        other = asyncio.create_task(other_work())
        await QuotaStatus(api, one.cluster, PolicyConfig(policy="coda")).write()
        other.cancel()
        assert 0 < most <= 1000


async def test_a_tenant_shows_what_it_holds_of_arrays_that_it_is_not_in_and_auto_shows_its_source() -> None:
    """A job of two GPUs with more cores than the GPU array has: 8 cores are its GPUs', and the node lends the rest."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    api.set(VIRTUAL_CLUSTERS, vc_json("lab", NAMESPACE))
    api.set(ARRAY_QUOTAS, aq_json("all", division="Auto", gpuArray={"coresPerGPU": 0}))
    api.set(JOBS, job_json("gang", gpus=2))
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        status = QuotaStatus(api, one.cluster, PolicyConfig(policy="coda"))
        await status.write()
        (job,) = one.cluster.state.starting()
        held = job.replicas * job.request.cpu_m // 1000
        assert shown(api)["arrays"] == {"fromCPUArray": str(held), "fromGPUArray": "0"}
        division = array_shown(api, "all")["division"]
        assert (division["source"], division["jobs"], division["coresPerGPU"]) == ("TooFewJobs", 0, "0")
        writes = len(api.writes())
        await status.write()
        assert len(api.writes()) == writes
        past = PastUse(jobs=80, tuned_jobs=80, cores_per_gpu=3.0, large_share=0.7)
        api.set("/api/v1/namespaces/coda-system/configmaps", map_json((), (), past))
        again = QuotaStatus(api, one.cluster, PolicyConfig(policy="coda"))
        await again.write()
        division = array_shown(api, "all")["division"]
        assert (division["source"], division["jobs"], division["coresPerGPU"]) == (
            "History",
            80,
            "0",
        )  # not yet an hour


async def test_a_past_that_cannot_be_read_leaves_the_division_as_it_is() -> None:
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    api.set(ARRAY_QUOTAS, aq_json("all", division="Auto"))
    api.set("/api/v1/namespaces/coda-system/configmaps", map_json((), ()) | {"data": {"division": "[]"}})
    async with replica(api) as one:
        await _until(lambda: bool(one.cluster.array_quotas.by_key) and one.cluster.is_synced())
        await QuotaStatus(api, one.cluster, PolicyConfig(policy="coda")).write()
        assert array_shown(api, "all")["division"]["source"] == "TooFewJobs"
        assert array_shown(api, "all")["division"]["coresPerGPU"] == "4"
