"""The policy `coda` on a real control plane: guests make way for large jobs, and tenants keep to their quotas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, jobs_path, pods_of, submit, wait_for, wait_for_pending, wait_for_phase
from tests.e2e.scheduling import leader_of

pytestmark = pytest.mark.e2e

ARRAYS = {"CODA_SCHEDULING_POLICY": "coda", "CODA_ARRAY_LARGE_SHARE": "0.5"}  # one of the two nodes is the large jobs'
SPEC = ClusterSpec(nodes="2x8x48", racks=1, environ_by_part=dict.fromkeys(("extender-0", "extender-1"), ARRAYS))


async def runs(user: Client, name: str, gpus: int, *, grace_s: int = 1) -> str:
    """Submit a job that resumes and never ends by itself; the node it runs on."""
    job = job_json(name, gpus=gpus, run_s=None)
    job["spec"]["resumable"] = True
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_s
    await wait_for_phase(user, await submit(user, job), "Running")
    return await node_of(user, name)


async def node_of(user: Client, name: str) -> str:
    (pod,) = await pods_of(user, f"default/{name}")
    return str(pod["spec"]["nodeName"])


def has_stop(item: Json) -> bool:
    return bool(((item.get("status") or {}).get("placement") or {}).get("stop"))


def is_attempt(number: int, phase: str) -> Callable[[Json], bool]:
    return lambda item: (item["status"]["attempt"], item["status"]["phase"]) == (number, phase)


async def host_a_guest(user: Client) -> tuple[str, str]:
    """Fill the small jobs' node, so that one more is a guest, and then make room there. Both nodes: home, guest's."""
    home = {await runs(user, name, gpus) for name, gpus in (("three", 3), ("two", 2), ("also-three", 3))}
    away = await runs(user, "guest", 1)
    assert len(home) == 1
    assert away not in home
    await user.delete(job_path("default/two"))
    return home.pop(), away


async def test_a_guest_goes_home_and_the_large_job_gets_its_node(cluster: LocalCluster, user: Client) -> None:
    home, away = await host_a_guest(user)
    large = await submit(user, job_json("large", gpus=8, run_s=None))
    migrated = await wait_for(user, job_path("default/guest"), is_attempt(2, "Running"))
    await wait_for_phase(user, large, "Running")
    assert (await node_of(user, "guest"), await node_of(user, "large")) == (home, away)
    status = migrated["status"]
    assert (status["failures"], status["disruptions"], status.get("returned")) == (0, 0, None)
    events = await user.list_pages("/api/v1/namespaces/default/events", {"fieldSelector": "involvedObject.name=guest"})
    said = {event["reason"]: event["message"] for event in events["items"]}
    assert said["Migrated"] == "attempt 1: stopped so that default/large gets its room"


@pytest.mark.parametrize("victim", ["planner", "operator"])
async def test_whoever_dies_between_the_order_and_the_start_is_made_up_for(
    cluster: LocalCluster, user: Client, admin: Client, victim: str
) -> None:
    home, away = await host_a_guest(user)
    part = "operator-0" if victim == "operator" else await leader_of(admin)
    large = await submit(user, job_json("large", gpus=8, run_s=None))
    await wait_for(user, job_path("default/guest"), has_stop)
    await cluster.kill(part)
    await cluster.start(part)
    await wait_for(user, job_path("default/guest"), is_attempt(2, "Running"))
    await wait_for_phase(user, large, "Running")
    assert (await node_of(user, "guest"), await node_of(user, "large")) == (home, away)


def mixed_jobs(rng: random.Random, name: str, count: int) -> list[Json]:
    """Again and again: eight small jobs that fill their node, one that is a guest and lasts longer, and a large one."""
    jobs = [
        job_json(f"{name}-large-{number}", gpus=8, run_s=rng.uniform(1, 3))
        if number % 10 == 9
        else job_json(f"{name}-small-{number}", gpus=1, run_s=20 if number % 10 == 8 else rng.uniform(5, 8))
        for number in range(count)
    ]
    for job in jobs:
        job["spec"]["resumable"] = True
    return jobs


async def test_under_kills_every_stopped_job_starts_again_once_and_ends(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    """A guest goes home once a small job there has ended. A wave in which none does is chance, and rare."""
    rng = random.Random(1)
    for wave in range(5):
        for number, job in enumerate(mixed_jobs(rng, f"wave-{wave}", 40)):
            await submit(user, job)
            if number % 8 == 7:
                part = rng.choice(("operator-0", await leader_of(admin)))
                await cluster.kill(part)
                await cluster.start(part)
            await asyncio.sleep(rng.uniform(0.1, 0.5))  # the load, not a wait
        ended = [await wait_for_phase(user, job, "Succeeded", within_s=120) for job in await names_of_jobs(user)]
        stopped = [job for job in ended if job["status"]["attempt"] > 1]
        assert len(ended) == 40 * (wave + 1)
        assert sum(job["status"]["failures"] + job["status"]["disruptions"] for job in ended) == 0
        if stopped:
            return
    pytest.fail("no job was stopped for another in 5 waves")


async def names_of_jobs(user: Client) -> list[str]:
    return [f"default/{job['metadata']['name']}" for job in (await user.list_pages(jobs_path()))["items"]]


VIRTUAL_CLUSTERS = "/apis/coda.scheduler/v1alpha1/virtualclusters"


def virtual_cluster(name: str, **spec: Any) -> Json:
    spec = {"namespaces": ["default"]} | spec
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster"}
    return kind | {"metadata": {"name": name}, "spec": spec}


def shows(field: str, expected: Any) -> Callable[[Json], bool]:
    return lambda item: (item.get("status") or {}).get(field) == expected


async def test_a_tenant_that_may_not_borrow_keeps_to_its_quota(user: Client, admin: Client) -> None:
    await admin.create(VIRTUAL_CLUSTERS, virtual_cluster("lab", quota={"gpus": 2}, mayBorrow=False))
    lab = f"{VIRTUAL_CLUSTERS}/lab"
    try:
        await wait_for_phase(user, await submit(user, job_json("fits", gpus=2, run_s=None)), "Running")
        full = await submit(user, job_json("full", gpus=4, run_s=None))
        await wait_for_pending(user, full, "VirtualClusterFull")
        await wait_for(admin, lab, shows("gpus", {"used": 2, "borrowed": 0, "waiting": 4}))
        await admin.patch(lab, {"spec": {"mayBorrow": True}})
        await wait_for_phase(user, full, "Running")
        await wait_for(admin, lab, shows("gpus", {"used": 6, "borrowed": 4, "waiting": 0}))
        await admin.create(VIRTUAL_CLUSTERS, virtual_cluster("rival"))
        overlapping = await wait_for(admin, lab, is_overlapping)
        assert "default is named by rival too" in overlapping["status"]["conditions"][0]["message"]
    finally:
        for item in (await admin.list_pages(VIRTUAL_CLUSTERS))["items"]:
            await admin.delete(f"{VIRTUAL_CLUSTERS}/{item['metadata']['name']}")


def is_overlapping(item: Json) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Overlapping" and one["status"] == "True" for one in conditions)


ARRAY_QUOTAS = "/apis/coda.scheduler/v1alpha1/arrayquotas"


def shows_gpus(array: str, **expected: int) -> Callable[[Json], bool]:
    return lambda item: expected.items() <= ((item.get("status") or {}).get("gpuArray") or {}).get(array, {}).items()


async def test_a_division_may_change_while_jobs_run(user: Client, admin: Client) -> None:
    """All nodes are for small jobs, then for large ones: the small job that runs is a guest, and goes on."""
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "ArrayQuota", "metadata": {"name": "all"}}
    await admin.create(ARRAY_QUOTAS, kind | {"spec": {"gpuArray": {"largeGPUs": 0}}})
    quota = f"{ARRAY_QUOTAS}/all"
    try:
        await wait_for(admin, quota, shows_gpus("smallGPUs", reserved=16, used=0))
        small = await submit(user, job_json("small", gpus=2, run_s=None))
        await wait_for_phase(user, small, "Running")
        await wait_for(admin, quota, shows_gpus("smallGPUs", used=2, lent=0))
        await admin.patch(quota, {"spec": {"gpuArray": {"largeGPUs": "100%"}}})
        await wait_for(admin, quota, shows_gpus("largeGPUs", reserved=16, used=0, lent=2))
        blocked = await submit(user, job_json("large", gpus=8, replicas=2, run_s=None))
        await wait_for_pending(user, blocked, "InsufficientGPUs")
        await wait_for(admin, quota, shows_gpus("largeGPUs", waiting=16))
        assert (await user.get(job_path(small)))["status"]["phase"] == "Running"
    finally:
        await admin.delete(quota)
