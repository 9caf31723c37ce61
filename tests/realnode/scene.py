"""What the tests of the real node do all the time: pods made for it, and what they look at there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from coda_kube.api.client import JSON_PATCH, Client
from coda_kube.objects.json_types import Json
from coda_lab.realnode.configuration import LABEL_REAL
from coda_lab.realnode.images import BUSYBOX
from coda_lab.realnode.node import RealNode
from tests.e2e.jobs import wait_for

PATIENCE_S = 900.0
"""Usually 30 s; but the machine is emulated, and other work may take nearly all of this one. A kubelet that is stuck is
started again after 7 minutes."""
PODS = "/api/v1/namespaces/default/pods"


def guaranteed_pod(name: str, *, cores: str, gpus: int) -> Json:
    """A plain pod whose only container idles."""
    amounts = {"cpu": cores, "memory": "64Mi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {LABEL_REAL: "true"},
            "terminationGracePeriodSeconds": 1,
            "containers": [idling({"requests": amounts, "limits": amounts})],
        },
    }


def training_job(name: str, *, gpus: int) -> Json:
    return {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "gpusPerReplica": gpus,
            "cpusPerReplica": 1,
            "template": {
                "spec": {
                    "nodeSelector": {LABEL_REAL: "true"},
                    "terminationGracePeriodSeconds": 1,
                    "containers": [idling({})],
                }
            },
        },
    }


def idling(resources: dict[str, Any]) -> Json:
    return {"name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"], "resources": resources}


def is_running(pod: Json) -> bool:
    return any(status.get("started") for status in pod.get("status", {}).get("containerStatuses", ()))


def main_status(pod: Json) -> Json:
    status: Json = pod["status"]["containerStatuses"][0]
    return status


def pending_resize(pod: Json) -> str:
    """Why the kubelet has not done what was asked: Deferred or Infeasible; empty when nothing is pending."""
    conditions = pod["status"].get("conditions", ())
    return next((str(each["reason"]) for each in conditions if each["type"] == "PodResizePending"), "")


async def resize(client: Client, name: str, cores: str) -> Json:
    """Ask for other cores; the pod as the API server answered."""
    where = "/spec/containers/0/resources"
    changes = [{"op": "replace", "path": f"{where}/{kind}/cpu", "value": cores} for kind in ("requests", "limits")]
    return await client.patch(f"{PODS}/{name}/resize", changes, JSON_PATCH)


async def wait_until_resized(client: Client, name: str, cores: str) -> Json:
    """The pod once its kubelet reports these cores."""

    def reported(pod: Json) -> bool:
        return bool(main_status(pod).get("resources", {}).get("limits", {}).get("cpu") == cores)

    return await wait_for(client, f"{PODS}/{name}", reported, within_s=PATIENCE_S)


async def cpu_max(node: RealNode, pod: Json, *, of_container: bool) -> str:
    container = main_status(pod)["containerID"] if of_container else ""
    folder = await node.container_cgroup(pod["metadata"]["uid"], container)
    return (await node.read(f"{folder}/cpu.max")).strip()


async def allocatable_gpus(client: Client, node: RealNode, count: int) -> None:
    """Wait until the API server says that the node offers `count` GPUs."""

    def offered(item: Json) -> bool:
        return bool(item["status"]["allocatable"].get("nvidia.com/gpu") == str(count))

    await wait_for(client, f"/api/v1/nodes/{node.name}", offered, within_s=PATIENCE_S)


async def devices_of(node: RealNode, pod: str) -> set[str]:
    """The GPUs that pod-resources says are the pod's."""
    listed = await node.pod_resources()
    return {
        device
        for entry in listed.get("podResources", ())
        if entry["name"] == pod
        for container in entry["containers"]
        for devices in container.get("devices", ())
        for device in devices["deviceIds"]
    }


async def eventually(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Until `look` says so: for files in the machine, which tell nobody that they changed."""
    ends_s = time.monotonic() + PATIENCE_S
    while not await look():
        assert time.monotonic() < ends_s, what
        await asyncio.sleep(0.2)
