"""A real kubelet, containerd, runc and kernel under the local control plane with Coda: one node for all tests."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_lab.emulators.nvml.devices import GIB, Device, Process
from coda_lab.emulators.nvml.library import build, environment_for
from coda_lab.emulators.nvml.state import NvmlState
from coda_lab.host.errors import LabFailure
from coda_lab.host.processes import python_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.realnode.configuration import gpu_ids
from coda_lab.realnode.node import GPU_PLUGIN, KUBELET, RealNode
from coda_lab.realnode.vm import SHARE
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import pods_of, submit, wait_for, wait_for_phase, wait_gone
from tests.realnode.ending import real_cluster
from tests.realnode.scene import (
    PATIENCE_S,
    PODS,
    allocatable_gpus,
    cpu_max,
    devices_of,
    eventually,
    guaranteed_pod,
    is_running,
    main_status,
    pending_resize,
    resize,
    training_job,
    wait_until_resized,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),  # an emulated machine comes up in a minute, on a busy one in many
    pytest.mark.usefixtures("needs_vm"),
    pytest.mark.asyncio(loop_scope="module"),
]

CORES = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(needs_vm: None) -> AsyncIterator[LocalCluster]:
    """The control plane with Coda, and no node but the real one."""
    async with real_cluster(ClusterSpec(nodes="", real_node_cores=CORES)) as running:
        yield running


@pytest.fixture
def node(cluster: LocalCluster) -> RealNode:
    return cluster.real_node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("admin") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod(admin: Client) -> Json:
    """A plain Guaranteed pod with one core and one GPU, running on the real node for all tests."""
    await admin.create(PODS, guaranteed_pod("plain", cores="1", gpus=1))
    return await wait_for(admin, f"{PODS}/plain", is_running, within_s=PATIENCE_S)


async def test_the_node_is_ready_and_offers_eight_gpus(admin: Client, node: RealNode) -> None:
    status = (await admin.get(f"/api/v1/nodes/{node.name}"))["status"]
    assert status["allocatable"]["nvidia.com/gpu"] == "8"
    assert status["allocatable"]["cpu"] == str(CORES)
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
    assert (await node.read("/proc/sys/kernel/osrelease")).strip() == status["nodeInfo"]["kernelVersion"]


async def test_a_training_job_starts_there_with_devices_of_its_own(
    cluster: LocalCluster, admin: Client, node: RealNode, pod: Json
) -> None:
    async with cluster.client("user") as user:
        job = await submit(user, training_job("real", gpus=2))
        await wait_for_phase(user, job, "Running", within_s=PATIENCE_S)
        (rank,) = await pods_of(user, job)
    assert rank["spec"]["nodeName"] == node.name
    name = rank["metadata"]["name"]
    held = await devices_of(node, name)
    assert len(held) == 2
    assert held < set(gpu_ids())
    assert held.isdisjoint(await devices_of(node, "plain"))
    assert set((await variable(node, rank, "NVIDIA_VISIBLE_DEVICES")).split(",")) == held
    assert await variable(node, rank, "RANK") == "0"
    assert await cpu_max(node, rank, of_container=True) == "100000 100000"
    await admin.delete("/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs/real")
    await wait_gone(admin, f"{PODS}/{name}", within_s=PATIENCE_S)


async def variable(node: RealNode, pod: Json, name: str) -> str:
    """A variable of the container's first process."""
    folder = await node.container_cgroup(pod["metadata"]["uid"], main_status(pod)["containerID"])
    first = (await node.read(f"{folder}/cgroup.procs")).split()[0]
    environ = (await node.read(f"/proc/{first}/environ")).split("\0")
    return dict(entry.split("=", 1) for entry in environ if entry)[name]


async def test_a_resize_in_place_reaches_the_kernel(admin: Client, node: RealNode, pod: Json) -> None:
    assert await cpu_max(node, pod, of_container=True) == "100000 100000"
    for cores, limit in (("1500m", "150000 100000"), ("500m", "50000 100000"), ("1", "100000 100000")):
        await resize(admin, "plain", cores)
        resized = await wait_until_resized(admin, "plain", cores)
        assert await cpu_max(node, pod, of_container=True) == limit
        assert await cpu_max(node, pod, of_container=False) == limit
        assert main_status(resized)["restartCount"] == 0
        assert main_status(resized)["containerID"] == main_status(pod)["containerID"]


async def test_a_resize_beyond_the_node_is_refused(admin: Client, pod: Json) -> None:
    with pytest.raises(Rejected, match="enough allocatable resources") as refused:
        await resize(admin, "plain", str(CORES + 1))
    assert refused.value.status == 403


async def test_a_resize_that_fits_only_later_is_deferred_and_then_done(
    admin: Client, node: RealNode, pod: Json
) -> None:
    await admin.create(PODS, guaranteed_pod("neighbour", cores=str(CORES - 2), gpus=0))
    await wait_for(admin, f"{PODS}/neighbour", is_running, within_s=PATIENCE_S)
    await resize(admin, "plain", str(CORES - 1))

    await wait_for(admin, f"{PODS}/plain", lambda item: pending_resize(item) == "Deferred", within_s=PATIENCE_S)
    assert await cpu_max(node, pod, of_container=True) == "100000 100000"
    await admin.delete(f"{PODS}/neighbour")
    await wait_until_resized(admin, "plain", str(CORES - 1))
    assert await cpu_max(node, pod, of_container=True) == f"{CORES - 1}00000 100000"
    await resize(admin, "plain", "1")
    await wait_until_resized(admin, "plain", "1")


