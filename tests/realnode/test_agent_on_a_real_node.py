"""The whole chain on one real node: the agent in the machine, its kubelet, its kernel, and Coda outside."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.emulators.load import Trainer
from coda_lab.emulators.nvml.library import build, environment_for
from coda_lab.host.processes import python_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.realnode.configuration import GPUS, gpu_ids
from coda_lab.realnode.node import RealNode
from coda_lab.realnode.vm import SHARE
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import pods_of, submit, wait_for, wait_for_phase, wait_gone
from tests.realnode.scene import (
    PATIENCE_S,
    PODS,
    cpu_max,
    devices_of,
    eventually,
    guaranteed_pod,
    is_running,
    main_status,
    training_job,
)
from tests.realnode.training import NVML_STATE, Training, following, idle_gpus

CORES = 8
START_CORES = CORES // GPUS  # what goes with one GPU there: a start takes no more (docs/decisions/0053)
WINDOW_S = 40.0  # its second half must have 10 rounds of an emulated agent in it
SETTLE_S = 2.0
TUNED_WITHIN_S = 1800.0  # 5 to 7 windows with their resizes
BUSY_CORES = 0.8
STATE = "/var/lib/coda"
AGENT = "agent"
PROFILE = "/apis/coda.scheduler/v1alpha1/nodeprofiles/real-0"
PATIENT = {"CODA_RESIZE_DEADLINE_S": "600"}
PARTS = ("extender-0", "extender-1")
SPEC = ClusterSpec(nodes="", real_node_cores=CORES, environ_by_part=dict.fromkeys(PARTS, PATIENT))

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),  # an emulated machine comes up in a minute, on a busy one in many
    pytest.mark.usefixtures("needs_vm"),
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The node's agent, seen from outside. `library`: its NVML, there."""

    node: RealNode
    library: str

    async def start(self) -> None:
        await self.node.start(AGENT, sys.executable, "-P", "-m", "coda_agent", environ=self._environ())

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        return await self.node.kill(AGENT, number)

    def said(self) -> str:
        return self.node.log(AGENT).read_text()

    async def gpus(self) -> dict[str, tuple[str, float]]:
        """The pod that its metrics name for each GPU, and how busy it is."""
        text = (await self.node.run(sys.executable, "-c", _SCRAPE, timeout_s=PATIENCE_S)).check()
        return {
            sample.labels["UUID"]: (sample.labels["pod"], sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "coda_gpu_utilization_ratio"
        }

    def _environ(self) -> dict[str, str]:
        settings = {
            "PYTHONPATH": python_path(),
            "CODA_NODE_NAME": self.node.name,
            "CODA_KUBECONFIG": f"{SHARE}/node/agent.kubeconfig",
            "CODA_STATE_DIR": STATE,
            "CODA_WINDOW_S": str(WINDOW_S),
            "CODA_SETTLE_S": str(SETTLE_S),
        }
        return environment_for(Path(self.library), Path(NVML_STATE), settings)


_SCRAPE = "import urllib.request as web; print(web.urlopen('http://127.0.0.1:9092/metrics').read().decode())"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(needs_vm: None) -> AsyncIterator[LocalCluster]:
    """The control plane with Coda, and no node but the real one."""
    async with running_cluster(SPEC, tell=print) as running:
        yield running


@pytest.fixture
def node(cluster: LocalCluster) -> RealNode:
    return cluster.real_node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("admin") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def user(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("user") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Agent:
    """The agent at work in the machine, for all tests."""
    node = cluster.real_node
    library = await asyncio.to_thread(build, tmp_path_factory.mktemp("nvml"))
    await asyncio.to_thread(shutil.copyfile, library, node.share / library.name)
    await idle_gpus(node, PATIENCE_S)
    started = Agent(node=node, library=f"{SHARE}/{library.name}")
    await started.start()
    return started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(cluster: LocalCluster, admin: Client) -> Json:
    """A pod without GPUs whose only process never rests."""
    pod = guaranteed_pod("busy", cores=str(BUSY_CORES), gpus=0)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "while :; do :; done"]
    await admin.create(PODS, pod)
    return await wait_for(admin, f"{PODS}/busy", is_running, within_s=PATIENCE_S)


def tuned_job(name: str, *, gpus: int) -> Json:
    """A job with automatic cores that uses a little CPU all the time."""
    job = training_job(name, gpus=gpus)
    job["spec"]["cpusPerReplica"] = "auto"
    amounts = {"memory": "64Mi"}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {"command": ["sh", "-c", "while :; do sleep 0.2; done"]}
    container["resources"] = {"requests": amounts, "limits": amounts}
    return job


async def trained(node: RealNode, user: Client, job: str, *, cores_needed: int) -> tuple[Json, Training]:
    """The pod of a job that runs on the node, and what it does there."""
    await wait_for_phase(user, job, "Running", within_s=PATIENCE_S)
    (pod,) = await pods_of(user, job)
    devices = frozenset(await devices_of(node, pod["metadata"]["name"]))
    folder = await node.container_cgroup(pod["metadata"]["uid"], main_status(pod)["containerID"])
    return pod, Training(node=node, folder=folder, devices=devices, job=job, cores_needed=cores_needed)


async def tuning_of(user: Client, job: str, *, phase: str = "", steps: int = 0) -> Json:
    """The job once its tuning is in that phase and has measured so many counts of cores."""

    def is_there(item: Json) -> bool:
        tuning = (item.get("status") or {}).get("tuning") or {}
        return len(tuning.get("steps") or ()) >= steps and phase in ("", tuning.get("phase"))

    return await wait_for(user, job_path(job), is_there, within_s=TUNED_WITHIN_S)


async def check_tuned(user: Client, training: Training, pod: Json) -> None:
    """The answer is what its GPUs need, and every step on the way to it stands in the status and was in the kernel."""
    item = await tuning_of(user, training.job, phase="Tuned")
    training.note(item)
    tuning, optimum = item["status"]["tuning"], training.cores_needed
    answer = {"coresPerReplica": optimum, "outcome": "Found", "start": START_CORES}
    assert (tuning["answer"], tuning["reason"]) == (answer, "Found")
    steps = [limit(cores) for cores in (START_CORES, *training.wished)]

    async def is_last() -> bool:
        return training.limits()[-1] == [steps[-1]] * 2

    await eventually(is_last, "the kernel does not have the answer's cores")
    for seen in zip(*training.limits(), strict=True):  # of the container, and of the pod
        assert [one for one, _again in groupby(seen)] == steps
    curve = {step["coresPerReplica"]: step["gpuUtilization"] for step in tuning["steps"]}
    assert curve.keys() == {START_CORES, *training.wished}
    assert curve == {cores: pytest.approx(Trainer().best * min(1, cores / optimum), abs=0.02) for cores in curve}
    (now,) = await pods_of(user, training.job)
    assert main_status(now)["containerID"] == main_status(pod)["containerID"]
    assert main_status(now)["restartCount"] == 0
    assert main_status(now)["resources"]["limits"]["cpu"] == str(optimum)


def limit(cores: float) -> str:
    """As the kernel says it."""
    return f"{round(cores * 100_000)} 100000"


async def remove(admin: Client, job: str, pod: Json) -> None:
    await admin.delete(job_path(job))
    await wait_gone(admin, f"{PODS}/{pod['metadata']['name']}", within_s=PATIENCE_S)


async def profile(admin: Client) -> Json:
    """What the agent says of the node, once the process that asks its driver has answered."""

    def has_gpus(item: Json) -> bool:
        return bool((item.get("status") or {}).get("gpus"))

    item = await wait_for(admin, PROFILE, has_gpus, within_s=PATIENCE_S)
    status: Json = item["status"]
    return status


async def test_the_agent_tells_what_the_node_is(agent: Agent, admin: Client) -> None:
    status = await profile(admin)
    assert (status["cores"], status["gpuCount"]) == (CORES, GPUS)
    assert {gpu["uuid"] for gpu in status["gpus"]} == set(gpu_ids())
    assert status["bandwidth"] == {"measured": False, "control": "None"}


async def test_a_job_is_tuned_by_resizes_that_its_kernel_shows(
    agent: Agent, node: RealNode, user: Client, admin: Client
) -> None:
    job = await submit(user, tuned_job("tuned", gpus=1))
    pod, training = await trained(node, user, job, cores_needed=5)
    async with following(training, user):
        await tuning_of(user, job, steps=1)
        shown = await agent.gpus()
        assert {uuid for uuid, (name, _share) in shown.items() if name} == training.devices
        assert {shown[uuid][0] for uuid in training.devices} == {pod["metadata"]["name"]}
        await check_tuned(user, training, pod)
    assert 3 in training.wished
    assert max(training.wished) > 5
    await remove(admin, job, pod)


async def test_a_busy_loop_gets_half_its_cores_and_all_again(agent: Agent, node: RealNode, busy: Json) -> None:
    halving = ("tests.realnode.halving", "/var/lib/coda-test", busy["metadata"]["uid"], str(BUSY_CORES), "measure")
    said = await node.run(
        sys.executable, "-P", "-m", *halving, environ={"PYTHONPATH": python_path()}, timeout_s=PATIENCE_S
    )
    own, halved, again = json.loads(said.check())
    assert own == pytest.approx(BUSY_CORES, rel=0.05)
    assert halved == pytest.approx(BUSY_CORES / 2, rel=0.05)
    assert again == pytest.approx(BUSY_CORES, rel=0.05)
    assert await cpu_max(node, busy, of_container=False) == limit(BUSY_CORES)


async def test_killed_in_the_middle_the_agent_leaves_nothing_behind_and_goes_on(
    agent: Agent, node: RealNode, user: Client, admin: Client, busy: Json
) -> None:
    job = await submit(user, tuned_job("resumed", gpus=1))
    pod, training = await trained(node, user, job, cores_needed=3)
    async with following(training, user):
        before = await tuning_of(user, job, steps=1)
        assert before["status"]["tuning"]["phase"] != "Tuned"
        assert await agent.kill() == -signal.SIGKILL
        await leave_halved(node, busy)
        await node.restart_kubelet()
        assert await cpu_max(node, busy, of_container=False) == limit(BUSY_CORES / 2)
        await agent.start()
        await eventually(lambda: has_cores(node, busy, BUSY_CORES), "the next agent does not put the limit back")
        await check_tuned(user, training, pod)
    assert f"put back what an earlier agent left: kubepods/pod{busy['metadata']['uid']}" in agent.said()
    assert main_status(await admin.get(f"{PODS}/busy"))["restartCount"] == 0
    assert "throttles" not in (status := await profile(admin)) or status["throttles"] == []
    await remove(admin, job, pod)


async def leave_halved(node: RealNode, pod: Json) -> None:
    """What an agent leaves that is killed while it holds a pod to half its cores."""
    halving = ("tests.realnode.halving", STATE, pod["metadata"]["uid"], str(BUSY_CORES), "die")
    said = await node.run(
        sys.executable, "-P", "-m", *halving, environ={"PYTHONPATH": python_path()}, timeout_s=PATIENCE_S
    )
    assert said.code == -signal.SIGKILL
    assert await has_cores(node, pod, BUSY_CORES / 2)


async def has_cores(node: RealNode, pod: Json, cores: float) -> bool:
    return await cpu_max(node, pod, of_container=False) == limit(cores)


async def test_a_second_agent_is_refused_and_the_first_one_ends_when_told(agent: Agent, node: RealNode) -> None:
    second = await node.run(
        sys.executable, "-P", "-m", "coda_agent", "--restore", environ=agent._environ(), timeout_s=PATIENCE_S
    )
    assert second.code == 1
    assert "coda-agent: " in second.err
    assert await agent.kill(signal.SIGTERM) == 0
    restored = await node.run(
        sys.executable, "-P", "-m", "coda_agent", "--restore", environ=agent._environ(), timeout_s=PATIENCE_S
    )
    assert restored.code == 0
    assert "put back" not in restored.err
