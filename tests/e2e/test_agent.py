"""The real agent on emulated machines of a local cluster: it tunes jobs, throttles aggressors, and survives kills."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import aiohttp
import pytest

from coda.contention.config import ContentionConfig
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import THROTTLING
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e

WINDOW_S = 15.0  # with less, a busy machine has too few samples in it
TUNED_WITHIN_S = 300.0  # 4 to 8 windows with their resizes
SPEC = ClusterSpec(nodes="2x8x32", racks=1, agents=2, agent_window_s=WINDOW_S)
BATCH = "batch"
PEAK_GB_PER_S = 160


def training(name: str, *, cores_needed: int, replicas: int = 1, gpus: int = 1, node: str | None = None) -> Json:
    """A job with automatic cores that keeps its GPUs busy with `cores_needed` per rank; it starts with 4 per GPU."""
    job = job_json(name, replicas=replicas, gpus=gpus, run_s=None, spec={"cpusPerReplica": "auto"})
    template = job["spec"]["template"]
    amounts = {"memory": "1Gi"}
    template["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    template["metadata"]["annotations"] |= loads(cores_needed=cores_needed, noise=0.002, gb_per_second=10)
    if node is not None:
        template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return job


def loads(**numbers: float) -> dict[str, str]:
    return {f"load.coda.scheduler/{name.replace('_', '-')}": str(number) for name, number in numbers.items()}


async def wait_for_tuning(user: Client, job: str, *phases: str, within_s: float = TUNED_WITHIN_S) -> Json:
    """The job once its tuning is in one of `phases`."""

    def is_there(item: Json) -> bool:
        return ((item.get("status") or {}).get("tuning") or {}).get("phase") in phases

    return await wait_for(user, job_path(job), is_there, within_s=within_s)


def has_measured(counts: int) -> Callable[[Json], bool]:
    """Whether the curve of a job has so many counts of cores."""
    return lambda item: len(((item.get("status") or {}).get("tuning") or {}).get("steps") or ()) >= counts


async def limits_of(user: Client, job: str) -> list[tuple[str, int]]:
    """Of every rank: the cores its kubelet says it has, and how often it was restarted."""
    statuses = [pod["status"]["containerStatuses"][0] for pod in await pods_of(user, job)]
    return [(status["resources"]["limits"]["cpu"], status["restartCount"]) for status in statuses]


async def reasons_on(client: Client, namespace: str, pod: str) -> set[str]:
    query = {"fieldSelector": f"involvedObject.name={pod}"}
    listing = await client.list_pages(f"/api/v1/namespaces/{namespace}/events", query)
    return {event["reason"] for event in listing["items"]}


async def wait_until(holds: Callable[[], Any], *, within_s: float) -> None:
    """Until what `holds` awaits is true; the API has no watch over all that is asked here."""
    ends_s = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < ends_s, f"not so after {within_s} s"
        await asyncio.sleep(0.3)


async def run_undisturbed(cluster: LocalCluster, user: Client, name: str, number: int) -> str:
    """A job with cores of its own on that node; its pod, once the agent knows how busy its GPUs are in peace."""
    job = training(name, cores_needed=4, node=f"node-{number:04}")
    job["spec"]["cpusPerReplica"] = 4
    await wait_for_phase(user, await submit(user, job), "Running")
    (pod,) = await pods_of(user, f"default/{name}")
    began: list[float] = []

    async def has_learned() -> bool:
        measured, rounds = await looks(cluster, number, pod["metadata"]["uid"])
        if measured:
            began.append(rounds)
        return measured and rounds >= began[0] + 2 * ContentionConfig().learn_windows

    await wait_until(has_learned, within_s=120)
    return str(pod["metadata"]["name"])


async def looks(cluster: LocalCluster, number: int, pod_uid: str) -> tuple[bool, float]:
    """Whether that agent measures the GPUs of the pod, and how often it has looked at its node."""
    url = f"http://127.0.0.1:{cluster.ports[f'agent-{number}']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    measured = any(line.startswith("coda_gpu_utilization_ratio") and pod_uid in line for line in lines)
    (rounds,) = [line for line in lines if line.startswith("coda_agent_window_duration_seconds_count")]
    return measured, float(rounds.split()[1])


async def has_profile(admin: Client, node: str) -> bool:
    try:
        return bool((await profile(admin, node)).get("status"))
    except NotFound:
        return False


async def profile(admin: Client, node: str) -> Json:
    return await admin.get(f"/apis/coda.scheduler/v1alpha1/nodeprofiles/{node}")


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


async def test_a_job_is_tuned_to_its_optimum_without_a_restart(cluster: LocalCluster, user: Client) -> None:
    job = await submit(user, training("tuned", cores_needed=7))
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


async def test_both_ranks_of_a_job_are_resized(user: Client) -> None:
    job = await submit(user, training("pair", cores_needed=10, replicas=2, gpus=2))
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]
    answer = tuned["tuning"]["answer"]["coresPerReplica"]
    assert abs(answer - 10) <= 1
    assert await limits_of(user, job) == [(str(answer), 0)] * 2


async def test_an_agent_killed_while_it_tunes_goes_on_where_it_was(cluster: LocalCluster, user: Client) -> None:
    job = await submit(user, training("resumed", cores_needed=6, node="node-0000"))
    seen = []
    for windows in (1, 2):
        item = await wait_for(user, job_path(job), has_measured(windows), within_s=TUNED_WITHIN_S)
        await cluster.kill("agent-0")
        seen.append({step["coresPerReplica"] for step in item["status"]["tuning"]["steps"]})
        await cluster.start("agent-0")
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert abs(tuned["answer"]["coresPerReplica"] - 6) <= 1
    assert seen[0] | seen[1] <= {step["coresPerReplica"] for step in tuned["steps"]}
    assert [restarts for _cores, restarts in await limits_of(user, job)] == [0]


async def test_an_api_server_that_was_away_delays_a_tuning_and_no_more(cluster: LocalCluster, user: Client) -> None:
    job = await submit(user, training("patient", cores_needed=6, node="node-0001"))
    await wait_for_tuning(user, job, "Wishing")
    await cluster.restart("kube-apiserver")
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert abs(tuned["answer"]["coresPerReplica"] - 6) <= 1
    assert cluster.is_running("agent-1")


async def test_an_aggressor_is_throttled_and_let_go_when_it_calms_down(
    cluster: LocalCluster, user: Client, admin: Client, aggressor: Callable[[str], Any]
) -> None:
    pod = await run_undisturbed(cluster, user, "victim", 0)
    await aggressor("node-0000")

    async def is_told(reason: str) -> bool:
        return reason in await reasons_on(admin, BATCH, "aggressor") & await reasons_on(admin, "default", pod)

    await wait_until(lambda: is_told("Throttled"), within_s=30)
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

    await wait_until(is_throttled, within_s=30)
    await cluster.kill("agent-1")
    before = cluster.log_path("agent-1").stat().st_size
    await cluster.start("agent-1")
    said = cluster.log_path("agent-1").read_text()[before:]
    assert "put back what an earlier agent left" in said


async def test_what_the_agent_found_on_its_node_is_a_node_profile(admin: Client) -> None:
    for node in ("node-0000", "node-0001"):
        await wait_until(partial(has_profile, admin, node), within_s=60)  # until its GPUs have settled
        status = (await profile(admin, node))["status"]
        assert (status["cores"], status["gpuCount"], status["socketCount"]) == (32, 8, 2)
        assert [socket["cpus"] for socket in status["sockets"]] == ["0-15", "16-31"]
        assert {socket["peakSource"] for socket in status["sockets"]} == {"Configured"}
        assert status["bandwidth"]["control"] == "Percent"
        assert {gpu["health"] for gpu in status["gpus"]} == {"ready"}
        assert {link["path"] for link in status["links"]} == {"System"}
    first, second = [(await profile(admin, node))["status"]["gpus"] for node in ("node-0000", "node-0001")]
    assert {gpu["uuid"] for gpu in first}.isdisjoint({gpu["uuid"] for gpu in second})


async def test_a_machine_that_starts_anew_takes_its_agent_with_it_and_loses_nothing_else(
    cluster: LocalCluster, user: Client
) -> None:
    job = await submit(user, training("rebooted", cores_needed=5, node="node-0000"))
    await wait_for_tuning(user, job, "Measuring")
    await cluster.kill("machines")
    await wait_until(lambda: ended(cluster, "agent-0"), within_s=15)
    await wait_until(lambda: ended(cluster, "agent-1"), within_s=15)
    for part in ("machines", "agent-0", "agent-1"):
        await cluster.start(part)
    tuned = (await wait_for_tuning(user, job, "Tuned"))["status"]["tuning"]
    assert abs(tuned["answer"]["coresPerReplica"] - 5) <= 1
    await wait_for_phase(user, job, "Running")


async def ended(cluster: LocalCluster, part: str) -> bool:
    return not cluster.is_running(part)
