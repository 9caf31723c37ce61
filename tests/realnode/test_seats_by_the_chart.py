"""Seats by the agent's DaemonSet, as the chart renders it: its mounts are enough, and its image has the files.

The rest of the story is told by `test_seats_on_a_real_node`, which needs no image of the agent. Here the job itself is
a Python with the library preloaded, and hears the first order of the coordinator."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_lab.images.image import AGENT
from coda_lab.local.cluster import LocalCluster
from coda_lab.realnode.node import RealNode
from coda_lab.spec import ClusterSpec
from tests.deploy.charts import Helm
from tests.e2e.jobs import wait_for
from tests.realnode.agents import Agents
from tests.realnode.ending import real_cluster
from tests.realnode.scene import PATIENCE_S, PODS, devices_of, eventually
from tests.realnode.seats import PROFILE, SEATS, SHARING, is_numbered, offered, pod, running
from tests.realnode.training import idle_gpus

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
    "python": sys.modules["coda_torch"].__file__,
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
    async with real_cluster(SPEC) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("admin") as client:
        yield client


async def said_by(node: RealNode, name: str) -> dict[str, Any]:
    """What the job's one line says."""
    where = f"/var/log/pods/default_{name}_*/main/0.log"

    async def is_there() -> bool:
        return (await node.run("/bin/sh", "-c", f"grep -q order {where}")).code == 0

    await eventually(is_there, f"{name} got no order")
    line = (await node.run("/bin/sh", "-c", f"grep order {where}")).check()
    found: dict[str, Any] = json.loads(line.split(" stdout F ", 1)[1])
    return found


async def test_the_charts_daemon_set_offers_seats_and_paces_who_sits_there(
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
    profile = await wait_for(admin, PROFILE, is_numbered, within_s=PATIENCE_S)
    index = {gpu["uuid"]: gpu["index"] for gpu in profile["status"]["gpus"]}[uuid]
    seat = f"coda.scheduler/gpu-{index}"
    await offered(admin, seat, SEATS)

    # 2. A pod with a seat there: everything is in its container, and the agent paces it.
    job = pod("seat-0", seat)
    (container,) = job["spec"]["containers"]
    container |= {"image": f"{AGENT.repository}:{metadata.version('coda')}", "imagePullPolicy": "Never"}
    container["command"] = ["python", "-c", JOB]
    await admin.create(PODS, job)
    await running(admin, "seat-0")
    said = await said_by(node, "seat-0")
    assert (said["gpu"], said["is_preloaded"], said["may_write"]) == (uuid, True, [])
    assert said["python"] == "/run/coda/python/coda_torch/__init__.py"
    assert (said["order"]["gpu"], said["order"]["alone"]) == (uuid, False)
    assert said["order"]["share"] < 1000

    # 3. The agent is killed: the seats are there again.
    (await node.run("/bin/kill", "-KILL", str(await agents.process(agent)))).check()
    await agents.ready(restarts=1)
    await offered(admin, seat, SEATS)
    await admin.create(PODS, pod("next", seat))
    await running(admin, "next")
