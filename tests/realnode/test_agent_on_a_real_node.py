"""The whole chain on one real node: the chart's DaemonSet under containerd and the kubelet, and Coda outside."""

from __future__ import annotations

import functools
import json
import operator
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from itertools import groupby
from pathlib import Path

import pytest
import pytest_asyncio

from coda.contention import ContentionConfig
from coda_agent.host import StateDir, UndoJournal
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import THROTTLING
from coda_kube.objects.write import job_path
from coda_lab.emulators.load import Trainer
from coda_lab.host.processes import python_path
from coda_lab.images.image import AGENT
from coda_lab.local.cluster import LocalCluster
from coda_lab.realnode.configuration import GPUS, NVML_STATE, gpu_ids
from coda_lab.realnode.node import CONTAINERD, KUBELET, RealNode
from coda_lab.spec import ClusterSpec
from coda_operator.throttle_recovery import restoring_pod
from tests.deploy.charts import Helm
from tests.e2e.jobs import pods_of, submit, wait_for, wait_gone
from tests.realnode.agents import DAEMON_SET, Agents
from tests.realnode.agents import PODS as SYSTEM_PODS
from tests.realnode.contention import PEAK_GB_PER_S
from tests.realnode.ending import real_cluster
from tests.realnode.scene import (
    PATIENCE_S,
    PODS,
    cpu_max,
    eventually,
    guaranteed_pod,
    is_running,
    main_status,
    training_job,
)
from tests.realnode.training import LOADING, Training, following, idle_gpus

