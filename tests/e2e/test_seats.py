"""Opportunistic jobs on a real control plane, on simulated nodes that offer seats: who shares, who waits, who stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, jobs_path, pods_of, submit, wait_for, wait_for_pending, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e

SHARED = {"CODA_SCHEDULING_POLICY": "coda", "CODA_SHARING": "true", "CODA_SHARING_AUTO_WAIT_S": "1"}
SPEC = ClusterSpec(nodes="1x1x16", racks=1, seats=4, extenders=1, environ_by_part={"extender-0": SHARED})
PROFILES = "/apis/coda.scheduler/v1alpha1/nodeprofiles"
TENANTS = "/apis/coda.scheduler/v1alpha1/virtualclusters"


def opportunistic(name: str, *, run_s: float | None = None, cores: int = 1, wish: str = "Opportunistic") -> Json:
    asked: dict[str, Any] = {"serviceClass": wish, "gpuMemory": "10Gi", "cpusPerReplica": cores}
    return job_json(name, run_s=run_s, spec=asked)


@pytest_asyncio.fixture(autouse=True)
async def empty(admin: Client) -> AsyncIterator[None]:
    yield
    paths = [job_path(f"default/{job['metadata']['name']}") for job in (await admin.list_pages(jobs_path()))["items"]]
    for path in paths:
        await admin.delete(path)
    for path in paths:
        await wait_gone(admin, path)


def asks(pod: Json) -> dict[str, str]:
    """What the main container asks for of GPUs and seats."""
    limits: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return {name: amount for name, amount in limits.items() if "gpu" in name}


async def runs(admin: Client, job: Json) -> str:
    name = await submit(admin, job)
    await wait_for_phase(admin, name, "Running")
    return name


async def test_four_share_the_gpu_and_the_fifth_follows_when_one_ends(admin: Client) -> None:
    names = [await runs(admin, opportunistic(f"shares-{number}")) for number in range(4)]
    fifth = await submit(admin, opportunistic("fifth", run_s=1.0))
    await wait_for_pending(admin, fifth, "SeatsTaken")
    job = await admin.get(job_path(fifth))
    assert sorted(job["status"]["pending"]["holders"]) == names
    for name in names:
        (pod,) = await pods_of(admin, name)
        assert asks(pod) == {"coda.scheduler/gpu-0": "1"}
        status = (await admin.get(job_path(name)))["status"]
        assert (status["placement"]["gpus"], status["sharing"]["class"]) == ([0], "Opportunistic")
    await admin.delete(job_path(names[0]))
    await wait_for_phase(admin, fifth, "Succeeded")


async def test_a_guaranteed_job_gets_the_cores_of_opportunistic_ones_and_both_end(admin: Client) -> None:
    """The youngest stops; the other one goes on beside the guaranteed job, on its GPU. Later all succeed."""
    await admin.create(
        TENANTS,
        {
            "apiVersion": "coda.scheduler/v1alpha1",
            "kind": "VirtualCluster",
            "metadata": {"name": "lab"},
            "spec": {"namespaces": ["default"], "quota": {"gpus": 1}},
        },
    )
    try:
        old = await runs(admin, opportunistic("old", run_s=20.0))
        young = await runs(admin, opportunistic("young", run_s=2.0, cores=8))
        first = await submit(admin, job_json("first", run_s=8.0, spec={"cpusPerReplica": 14}))
        await wait_for_phase(admin, first, "Running")
        (pod,) = await pods_of(admin, first)
        assert asks(pod) == {"nvidia.com/gpu": "1"}
        stopped = await wait_for(admin, job_path(young), lambda job: job["status"]["attempt"] == 2)
        assert (stopped["status"]["failures"], stopped["status"]["lastStop"]["by"]) == (0, "default/first")
        assert stopped["status"]["lastStop"]["cause"] == "Preempt"
        assert (await admin.get(job_path(old)))["status"]["attempt"] == 1
        used = await wait_for(
            admin, f"{TENANTS}/lab", lambda item: (item.get("status") or {}).get("gpus", {}).get("used") == 1
        )
        assert used["status"]["gpus"]["borrowed"] == 0
        for name in (first, old, young):
            await wait_for_phase(admin, name, "Succeeded")
    finally:
        await admin.delete(f"{TENANTS}/lab")


async def test_an_auto_job_takes_a_seat_when_its_tenant_may_have_no_gpu(admin: Client) -> None:
    tenant = {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "VirtualCluster",
        "metadata": {"name": "poor"},
        "spec": {"namespaces": ["default"], "quota": {"gpus": 0}, "mayBorrow": False},
    }
    await admin.create(TENANTS, tenant)
    try:
        await wait_for(admin, f"{TENANTS}/poor", lambda item: bool(item.get("status")))
        auto = await runs(admin, opportunistic("auto", wish="Auto"))
        (pod,) = await pods_of(admin, auto)
        assert asks(pod) == {"coda.scheduler/gpu-0": "1"}
        guaranteed = await submit(admin, job_json("guaranteed"))
        await wait_for_pending(admin, guaranteed, "VirtualClusterFull")
    finally:
        await admin.delete(f"{TENANTS}/poor")


async def test_an_auto_job_that_resumes_leaves_its_seat_once_a_gpu_may_be_its_own(admin: Client) -> None:
    tenant: Json = {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "VirtualCluster",
        "metadata": {"name": "poor"},
        "spec": {"namespaces": ["default"], "quota": {"gpus": 0}, "mayBorrow": False},
    }
    await admin.create(TENANTS, tenant)
    try:
        await wait_for(admin, f"{TENANTS}/poor", lambda item: bool(item.get("status")))
        job = opportunistic("auto", wish="Auto")
        job["spec"]["resumable"] = True
        auto = await runs(admin, job)
        assert (await admin.get(job_path(auto)))["status"]["placement"]["gpus"] == [0]
        await admin.patch(f"{TENANTS}/poor", {"spec": {"quota": {"gpus": 1}}})
        upgraded = await wait_for(
            admin, job_path(auto), lambda job: (job["status"]["attempt"], job["status"]["phase"]) == (2, "Running")
        )
        (pod,) = [pod for pod in await pods_of(admin, auto) if not pod["metadata"].get("deletionTimestamp")]
        assert asks(pod) == {"nvidia.com/gpu": "1"}
        assert (upgraded["status"]["failures"], upgraded["status"]["lastStop"]["cause"]) == (0, "Upgrade")
        assert upgraded["status"]["sharing"] == {"class": "Guaranteed"}
    finally:
        await admin.delete(f"{TENANTS}/poor")


async def test_one_that_has_no_room_beside_a_guaranteed_job_goes_on_when_that_has_ended(admin: Client) -> None:
    """The node's agent says that two stand still. One goes on where it was: it leaves. The other one keeps its work."""
    jobs = [opportunistic(name) for name in ("moves", "stays")]
    jobs[0]["spec"]["resumable"] = True
    guests = [await runs(admin, job) for job in jobs]
    owner = await runs(admin, job_json("owner", run_s=None))
    uids = [(await pods_of(admin, name))[0]["metadata"]["uid"] for name in (owner, *guests)]
    gpu = {"uuid": "GPU-0", "health": "ready", "index": 0, "podUIDs": uids[:1], "crowdedOutPodUIDs": uids[1:]}
    profile: Json = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "NodeProfile", "metadata": {"name": "node-0000"}}
    await admin.create(PROFILES, profile)
    try:
        await admin.patch(f"{PROFILES}/node-0000/status", {"status": {"gpus": [gpu]}})
        waits = await wait_for_pending(admin, guests[0], "GPUsNotKnown")
        stop = waits["status"]["lastStop"]
        assert (waits["status"]["reason"], stop["cause"], stop["by"]) == ("Preempted", "Preempt", owner)
        await admin.delete(job_path(owner))
        again = await wait_for_phase(admin, guests[0], "Running")
        assert (again["status"]["attempt"], again["status"]["placement"]["gpus"]) == (2, [0])
        stayed = (await admin.get(job_path(guests[1])))["status"]
        assert (stayed["attempt"], stayed["phase"]) == (1, "Running")
    finally:
        await admin.delete(f"{PROFILES}/node-0000")


