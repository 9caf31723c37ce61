"""Two pods on one GPU, by a real kubelet and containerd: a whole GPU for one, a seat on it for the other.

The GPUs are make-believe. The kubelet, containerd, the kernel and the agent are real, and so are the files that the
agent copies onto the node, the mounts, the socket, and the coordinator's first order. One machine, one story: here with
the agent as a process on the node, in `test_seats_by_the_chart` as the chart's DaemonSet."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from coda_kube.api.client import Client, Rejected
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.host.paths import Settings
from coda_lab.host.processes import python_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.programs.gpu_library import write_bundle
from coda_lab.realnode.configuration import NVML_LIBRARY, NVML_STATE, portable_kubeconfig
from coda_lab.realnode.node import CONTAINERD, KUBELET, RealNode
from coda_lab.realnode.vm import SHARE
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import wait_for, wait_gone
from tests.realnode.ending import real_cluster
from tests.realnode.scene import PATIENCE_S, PODS, devices_of, eventually, main_status
from tests.realnode.seats import (
    PROFILE,
    SEATS,
    SHARING,
    identities,
    is_numbered,
    is_unschedulable,
    offered,
    pod,
    running,
)
from tests.realnode.training import idle_gpus

AGENT = "coda-agent"
SPEC = ClusterSpec(nodes="", real_node_cores=8)

# A process of the pod, as the kernel sees it: a Python of this machine, in the container's cgroup.
PROCESS = """
import json, socket
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect("/run/coda/agent.sock")
agent.send(json.dumps({"v": 1, "type": "hello", "control": "full"}).encode())
print(agent.recv(1 << 16).decode())
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


async def start_agent(cluster: LocalCluster) -> None:
    """As the DaemonSet has it, but that it is no container."""
    node = cluster.real_node
    config = node.share / "agent.kubeconfig"
    if not config.exists():
        text = (await cluster.agent_kubeconfig(node.name)).read_text()
        config.write_text(portable_kubeconfig(text, cluster.layout.certificate.read_bytes()))
        write_bundle(node.share / "framework", Settings.from_environ())
    environ = {
        "PYTHONPATH": python_path(),
        "LD_LIBRARY_PATH": NVML_LIBRARY.rpartition("/")[0],
        STATE_VARIABLE: NVML_STATE,
        "CODA_NODE_NAME": node.name,
        "CODA_KUBECONFIG": f"{SHARE}/agent.kubeconfig",
        "CODA_SHARING": "true",
        "CODA_SHARING_BUNDLE": f"{SHARE}/framework",
        "CODA_CALIBRATE": "false",
        "CODA_METRICS_PORT": "0",
    }
    await node.start(AGENT, sys.executable, "-P", "-m", "tests.realnode.one_process", environ=environ)


async def process_of(node: RealNode, admin: Client, name: str) -> str:
    """The folder of the container's cgroup."""
    item = await admin.get(f"{PODS}/{name}")
    return await node.container_cgroup(item["metadata"]["uid"], main_status(item)["containerID"])


