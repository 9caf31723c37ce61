"""The real agents of two nodes tune one gang: the rank on the other node needs more cores than rank 0."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import WINDOW_S, limits_of, loads, training, wait_for_tuning
from tests.e2e.jobs import pods_of, submit, wait_for, wait_for_phase

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="2x2x24", racks=1, extenders=1, agents=2, agent_window_s=WINDOW_S)

FAST, SLOW = 4, 10
"""Cores that keep the GPUs of rank 0 and of rank 1 busy."""

ENOUGH = range(SLOW - 1, 24)
"""Fewer than a node has. On a busy machine the samples are noisy, and the search stays above what is needed.

How near it comes is judged in virtual time (`tests/core/allocator`).
"""


async def run_gang(user: Client, admin: Client, name: str) -> str:
    """A gang of two ranks, one on each node, that starts with 8 cores per rank."""
    job = await submit(user, training(name, cores_needed=FAST, replicas=2, gpus=2))
    await wait_for_phase(user, job, "Running", within_s=60)
    first, second = await pods_of(user, job)
    assert first["spec"]["nodeName"] != second["spec"]["nodeName"]
    path = f"/api/v1/namespaces/default/pods/{second['metadata']['name']}"
    await admin.patch(path, {"metadata": {"annotations": loads(cores_needed=SLOW)}})
    return job


async def test_a_gang_gets_the_cores_of_its_slowest_rank(cluster: LocalCluster, user: Client, admin: Client) -> None:
    job = await run_gang(user, admin, "uneven")
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    answer = tuned["answer"]["coresPerReplica"]
    assert answer in ENOUGH
    assert await limits_of(user, job) == [(str(answer), 0)] * 2


async def test_a_gang_of_which_one_agent_is_dead_says_so_keeps_its_cores_and_is_tuned_once_it_is_back(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    await cluster.kill("agent-1")
    job = await run_gang(user, admin, "half-seen")

    def is_told(item: Json) -> bool:
        return bool(((item.get("status") or {}).get("tuning") or {}).get("reason") == "RanksUnknown")

    told = (await wait_for(user, job_path(job), is_told, within_s=120))["status"]
    assert "did not report" in told["tuning"]["message"]
    assert await limits_of(user, job) == [("8", 0)] * 2
    await cluster.start("agent-1")
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert tuned["answer"]["coresPerReplica"] in ENOUGH
