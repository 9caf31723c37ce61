"""The simulated kubelets on a real API server, node controller included, with pods bound by hand."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from coda_kube.api.client import MERGE, Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_lab.kubelets.fleet import LOST
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import KUBELETS, ClusterSpec
from tests.e2e.jobs import wait_for, wait_gone
from tests.lab.kubelets.kubelet_objects import pod_json

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="3x8x48", racks=1, coda=False)
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(autouse=True)
def checked() -> None:
    """Nothing of Coda runs here, and over-commit is made on purpose: no invariants to check."""


async def bind(client: Client, name: str, node: str, *, gpus: str = "0", **simulated: Any) -> str:
    """Create a pod that is bound already, with simulation annotations; its path."""
    resources = {"nvidia.com/gpu": gpus}
    pod = pod_json(name, node=node, **simulated)
    pod["metadata"] = {"name": name, "annotations": pod["metadata"]["annotations"]}
    pod["spec"] |= {"restartPolicy": "Never"}
    pod["spec"]["containers"][0]["resources"] = {"requests": resources, "limits": resources}
    await client.create(PODS, {"metadata": pod["metadata"], "spec": pod["spec"]})
    return f"{PODS}/{name}"


def is_in(*phases: str) -> Callable[[Json], bool]:
    return lambda pod: pod["status"]["phase"] in phases


def main_state(pod: Json) -> Json:
    state: Json = pod["status"]["containerStatuses"][0]["state"]
    return state


def is_node_ready(status: str) -> Callable[[Json], bool]:
    return lambda node: any(c["type"] == "Ready" and c["status"] == status for c in node["status"]["conditions"])


def logs(cluster: LocalCluster, name: str, *options: str) -> str:
    argv = (*cluster.kubectl, "logs", name, *options)
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


async def test_over_commit_is_refused_and_a_finished_pod_makes_room(cluster: LocalCluster, admin: Client) -> None:
    first = await bind(admin, "fits", "node-0000", gpus="6", run_seconds="1")
    second = await bind(admin, "too-much", "node-0000", gpus="3")
    refused = await wait_for(admin, second, is_in("Failed"))
    assert refused["status"]["reason"] == "OutOfnvidia.com/gpu"
    assert "requested: 3, used: 6, capacity: 8" in refused["status"]["message"]

    ended = await wait_for(admin, first, is_in("Succeeded"))
    assert main_state(ended)["terminated"]["exitCode"] == 0
    third = await bind(admin, "fits-now", "node-0000", gpus="8")
    await wait_for(admin, third, is_in("Running"))


async def test_kubectl_shows_the_log_and_follows_it_to_the_end(cluster: LocalCluster, admin: Client) -> None:
    path = await bind(admin, "talks", "node-0001", run_seconds="3", exit_code="7")
    await wait_for(admin, path, is_in("Running"))
    first, last = logs(cluster, "talks", "--follow").splitlines()
    assert first.endswith("started on node-0001, runs for 3 s")
    assert last.endswith("with exit code 7")
    assert logs(cluster, "talks", "--tail=1").strip() == last
    failed = await wait_for(admin, path, is_in("Failed"))
    assert main_state(failed)["terminated"]["reason"] == "Error"


async def test_a_deleted_pod_ends_before_it_goes_and_one_that_never_started_goes_at_once(
    cluster: LocalCluster, admin: Client
) -> None:
    running = await bind(admin, "stops", "node-0001")
    stuck = await bind(admin, "stuck", "node-0001", image_pull="fail")
    await wait_for(admin, running, is_in("Running"))
    waits = await wait_for(admin, stuck, lambda pod: bool(pod["status"].get("containerStatuses")))
    assert main_state(waits)["waiting"]["reason"] in ("ErrImagePull", "ImagePullBackOff")
    for path in (running, stuck):
        await admin.delete(path)
    for path in (running, stuck):
        await wait_gone(admin, path)


async def test_a_lost_node_becomes_unknown_and_catches_up_when_it_returns(cluster: LocalCluster, admin: Client) -> None:
    node = "/api/v1/nodes/node-0002"
    ends = await bind(admin, "ends-unseen", "node-0002", run_seconds="5")
    deleted = await bind(admin, "deleted-unseen", "node-0002")
    for path in (ends, deleted):
        await wait_for(admin, path, is_in("Running"))
    await admin.patch(node, {"metadata": {"annotations": {LOST: "true"}}}, MERGE)
    await wait_for(admin, node, is_node_ready("Unknown"), within_s=60)
    late = await bind(admin, "bound-unseen", "node-0002")
    await admin.delete(deleted)
    assert (await admin.get(ends))["status"]["phase"] == "Running"
    assert "deletionTimestamp" in (await admin.get(deleted))["metadata"]

    await admin.patch(node, {"metadata": {"annotations": {LOST: None}}}, MERGE)
    await wait_for(admin, node, is_node_ready("True"))
    ended = main_state(await wait_for(admin, ends, is_in("Succeeded")))["terminated"]
    assert seconds_from_time(ended["finishedAt"]) - seconds_from_time(ended["startedAt"]) == 5
    await wait_gone(admin, deleted)
    await wait_for(admin, late, is_in("Running"))


async def test_killed_kubelets_start_again_without_disturbing_what_runs(cluster: LocalCluster, admin: Client) -> None:
    path = await bind(admin, "outlives", "node-0001", gpus="5", run_seconds="12")
    await wait_for(admin, path, is_in("Running"))
    await cluster.kill(KUBELETS, signal.SIGKILL)
    waiting = await bind(admin, "too-much-beside-it", "node-0001", gpus="4")
    await cluster.start(KUBELETS)

    await wait_for(admin, waiting, is_in("Failed"))
    ended = main_state(await wait_for(admin, path, is_in("Succeeded")))["terminated"]
    assert seconds_from_time(ended["finishedAt"]) - seconds_from_time(ended["startedAt"]) == 12