async def test_a_sick_gpu_is_not_offered_and_a_healed_one_is_again(admin: Client, node: RealNode) -> None:
    await node.set_unhealthy(gpu_ids()[7])
    await allocatable_gpus(admin, node, 7)
    await node.set_unhealthy()
    await allocatable_gpus(admin, node, 8)


async def test_gpus_go_with_the_device_plugin_and_come_back_with_it(admin: Client, node: RealNode) -> None:
    assert await node.kill(GPU_PLUGIN) == -signal.SIGKILL
    await allocatable_gpus(admin, node, 0)
    await node.start_gpu_plugin()
    await allocatable_gpus(admin, node, 8)


async def test_a_kubelet_restart_keeps_the_container_its_limit_and_its_devices(
    admin: Client, node: RealNode, pod: Json
) -> None:
    held = await devices_of(node, "plain")
    await resize(admin, "plain", "750m")
    await wait_until_resized(admin, "plain", "750m")
    await node.kill(KUBELET)
    assert await cpu_max(node, pod, of_container=True) == "75000 100000"
    await node.start_kubelet()

    await eventually(lambda: holds(node, "plain", held), "the kubelet does not list the pod's devices again")
    await allocatable_gpus(admin, node, 8)
    after = await wait_for(admin, f"{PODS}/plain", is_running, within_s=PATIENCE_S)
    assert main_status(after)["containerID"] == main_status(pod)["containerID"]
    assert main_status(after)["restartCount"] == 0
    assert await cpu_max(node, pod, of_container=True) == "75000 100000"


async def holds(node: RealNode, pod: str, devices: set[str]) -> bool:
    """False also while the kubelet does not answer."""
    try:
        return await devices_of(node, pod) == devices
    except LabFailure:
        return False


async def test_emulated_nvml_is_loaded_there_and_what_it_says_is_changed_here(node: RealNode, tmp_path: Path) -> None:
    library = await asyncio.to_thread(build, tmp_path)
    await asyncio.to_thread(shutil.copyfile, library, node.share / library.name)
    state = NvmlState(path=node.share / "nvml-state", devices=[Device(uuid=each) for each in gpu_ids()])
    environ = environment_for(Path(SHARE) / library.name, Path(SHARE) / "nvml-state", {"PYTHONPATH": python_path()})
    asked = (sys.executable, "-P", "-c", _ASK_NVML)

    said = await node.run(*asked, environ=environ, timeout_s=PATIENCE_S)
    assert json.loads(said.check()) == dict.fromkeys(gpu_ids(), 0)
    state.set_processes(gpu_ids()[3], [Process(pid=1, memory_bytes=GIB)])
    said = await node.run(*asked, environ=environ, timeout_s=PATIENCE_S)
    assert json.loads(said.check()) == {each: GIB if each == gpu_ids()[3] else 0 for each in gpu_ids()}


_ASK_NVML = """
import json, pynvml
pynvml.nvmlInit()
gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps({pynvml.nvmlDeviceGetUUID(gpu): pynvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in gpus}))
"""


async def test_the_share_is_written_and_read_from_both_sides(node: RealNode) -> None:
    await asyncio.to_thread((node.share / "from-here").write_text, "here")
    assert await node.read("/coda/from-here") == "here"
    (await node.run("/bin/sh", "-c", "printf there > /coda/from-there")).check()
    assert await asyncio.to_thread((node.share / "from-there").read_text) == "there"


async def test_a_program_is_started_logged_and_killed(node: RealNode) -> None:
    await node.start("teller", "/bin/sh", "-c", "echo told; exec sleep 1000")

    async def has_told() -> bool:
        return node.log("teller").read_text() == "told\n"

    await eventually(has_told, "what a program says does not reach its log")
    assert await node.kill("teller", signal.SIGTERM) == -signal.SIGTERM


async def test_under_the_static_cpu_manager_a_guaranteed_pod_cannot_be_resized(
    admin: Client, node: RealNode, pod: Json
) -> None:
    await node.restart_kubelet({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"})
    try:
        await admin.create(PODS, guaranteed_pod("pinned", cores="1", gpus=0))
        pinned = await wait_for(admin, f"{PODS}/pinned", is_running, within_s=PATIENCE_S)
        folder = await node.container_cgroup(pinned["metadata"]["uid"], main_status(pinned)["containerID"])
        assert len((await node.read(f"{folder}/cpuset.cpus")).strip()) == 1  # one core of its own
        await resize(admin, "pinned", "2")
        await wait_for(admin, f"{PODS}/pinned", lambda item: pending_resize(item) == "Infeasible", within_s=PATIENCE_S)
    finally:
        await admin.delete(f"{PODS}/pinned")
        await wait_gone(admin, f"{PODS}/pinned", within_s=PATIENCE_S)
        await node.restart_kubelet({})