CORES = 8
START_CORES = CORES // GPUS  # what goes with one GPU there: a start takes no more (docs/decisions/0053)
WINDOW_S = 40  # its second half must have 10 rounds of an emulated agent in it
SETTLE_S = 2
TUNED_WITHIN_S = 1800.0  # 5 to 10 windows with their resizes
BUSY_CORES = 0.8
STATE = "/var/lib/coda"
PROFILE = "/apis/coda.scheduler/v1alpha1/nodeprofiles/real-0"
PATIENT = {"CODA_RESIZE_DEADLINE_S": "600"}
PARTS = ("extender-0", "extender-1")
SPEC = ClusterSpec(nodes="", real_node_cores=CORES, environ_by_part=dict.fromkeys(PARTS, PATIENT))
PEAKS = json.dumps(json.dumps({"0": PEAK_GB_PER_S, "1": PEAK_GB_PER_S}))[1:-1]
WINDOWS = (f"agent.settings.CODA_WINDOW_S={WINDOW_S}", f"agent.settings.CODA_SETTLE_S={SETTLE_S}")
NO_CAPABILITY = (
    "--set-json",
    f'agent.securityContext.capabilities.add=[],agent.settings.CODA_PEAK_GB_PER_S="{PEAKS}"',
)
SYS_ADMIN = 1 << 21  # linux/capability.h

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),  # an emulated machine comes up in a minute, on a busy one in many
    pytest.mark.usefixtures("needs_vm"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(needs_vm: None) -> AsyncIterator[LocalCluster]:
    """The control plane with Coda, and no node but the real one."""
    async with real_cluster(SPEC) as running:
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
async def agents(cluster: LocalCluster, admin: Client, tmp_path_factory: pytest.TempPathFactory) -> Agents:
    """The DaemonSet with the chart's own values for privileges, at work for all tests."""
    node = cluster.real_node
    await idle_gpus(node, PATIENCE_S)
    prepared = await Agents.prepared(node, admin, Helm.at(tmp_path_factory.mktemp("helm")))
    await prepared.install(*WINDOWS)
    return prepared


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(cluster: LocalCluster, admin: Client) -> Json:
    """A pod without GPUs whose only process never rests."""
    pod = guaranteed_pod("busy", cores=str(BUSY_CORES), gpus=0)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "while :; do :; done"]
    await admin.create(PODS, pod)
    return await wait_for(admin, f"{PODS}/busy", is_running, within_s=PATIENCE_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aggressor(cluster: LocalCluster, admin: Client) -> Json:
    """A pod without GPUs in a namespace that lets it be throttled."""
    labels = {THROTTLING: "true"}
    await admin.create("/api/v1/namespaces", {"metadata": {"name": "batch", "labels": labels}})
    await wait_for(admin, "/api/v1/namespaces/batch/serviceaccounts/default", bool, within_s=PATIENCE_S)
    pod = guaranteed_pod("aggressor", cores="100m", gpus=0)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    path = "/api/v1/namespaces/batch/pods"
    await admin.create(path, pod)
    return await wait_for(admin, f"{path}/aggressor", is_running, within_s=PATIENCE_S)


def tuned_job(name: str, *, replicas: int, cores_needed: int) -> Json:
    """A job with automatic cores, whose CPU use is in proportion to its speed."""
    job = training_job(name, gpus=1)
    job["spec"] |= {"replicas": replicas, "cpusPerReplica": "auto"}
    amounts = {"memory": "64Mi"}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {"image": f"{AGENT.repository}:{metadata.version('coda')}", "imagePullPolicy": "Never"}
    container |= {"command": ["python", "-c", LOADING.format(needed=cores_needed)]}
    container["resources"] = {"requests": amounts, "limits": amounts}
    return job


async def tuning_of(user: Client, job: str, *, phase: str = "", steps: int = 0) -> Json:
    """The job once its tuning is in that phase and has measured so many counts of cores."""

    def is_there(item: Json) -> bool:
        tuning = (item.get("status") or {}).get("tuning") or {}
        return len(tuning.get("steps") or ()) >= steps and phase in ("", tuning.get("phase"))

    return await wait_for(user, job_path(job), is_there, within_s=TUNED_WITHIN_S)


async def check_tuned(user: Client, training: Training) -> None:
    """The answer is what its ranks need, and every step on the way to it stands in the status and was in the kernel."""
    item = await tuning_of(user, training.job, phase="Tuned")
    training.note(item)
    tuning, optimum = item["status"]["tuning"], training.cores_needed
    # A first window with a fifth too little CPU use makes the search begin anew, from a count that it wished for.
    # Then it goes down to START_CORES again. A machine that gets little CPU time itself has such windows.
    starts = training.wished if START_CORES in training.wished else [START_CORES]
    answers = [{"coresPerReplica": optimum, "outcome": "Found", "start": start} for start in starts]
    assert tuning["answer"] in answers
    assert tuning["reason"] == "Found"
    curve = {step["coresPerReplica"]: step["gpuUtilization"] for step in tuning["steps"]}
    granted = [cores for cores in training.wished if cores in curve]  # the node may have no room for the last growth
    steps = [limit(cores) for cores in (START_CORES, *granted)]

    async def is_last() -> bool:
        return set(training.limits()[-1]) == {steps[-1]}

    await eventually(is_last, "the kernel does not have the answer's cores")
    for seen in zip(*training.limits(), strict=True):  # of each container, and of its pod
        assert [one for one, _again in groupby(seen)] == steps
    assert curve.keys() == {START_CORES, *granted}
    assert curve == {cores: pytest.approx(Trainer().best * min(1, cores / optimum), abs=0.02) for cores in curve}
    for rank, now in zip(training.ranks, await pods_of(user, training.job), strict=True):
        assert main_status(now)["containerID"] == main_status(rank.pod)["containerID"]
        assert main_status(now)["restartCount"] == 0
        assert main_status(now)["resources"]["limits"]["cpu"] == str(optimum)


def limit(cores: float) -> str:
    """As the kernel says it."""
    return f"{round(cores * 100_000)} 100000"


@asynccontextmanager
async def training_of(
    node: RealNode, user: Client, admin: Client, job: Json, *, cores_needed: int
) -> AsyncIterator[Training]:
    """The job in training for the time of a block; its pods are gone afterwards, so that the next one has room."""
    name = await submit(user, job)
    try:
        yield await Training.begun(node, user, name, cores_needed=cores_needed)
    finally:
        pods = await pods_of(user, name)
        await admin.delete(job_path(name))
        for pod in pods:
            await wait_gone(admin, f"{PODS}/{pod['metadata']['name']}", within_s=PATIENCE_S)


async def profile(admin: Client) -> Json:
    """What the agent says of the node, once the process that asks its driver has answered."""

    def has_gpus(item: Json) -> bool:
        return bool((item.get("status") or {}).get("gpus"))

    item = await wait_for(admin, PROFILE, has_gpus, within_s=PATIENCE_S)
    status: Json = item["status"]
    return status


async def test_the_agent_tells_what_the_node_is(agents: Agents, admin: Client) -> None:
    """In its container, on a kernel without resctrl, whose folder nobody can make."""
    status = await profile(admin)
    assert (status["cores"], status["gpuCount"]) == (CORES, GPUS)
    assert {gpu["uuid"] for gpu in status["gpus"]} == set(gpu_ids())
    assert status["bandwidth"] == {"measured": False, "control": "None"}
    assert (await agents.node.run("/bin/test", "-e", "/sys/fs/resctrl")).code == 1


async def test_the_agent_has_no_privilege_but_the_one_that_nvidias_runtime_asks_for(agents: Agents) -> None:
    pod = await agents.ready()
    assert await capabilities(agents, pod) == SYS_ADMIN
    pid = await agents.process(pod)
    assert "\nSeccomp:\t2\n" in await agents.node.read(f"/proc/{pid}/status")  # a filter
    mounts = [line.split(" ") for line in (await agents.node.read(f"/proc/{pid}/mountinfo")).splitlines()]
    options = {words[4]: words[5].split(",")[0] for words in mounts}
    writable = {path for path, option in options.items() if option == "rw" and not path.startswith(("/dev", "/proc"))}
    assert writable == {"/host/sys/fs", "/host/sys/fs/cgroup", STATE, "/etc/hosts"}


async def capabilities(agents: Agents, pod: Json) -> int:
    """All that it has or can get."""
    status = await agents.node.read(f"/proc/{await agents.process(pod)}/status")
    words = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return functools.reduce(operator.or_, (int(text, 16) for name, text in words.items() if name.startswith("Cap")))


async def test_a_job_of_two_ranks_is_tuned_by_resizes_that_its_kernel_shows(
    agents: Agents, node: RealNode, user: Client, admin: Client
) -> None:
    job = tuned_job("tuned", replicas=2, cores_needed=2)
    async with (
        training_of(node, user, admin, job, cores_needed=2) as training,
        following(training, user),
    ):
        await tuning_of(user, training.job, steps=1)
        names = {device: rank.pod["metadata"]["name"] for rank in training.ranks for device in rank.devices}
        assert await agents.gpus(await agents.ready()) == names
        await check_tuned(user, training)
    assert max(training.wished) > 2


async def test_a_busy_loop_gets_half_its_cores_and_all_again(node: RealNode, busy: Json) -> None:
    halving = ("tests.realnode.halving", "/var/lib/coda-test", busy["metadata"]["uid"], str(BUSY_CORES), "measure")
    said = await node.run(
        sys.executable, "-P", "-m", *halving, environ={"PYTHONPATH": python_path()}, timeout_s=PATIENCE_S
    )
    own, halved, again = json.loads(said.check())
    assert own == pytest.approx(BUSY_CORES, rel=0.05)
    assert halved == pytest.approx(BUSY_CORES / 2, rel=0.05)
    assert again == pytest.approx(BUSY_CORES, rel=0.05)
    assert await cpu_max(node, busy, of_container=False) == limit(BUSY_CORES)


async def test_killed_beside_kubelet_and_containerd_the_agent_leaves_nothing_behind_and_goes_on(
    agents: Agents, node: RealNode, user: Client, admin: Client, busy: Json
) -> None:
    job = tuned_job("resumed", replicas=1, cores_needed=3)
    async with (
        training_of(node, user, admin, job, cores_needed=3) as training,
        following(training, user),
    ):
        before = await tuning_of(user, training.job, steps=1)
        assert before["status"]["tuning"]["phase"] != "Tuned"
        pod = await agents.ready()
        await node.kill(KUBELET)
        await node.kill(CONTAINERD)
        (await node.run("/bin/kill", "-KILL", str(await agents.process(pod)))).check()
        await leave_halved(node, busy)
        await node.start_containerd()
        await node.start_kubelet()
        await eventually(lambda: has_cores(node, busy, BUSY_CORES), "the next agent does not put the limit back")
        again = await agents.ready(restarts=1)
        assert again["metadata"]["uid"] == pod["metadata"]["uid"]
        await check_tuned(user, training)
    assert f"put back what an earlier agent left: kubepods/pod{busy['metadata']['uid']}" in await agents.said()
    assert main_status(await admin.get(f"{PODS}/busy"))["restartCount"] == 0
    assert "throttles" not in (status := await profile(admin)) or status["throttles"] == []


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


async def test_where_resctrl_is_mounted_later_an_agent_without_any_capability_throttles_by_it(
    agents: Agents, node: RealNode, user: Client, admin: Client, aggressor: Json
) -> None:
    pod = await agents.install(*WINDOWS, more=NO_CAPABILITY)
    assert await capabilities(agents, pod) == 0
    training = await Training.begun(node, user, await submit(user, training_job("watched", gpus=1)), cores_needed=1)
    (rank,) = training.ranks
    process = {name: await first_pid(node, item) for name, item in (("watched", rank.pod), ("aggressor", aggressor))}
    argv = (sys.executable, "-P", "-m", "tests.realnode.contention", NVML_STATE)
    words = (f"{process['watched']}={','.join(rank.devices)}", str(process["aggressor"]), "/run/contended")
    await node.start("contention", *argv, *words, environ={"PYTHONPATH": python_path()})
    measured = {"measured": True, "control": "Percent"}
    await wait_for(admin, PROFILE, lambda item: is_part(measured, item["status"]["bandwidth"]), within_s=PATIENCE_S)
    learned = await rounds(agents, pod) + 2 * ContentionConfig().learn_windows
    await eventually(lambda: has_done(agents, pod, learned), "the agent makes no rounds")
    (await node.run("/bin/touch", "/run/contended")).check()

    group = f"/sys/fs/resctrl/coda-throttle/mon_groups/coda-{aggressor['metadata']['uid']}/tasks"
    await eventually(lambda: has_line(node, group, str(process["aggressor"])), "the aggressor is not throttled")
    assert "MB:0=100;" not in await node.read("/sys/fs/resctrl/coda-throttle/schemata")
    assert "MB:0=100;1=100" in await node.read("/sys/fs/resctrl/schemata")


async def rounds(agents: Agents, pod: Json) -> float:
    (sample,) = await agents.samples(pod, "coda_agent_window_duration_seconds_count")
    return sample.value


async def has_done(agents: Agents, pod: Json, wanted: float) -> bool:
    return await rounds(agents, pod) >= wanted


async def has_line(node: RealNode, path: str, line: str) -> bool:
    """False also while the file is not there."""
    said = await node.run("/bin/cat", path)
    return said.code == 0 and line in said.out.split()


def is_part(some: Json, of: Json) -> bool:
    return some.items() <= of.items()


async def first_pid(node: RealNode, pod: Json) -> int:
    folder = await node.container_cgroup(pod["metadata"]["uid"], main_status(pod)["containerID"])
    return min(int(pid) for pid in (await node.read(f"{folder}/cgroup.procs")).split())


async def test_the_operators_restoring_pod_does_nothing_beside_a_living_agent(agents: Agents, admin: Client) -> None:
    pod = restoring_pod(await admin.get(DAEMON_SET), agents.node.name)
    await admin.create(SYSTEM_PODS, pod)
    path = f"{SYSTEM_PODS}/{pod['metadata']['name']}"
    ended = await wait_for(admin, path, lambda item: item["status"]["phase"] == "Failed", within_s=PATIENCE_S)
    assert main_status(ended)["state"]["terminated"]["exitCode"] == 1
    said = f"/var/log/pods/*_{pod['metadata']['name']}_*/agent/0.log"
    assert "is at work on this node" in (await agents.node.run("/bin/sh", "-c", f"cat {said}")).check()
    await admin.delete(path)


async def test_deleted_it_leaves_nothing_on_the_node(
    agents: Agents, node: RealNode, admin: Client, busy: Json, tmp_path: Path
) -> None:
    pid = await agents.process(await agents.ready())
    await admin.delete(DAEMON_SET)
    (pod,) = await agents.pods()
    await wait_gone(admin, f"{SYSTEM_PODS}/{pod['metadata']['name']}", within_s=PATIENCE_S)
    assert (await node.run("/bin/test", "-e", f"/proc/{pid}")).code == 1
    assert await has_cores(node, busy, BUSY_CORES)
    left = (await node.run("/usr/bin/find", "/sys/fs", STATE, "-name", "*coda*", "-o", "-name", "BE")).check()
    assert sorted(left.split()) == ["/sys/fs/resctrl/BE", STATE]  # another program's group
    (tmp_path / "journal").write_text(await node.read(f"{STATE}/journal"))
    assert UndoJournal(StateDir(tmp_path)).entries == ()
