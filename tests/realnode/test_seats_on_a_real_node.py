"""Two pods on one GPU, by a real kubelet and containerd: a whole GPU for one, a seat on it for the other.

The GPUs are make-believe, everything else is real: the agent's DaemonSet as the chart renders it, the files that it
copies onto the node, the mounts, the socket, and the coordinator's first order. One machine, one story."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_lab.images.image import AGENT
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.realnode.node import CONTAINERD, KUBELET, RealNode
from coda_lab.spec import ClusterSpec
from tests.deploy.charts import Helm
from tests.e2e.jobs import wait_for, wait_gone
from tests.realnode.agents import Agents
from tests.realnode.scene import PATIENCE_S, PODS, devices_of, eventually, guaranteed_pod, is_running, main_status
from tests.realnode.training import idle_gpus

NODE = "/api/v1/nodes/real-0"
PROFILE = "/apis/coda.scheduler/v1alpha1/nodeprofiles/real-0"
SHARING = "coda.scheduler/sharing"
SEATS = 4
SPEC = ClusterSpec(nodes="", real_node_cores=8)

# Without torch: what `framework/` does is tested elsewhere, here that all of it is there.
JOB = """
import json, os, socket, sys, time
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect(os.environ["CODA_SOCKET"])
agent.send(json.dumps({"v": 1, "type": "hello", "control": "full"}).encode())
order = json.loads(agent.recv(1 << 16))
maps = open("/proc/self/maps").read()
print(json.dumps({
    "order": order,
    "gpu": os.environ["NVIDIA_VISIBLE_DEVICES"],
    "python": sys.modules["sitecustomize"].__file__,
    "is_preloaded": os.environ["CODA_LIBRARY"] in maps,
    "may_write": [name for name in ("lib", "python", "agent") if os.access(f"/run/coda/{name}", os.W_OK)],
}), flush=True)
time.sleep(1000000)
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("needs_vm"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(needs_vm: None) -> AsyncIterator[LocalCluster]:
    async with running_cluster(SPEC, tell=print) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("admin") as client:
        yield client


def pod(name: str, resource: str, **more: str) -> Json:
    """A pod that idles, with one of these. `more`: further resources."""
    found = guaranteed_pod(name, cores="50m", gpus=0)
    amounts = {"cpu": "50m", "memory": "128Mi", resource: "1", **more}
    found["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return found


async def running(admin: Client, name: str) -> Json:
    return await wait_for(admin, f"{PODS}/{name}", is_running, within_s=PATIENCE_S)


async def offered(admin: Client, resource: str, count: int) -> None:
    """Wait until the node has so many for pods."""

    def has(item: Json) -> bool:
        return bool(item["status"]["allocatable"].get(resource) == str(count))

    await wait_for(admin, NODE, has, within_s=PATIENCE_S)


async def said_by(node: RealNode, name: str) -> dict[str, Any]:
    """What the job's one line says."""
    where = f"/var/log/pods/default_{name}_*/main/0.log"

    async def is_there() -> bool:
        return (await node.run("/bin/sh", "-c", f"grep -q order {where}")).code == 0

    await eventually(is_there, f"{name} got no order")
    line = (await node.run("/bin/sh", "-c", f"grep order {where}")).check()
    found: dict[str, Any] = json.loads(line.split(" stdout F ", 1)[1])
    return found


def is_unschedulable(item: Json) -> bool:
    return any(each.get("reason") == "Unschedulable" for each in item["status"].get("conditions", ()))


def identities(pods: list[Json]) -> list[tuple[str, int]]:
    return [(main_status(item)["containerID"], main_status(item)["restartCount"]) for item in pods]


async def test_a_guaranteed_pod_and_pods_with_seats_on_one_gpu(
    cluster: LocalCluster, admin: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = cluster.real_node
    await idle_gpus(node, PATIENCE_S)
    agents = await Agents.prepared(node, admin, Helm.at(tmp_path_factory.mktemp("helm")))
    agent = await agents.install("agent.sharing=true")

    # 1. A pod has a GPU whole. Which one is the other plugin's choice; the profile says what its seats are called.
    await admin.create(PODS, pod("whole", "nvidia.com/gpu", **{SHARING: "1"}))
    await running(admin, "whole")
    (uuid,) = {device for device in await devices_of(node, "whole") if device.startswith("GPU-")}
    profile = await wait_for(
        admin,
        PROFILE,
        lambda item: all("index" in gpu for gpu in item.get("status", {}).get("gpus") or [{}]),
        within_s=PATIENCE_S,
    )
    index = {gpu["uuid"]: gpu["index"] for gpu in profile["status"]["gpus"]}[uuid]
    seat = f"coda.scheduler/gpu-{index}"
    await offered(admin, seat, SEATS)

    # 2. A user may not sit down beside it.
    async with cluster.client("user") as user:
        with pytest.raises(Rejected, match="only Coda gives seats on shared GPUs"):
            await user.create(PODS, pod("mine", seat))

    # 3. A pod with a seat there: everything is in its container, and the agent paces it.
    job = pod("seat-0", seat)
    (container,) = job["spec"]["containers"]
    container |= {"image": f"{AGENT.repository}:{metadata.version('coda')}", "imagePullPolicy": "Never"}
    container["command"] = ["python", "-c", JOB]
    await admin.create(PODS, job)
    await running(admin, "seat-0")
    said = await said_by(node, "seat-0")
    assert (said["gpu"], said["is_preloaded"], said["may_write"]) == (uuid, True, [])
    assert said["python"] == "/run/coda/python/sitecustomize.py"
    assert (said["order"]["gpu"], said["order"]["alone"]) == (uuid, False)
    assert said["order"]["share"] < 1000

    # 4. Four seats, and the fifth pod waits with a reason.
    for number in range(1, SEATS + 1):
        await admin.create(PODS, pod(f"seat-{number}", seat))
        if number < SEATS:
            await running(admin, f"seat-{number}")
    waits = await wait_for(admin, f"{PODS}/seat-{SEATS}", is_unschedulable, within_s=PATIENCE_S)
    assert f"Insufficient {seat}" in json.dumps(waits["status"]["conditions"])
    seated = [await admin.get(f"{PODS}/{name}") for name in ("whole", "seat-0", "seat-1", "seat-2", "seat-3")]
    devices = [one for name in ("seat-0", "seat-1", "seat-2", "seat-3") for one in await devices_of(node, name)]
    assert sorted(devices) == [f"{uuid}::{number}" for number in range(SEATS)]

    # 5. Kubelet, containerd and agent are killed: the pods run on, and the seats are there again, all of them taken.
    await node.kill(KUBELET)
    await node.kill(CONTAINERD)
    (await node.run("/bin/kill", "-KILL", str(await agents.process(agent)))).check()
    await node.start_containerd()
    await node.start_kubelet()
    await agents.ready(restarts=1)
    await offered(admin, seat, SEATS)
    await offered(admin, SHARING, 128)
    now = [await running(admin, item["metadata"]["name"]) for item in seated]
    assert identities(now) == identities(seated)
    assert is_unschedulable(await admin.get(f"{PODS}/seat-{SEATS}"))

    # 6. Who leaves makes room.
    await admin.delete(f"{PODS}/seat-2")
    await wait_gone(admin, f"{PODS}/seat-2", within_s=PATIENCE_S)
    await running(admin, f"seat-{SEATS}")
    assert await devices_of(node, f"seat-{SEATS}") == {devices[2]}