async def environment_of(node: RealNode, folder: str) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of a container, and its mounts: where from, by where, each read-only."""
    pid = min(map(int, (await node.read(f"{folder}/cgroup.procs")).split()))
    said = (await node.run("/bin/sh", "-c", f"tr '\\0' '\\n' < /proc/{pid}/environ")).check()
    variables = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    rows = [line.split(" ") for line in (await node.read(f"/proc/{pid}/mountinfo")).splitlines()]
    mounts = {row[4]: row[3] for row in rows if row[4].startswith("/run/coda/") and "ro" in row[5].split(",")}
    return variables, mounts


async def test_a_guaranteed_pod_and_pods_with_seats_on_one_gpu(cluster: LocalCluster, admin: Client) -> None:
    node = cluster.real_node
    await idle_gpus(node, PATIENCE_S)
    await start_agent(cluster)

    # 1. A pod has a GPU whole. Which one is the other plugin's choice; the profile says what its seats are called.
    await admin.create(PODS, pod("whole", "nvidia.com/gpu", **{SHARING: "1"}))
    await running(admin, "whole")
    (uuid,) = {device for device in await devices_of(node, "whole") if device.startswith("GPU-")}
    profile = await wait_for(admin, PROFILE, is_numbered, within_s=PATIENCE_S)
    seat = f"coda.scheduler/gpu-{ {gpu['uuid']: gpu['index'] for gpu in profile['status']['gpus']}[uuid] }"
    await offered(admin, seat, SEATS)

    # 2. A user may not sit down beside it.
    async with cluster.client("user") as user:
        with pytest.raises(Rejected, match="only Coda gives seats on shared GPUs"):
            await user.create(PODS, pod("mine", seat))

    # 3. Four seats. Each container has everything; the fifth pod waits with a reason.
    names = [f"seat-{number}" for number in range(SEATS)]
    for name in names:
        await admin.create(PODS, pod(name, seat))
    for name in names:
        await running(admin, name)
    await admin.create(PODS, pod("fifth", seat))
    waits = await wait_for(admin, f"{PODS}/fifth", is_unschedulable, within_s=PATIENCE_S)
    assert f"Insufficient {seat}" in json.dumps(waits["status"]["conditions"])
    taken = [sorted(await devices_of(node, name)) for name in names]
    assert sorted(device for one in taken for device in one) == [f"{uuid}::{number}" for number in range(SEATS)]
    variables, mounts = await environment_of(node, await process_of(node, admin, "seat-0"))
    assert variables["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert variables["LD_PRELOAD"] == variables["CODA_LIBRARY"] == "/run/coda/lib/libcodagpu.so"
    assert mounts.keys() == {"/run/coda/lib", "/run/coda/python", "/run/coda/agent"}
    assert variables["CODA_SOCKET"] == "/run/coda/agent/agent.sock"
    assert variables["CODA_SHARE"] == "50"
    version = mounts["/run/coda/python"].removesuffix("/python")
    assert (await node.run("/bin/test", "-e", f"{version}/lib/x86_64/libcodagpu.so")).code == 0
    _, mounts_of_whole = await environment_of(node, await process_of(node, admin, "whole"))
    assert mounts_of_whole == mounts

    # 4. The kernel and the kubelet say who connects: the pod with a seat is paced, the one with the whole GPU is not.
    shares = {}
    for name in ("whole", "seat-0"):
        folder = await process_of(node, admin, name)
        script = f"echo $$ > {folder}/cgroup.procs && exec {sys.executable} -P -c {shlex.quote(PROCESS)}"
        order = json.loads((await node.run("/bin/sh", "-c", script, timeout_s=PATIENCE_S)).check())
        assert (order["gpu"], order["alone"]) == (uuid, False)
        shares[name] = order["share"]
    assert shares["whole"] == 1000
    assert shares["seat-0"] < 1000

    # 5. Kubelet, containerd and agent are killed: the pods run on, and the seats are there again, all of them taken.
    seated = [await admin.get(f"{PODS}/{name}") for name in ("whole", *names)]
    for part in (KUBELET, CONTAINERD, AGENT):
        await node.kill(part)
    await node.start_containerd()
    await node.start_kubelet()
    log = node.log(AGENT)
    said_before = log.read_text().count("the kubelet knows")
    await start_agent(cluster)

    async def is_known_again() -> bool:
        return log.read_text().count("the kubelet knows") >= said_before + 9

    await eventually(is_known_again, "the kubelet is not told of the seats again")
    await offered(admin, seat, SEATS)
    now = [await running(admin, item["metadata"]["name"]) for item in seated]
    assert identities(now) == identities(seated)
    assert [sorted(await devices_of(node, name)) for name in names] == taken
    assert is_unschedulable(await admin.get(f"{PODS}/fifth"))

    # 6. Who leaves makes room.
    await admin.delete(f"{PODS}/seat-2")
    await wait_gone(admin, f"{PODS}/seat-2", within_s=PATIENCE_S)
    await running(admin, "fifth")
    assert sorted(await devices_of(node, "fifth")) == taken[2]