async def test_guests_leave_at_once_for_an_owner_that_waits_for_memory_and_go_on_once_it_has_ended(
    admin: Client,
) -> None:
    """The node's agent says so. One of them cannot resume, the other one would save for a minute if it were asked."""
    jobs = [opportunistic(name) for name in ("plain", "saves")]
    jobs[1]["spec"] |= {"resumable": True, "stopNoticeSeconds": 60}
    guests = [await runs(admin, job) for job in jobs]
    owner = await runs(admin, job_json("owner", run_s=None))
    uids = [(await pods_of(admin, name))[0]["metadata"]["uid"] for name in (owner, *guests)]
    gpu = {"uuid": "GPU-0", "health": "ready", "index": 0, "podUIDs": uids[:1], "ownerWaits": True}
    profile: Json = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "NodeProfile", "metadata": {"name": "node-0000"}}
    await admin.create(PROFILES, profile)
    try:
        await admin.patch(f"{PROFILES}/node-0000/status", {"status": {"gpus": [gpu | {"crowdedOutPodUIDs": uids[1:]}]}})
        for name in guests:
            status = (await wait_for_pending(admin, name, "GPUsNotKnown"))["status"]
            assert (status["failures"], status["reason"]) == (0, "Preempted")
            assert (status["lastStop"]["cause"], status["lastStop"]["by"]) == ("Preempt", owner)
            assert status["lastStop"]["answer"] == "Unasked"
            assert await pods_of(admin, name) == []
        assert (await admin.get(job_path(owner)))["status"]["attempt"] == 1
        await admin.delete(job_path(owner))
        for name in guests:
            assert (await wait_for_phase(admin, name, "Running"))["status"]["attempt"] == 2
    finally:
        await admin.delete(f"{PROFILES}/node-0000")


async def test_where_whole_gpus_are_in_use_nobody_gets_a_seat_later(admin: Client) -> None:
    await runs(admin, job_json("whole", run_s=None))
    late = await submit(admin, opportunistic("late"))
    await wait_for_pending(admin, late, "GPUsNotKnown")


async def test_an_opportunistic_rank_with_two_gpus_is_refused(admin: Client) -> None:
    job = opportunistic("two")
    job["spec"]["gpusPerReplica"] = 2
    with pytest.raises(Rejected, match="set gpusPerReplica to 1"):
        await admin.create(jobs_path(), job)
