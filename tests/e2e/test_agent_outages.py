"""The real agent on emulated machines, while the API server is away and while its machine starts again."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import WINDOW_S, training, wait_for_tuning, wait_until
from tests.e2e.jobs import submit, wait_for_phase

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="2x8x32", racks=1, extenders=1, agents=2, agent_window_s=WINDOW_S)


async def test_an_api_server_that_was_away_delays_a_tuning_and_no_more(cluster: LocalCluster, user: Client) -> None:
    job = await submit(user, training("patient", cores_needed=6, node="node-0001"))
    await wait_for_tuning(user, job, "Wishing")
    await cluster.restart("kube-apiserver")
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert abs(tuned["answer"]["coresPerReplica"] - 6) <= 1
    assert cluster.is_running("agent-1")


async def test_a_machine_that_starts_anew_takes_its_agent_with_it_and_loses_nothing_else(
    cluster: LocalCluster, user: Client
) -> None:
    job = await submit(user, training("rebooted", cores_needed=5, node="node-0000"))
    await wait_for_tuning(user, job, "Measuring")
    await cluster.kill("machines")
    await wait_until(lambda: ended(cluster, "agent-0"))
    await wait_until(lambda: ended(cluster, "agent-1"))
    for part in ("machines", "agent-0", "agent-1"):
        await cluster.start(part)
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert abs(tuned["answer"]["coresPerReplica"] - 5) <= 1
    await wait_for_phase(user, job, "Running")


async def ended(cluster: LocalCluster, part: str) -> bool:
    return not cluster.is_running(part)
