"""Lending on a real control plane: a GPU job shrinks for a CPU job, and a division follows the history."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy.engine import URL

from coda.allocator import Tuning, TuningPhase
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.run_times import PATH, past_use_from_json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from coda_operator.history.store import Store
from tests.e2e.agents import wait_until
from tests.e2e.cpu_jobs import PODS, event_messages, opt_in, pod_json, wait_until_empty
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_phase
from tests.e2e.scheduling import QUICK_LEASE
from tests.e2e.test_tuning import annotate, auto_job, ended, node_of, run, tell
from tests.operator_tests.history.records import record

pytestmark = pytest.mark.e2e

LENDING = {
    "CODA_SCHEDULING_POLICY": "coda",
    "CODA_ARRAY_RESERVE_CORES_PER_GPU": "1",
    "CODA_ARRAY_TAKES_BACK": "true",
    "CODA_RESIZE_DEADLINE_S": "4",
} | QUICK_LEASE
SPEC = ClusterSpec(nodes="1x4x17", racks=1, extenders=1, environ_by_part={"extender-0": LENDING})
ARRAY_QUOTAS = "/apis/coda.scheduler/v1alpha1/arrayquotas"


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def namespace(cluster: LocalCluster) -> None:
    async with cluster.client("admin") as admin:
        await opt_in(admin)


def grant_of(item: Json) -> dict[str, Any]:
    found: dict[str, Any] = ((item.get("status") or {}).get("placement") or {}).get("grant") or {}
    return found


async def lends(cluster: LocalCluster, user: Client) -> str:
    """A tuned job of two GPUs with 8 of 17 cores, of which its array owns 2."""
    job = await run(user, auto_job("lends", gpus=2))
    await tell(cluster, job, Tuning(attempt=1, phase=TuningPhase.MEASURING))
    return job


async def test_a_running_gpu_job_shrinks_in_place_and_the_cpu_job_starts(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await lends(cluster, user)
    await admin.create(PODS, pod_json("serves", cpu="13"))
    try:
        await wait_for(admin, f"{PODS}/serves", lambda pod: pod["status"]["phase"] == "Running")
        item = await user.get(job_path(job))
        grant, status = grant_of(item), item["status"]
        assert (grant["code"], grant["coresPerReplica"]) == ("TakenBack", 4)
        assert grant["message"] == "4 cores per rank of the CPU array go back to it, for batch/*"
        assert (status["phase"], status["attempt"], status["resize"]["state"]) == ("Running", 1, "Done")
        (pod,) = await pods_of(user, job)
        (container,) = pod["status"]["containerStatuses"]
        assert (container["resources"]["requests"]["cpu"], container["restartCount"]) == ("4", 0)
        serves = await admin.get(f"{PODS}/serves")
        assert serves["metadata"]["annotations"].get("coda.scheduler/borrows") is None
    finally:
        await admin.delete(f"{PODS}/serves")
        await wait_until_empty(admin)


async def test_a_node_that_lets_no_job_shrink_is_asked_once_and_the_reason_says_so(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await lends(cluster, user)
    node = await node_of(user, job, 0)
    await annotate(admin, node, cpu_manager="static")
    await admin.create(PODS, pod_json("waits", cpu="13"))
    try:
        assert (await ended(user, job))["reason"] == "StaticCPUManager"

        async def is_said() -> bool:
            said = await event_messages(admin, "InsufficientCPU")
            return any("1 training job could not give back cores of the CPU array" in message for message in said)

        await wait_until(is_said)
        item = await user.get(job_path(job))
        assert (grant_of(item)["sequence"], item["status"]["resize"]["coresPerReplica"]) == (1, 8)
        assert (await admin.get(f"{PODS}/waits"))["spec"]["schedulingGates"]
        await user.delete(job_path(job))
        await wait_for(admin, f"{PODS}/waits", lambda pod: pod["status"]["phase"] == "Running")
    finally:
        await annotate(admin, node, cpu_manager=None)
        await admin.delete(f"{PODS}/waits")
        await wait_until_empty(admin)


async def test_a_division_follows_the_jobs_of_the_week_and_kills_nothing(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    """60 finished jobs used 3 cores per GPU, and all were large: one step from 6 and 25 % towards that."""
    runs = await submit(user, job_json("runs", gpus=1, run_s=None))
    await wait_for_phase(user, runs, "Running")
    await cluster.kill("operator-0")
    store = Store(URL.create("sqlite", database=str(cluster.layout.history)))
    store.write([record(number, ended_s=time.time() - 60.0 * number) for number in range(60)])
    store.close()
    await cluster.start("operator-0")

    async def is_published() -> bool:
        with suppress(NotFound):  # the operator has not made it yet
            return past_use_from_json(await admin.get(PATH)).jobs >= 60
        return False

    await wait_until(is_published)
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "ArrayQuota", "metadata": {"name": "auto"}}
    await admin.create(
        ARRAY_QUOTAS, kind | {"spec": {"division": "Auto", "gpuArray": {"coresPerGPU": 6, "largeGPUs": 1}}}
    )
    quota = f"{ARRAY_QUOTAS}/auto"
    try:
        # 5.5 cores for each of 4 GPUs are 22, and the node has 17: all are the GPU array's
        shown = await wait_for(admin, quota, lambda item: "division" in (item.get("status") or {}))
        division = shown["status"]["division"]
        assert {key: division[key] for key in ("source", "coresPerGPU", "largeShare")} == {
            "source": "History",
            "coresPerGPU": "5.5",
            "largeShare": "30%",
        }
        assert division["jobs"] >= 60
        # The next look divides by it, and takes no second step within the hour.
        shown = await wait_for(admin, quota, lambda item: item["status"]["gpuArray"]["cpus"]["reserved"] == "17")
        assert shown["status"]["division"]["coresPerGPU"] == "5.5"
        status = (await user.get(job_path(runs)))["status"]
        assert (status["phase"], status["attempt"]) == ("Running", 1)
    finally:
        await admin.delete(quota)
