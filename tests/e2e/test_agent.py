"""The real agent on emulated machines of a local cluster: it tunes jobs, and continues after it was killed.

Tuning is waiting for windows, so three jobs are tuned at once, each on a machine of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from coda_kube.api.client import Client, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.checker import Checker
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import TUNED_WITHIN_S, WINDOW_S, has_measured, limits_of, training, wait_for_tuning, wait_until
from tests.e2e.jobs import submit, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NODES = ("node-0000", "node-0001", "node-0002")
SPEC = ClusterSpec(nodes="3x8x32", racks=1, extenders=1, agents=3, agent_window_s=WINDOW_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def user(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("user") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("admin") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def checked(admin: Client) -> AsyncIterator[None]:
    """The invariants hold all through the module, since its jobs run through all tests."""
    checker = Checker(admin)
    async with checker.watching():
        yield
    assert [breach.sentence for breach in checker.breaches] == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jobs(user: Client) -> dict[str, str]:
    """Three jobs with automatic cores; each name with the job's id."""
    given = (
        training("tuned", cores_needed=7, node=NODES[0]),
        training("pair", cores_needed=10, replicas=2, gpus=2, node=NODES[1]),
        training("resumed", cores_needed=6, node=NODES[2]),
    )
    return {job["metadata"]["name"]: await submit(user, job) for job in given}


async def test_an_agent_killed_while_it_tunes_goes_on_where_it_was(
    cluster: LocalCluster, user: Client, jobs: dict[str, str]
) -> None:
    job = jobs["resumed"]
    seen = []
    for windows in (1, 2):
        item = await wait_for(user, job_path(job), has_measured(windows), within_s=TUNED_WITHIN_S)
        await cluster.kill("agent-2")
        seen.append({step["coresPerReplica"] for step in item["status"]["tuning"]["steps"]})
        await cluster.start("agent-2")
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert abs(tuned["answer"]["coresPerReplica"] - 6) <= 1
    assert seen[0] | seen[1] <= {step["coresPerReplica"] for step in tuned["steps"]}
    assert [restarts for _cores, restarts in await limits_of(user, job)] == [0]


async def test_a_job_is_tuned_to_its_optimum_without_a_restart(
    cluster: LocalCluster, user: Client, jobs: dict[str, str]
) -> None:
    job = jobs["tuned"]
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]
    assert abs(tuned["tuning"]["answer"]["coresPerReplica"] - 7) <= 1
    curve = {step["coresPerReplica"]: step["gpuUtilization"] for step in tuned["tuning"]["steps"]}
    assert min(curve) <= 4 < 7 <= max(curve)
    assert curve[min(curve)] < curve[7 if 7 in curve else max(curve)]
    answer = tuned["tuning"]["answer"]["coresPerReplica"]
    assert tuned["placement"]["grant"]["state"] == "Granted"
    assert (tuned["attempt"], tuned["cores"]) == (1, answer)
    assert await limits_of(user, job) == [(str(answer), 0)]
    command = [*cluster.kubectl, "get", "tj", "tuned", "-o", "wide"]
    shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert "Tuned" in shown.stdout.splitlines()[1].split()


async def test_both_ranks_of_a_job_are_resized(user: Client, jobs: dict[str, str]) -> None:
    job = jobs["pair"]
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]
    answer = tuned["tuning"]["answer"]["coresPerReplica"]
    assert abs(answer - 10) <= 1
    assert await limits_of(user, job) == [(str(answer), 0)] * 2


async def test_what_the_agent_found_on_its_node_is_a_node_profile(admin: Client) -> None:
    for node in NODES:
        await wait_until(partial(has_profile, admin, node), within_s=60)  # until its GPUs have settled
        status = (await profile(admin, node))["status"]
        assert (status["cores"], status["gpuCount"], status["socketCount"]) == (32, 8, 2)
        assert [socket["cpus"] for socket in status["sockets"]] == ["0-15", "16-31"]
        assert {socket["peakSource"] for socket in status["sockets"]} == {"Configured"}
        assert status["bandwidth"]["control"] == "Percent"
        assert {gpu["health"] for gpu in status["gpus"]} == {"ready"}
        assert {link["path"] for link in status["links"]} == {"System"}
    first, second = [(await profile(admin, node))["status"]["gpus"] for node in NODES[:2]]
    assert {gpu["uuid"] for gpu in first}.isdisjoint({gpu["uuid"] for gpu in second})


async def has_profile(admin: Client, node: str) -> bool:
    try:
        return bool((await profile(admin, node)).get("status"))
    except NotFound:
        return False


async def profile(admin: Client, node: str) -> Json:
    return await admin.get(f"/apis/coda.scheduler/v1alpha1/nodeprofiles/{node}")
