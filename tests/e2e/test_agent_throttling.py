"""The real agent on emulated machines throttles an aggressor, and puts back what a killed agent left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from coda.contention import ContentionConfig
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.names import THROTTLING
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import WINDOW_S, loads, training, wait_until
from tests.e2e.jobs import pods_of, submit, wait_for, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="2x8x32", racks=1, extenders=1, agents=2, agent_window_s=WINDOW_S)
BATCH = "batch"
PEAK_GB_PER_S = 160


async def reasons_on(client: Client, namespace: str, pod: str) -> set[str]:
    query = {"fieldSelector": f"involvedObject.name={pod}"}
    listing = await client.list_pages(f"/api/v1/namespaces/{namespace}/events", query)
    return {event["reason"] for event in listing["items"]}


async def run_undisturbed(cluster: LocalCluster, user: Client, name: str, number: int) -> str:
    """The pod of a job with 4 cores on that node, once the agent has learned how busy its undisturbed GPUs are."""
    job = training(name, cores_needed=4, node=f"node-{number:04}")
    job["spec"]["cpusPerReplica"] = 4
    await wait_for_phase(user, await submit(user, job), "Running")
    (pod,) = await pods_of(user, f"default/{name}")
    began: list[float] = []

    async def has_learned() -> bool:
        measured, rounds = await rounds_of(cluster, number, pod["metadata"]["uid"])
        if measured:
            began.append(rounds)
        return measured and rounds >= began[0] + 2 * ContentionConfig().learn_windows

    await wait_until(has_learned, within_s=120)
    return str(pod["metadata"]["name"])


async def rounds_of(cluster: LocalCluster, number: int, pod_uid: str) -> tuple[bool, float]:
    """Whether that agent measures the GPUs of the pod, and how many rounds it has done."""
    url = f"http://127.0.0.1:{cluster.ports[f'agent-{number}']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    measured = any(line.startswith("coda_gpu_utilization_ratio") and pod_uid in line for line in lines)
    (rounds,) = [line for line in lines if line.startswith("coda_agent_window_duration_seconds_count")]
    return measured, float(rounds.split()[1])


@pytest.fixture
async def aggressor(admin: Client) -> AsyncIterator[Callable[[str], Any]]:
    """Starts a CPU pod on a node that wants more bandwidth than a socket has, in a namespace that allows throttling."""
    pod_path = f"/api/v1/namespaces/{BATCH}/pods/aggressor"

    async def start(node: str) -> None:
        resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "16"}}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "stream", "image": "stream:1", "resources": resources}],
        }
        metadata = {"name": "aggressor", "annotations": loads(gb_per_second=1.25 * PEAK_GB_PER_S)}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        await admin.create(f"/api/v1/namespaces/{BATCH}/pods", pod)

    namespace = {"metadata": {"name": BATCH, "labels": {THROTTLING: "true"}}}
    try:
        await admin.get(f"/api/v1/namespaces/{BATCH}")
    except NotFound:
        await admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", **namespace})
    # After an API server was away, the controllers' watches come back after a pause of up to a minute.
    await wait_for(admin, f"/api/v1/namespaces/{BATCH}/serviceaccounts/default", lambda _item: True, within_s=90)
    yield start
    await admin.delete(pod_path, grace_s=0)
    await wait_gone(admin, pod_path)


async def test_an_aggressor_is_throttled_and_let_go_when_it_calms_down(
    cluster: LocalCluster, user: Client, admin: Client, aggressor: Callable[[str], Any]
) -> None:
    pod = await run_undisturbed(cluster, user, "victim", 0)
    await aggressor("node-0000")

    async def is_told(reason: str) -> bool:
        return reason in await reasons_on(admin, BATCH, "aggressor") & await reasons_on(admin, "default", pod)

    await wait_until(lambda: is_told("Throttled"))
    calm = {"metadata": {"annotations": loads(gb_per_second=1)}}
    await admin.patch(f"/api/v1/namespaces/{BATCH}/pods/aggressor", calm)
    await wait_until(lambda: is_told("ThrottleReleased"), within_s=120)


async def test_a_throttle_of_a_killed_agent_is_put_back_by_the_next_one(
    cluster: LocalCluster, user: Client, admin: Client, aggressor: Callable[[str], Any]
) -> None:
    pod = await run_undisturbed(cluster, user, "shielded", 1)
    await aggressor("node-0001")

    async def is_throttled() -> bool:
        return "Throttled" in await reasons_on(admin, "default", pod)

    await wait_until(is_throttled)
    await cluster.kill("agent-1")
    before = cluster.log_path("agent-1").stat().st_size
    await cluster.start("agent-1")
    said = cluster.log_path("agent-1").read_text()[before:]
    assert "put back what an earlier agent left" in said
