"""What the agent costs a node of 128 cores and 8 GPUs: CPU and memory (PSS) of all its processes.

By default with 60 pods and 2 domains of memory bandwidth; `--pods 110 --domains 24`: the most that kubelets take by
default, on the largest processors. Many clusters set 250.

Real API server, the emulated NVML, and plain files in the place of /proc, cgroups and resctrl: the agent reads as much
as on a node, but the kernel's own cost of making those texts is not in the figures. PSS shares the pages of programs
and libraries with the lab's own processes, which a node does not have: one more row leaves them out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coda_agent.throttling.followed_pods import most_pods
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import THROTTLING
from coda_lab.emulators.nvml import Device, NvmlState, Process
from coda_lab.emulators.nvml.library import build, environment_for
from coda_lab.emulators.pod_resources import ContainerDevices, PodResourcesServer
from coda_lab.host.paths import Settings
from coda_lab.kubelets.nodes import PODS_PER_NODE
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from rig.asking import ask, positive, tell
from rig.binding import create_all, following
from rig.loads import PODS
from rig.results import Answer, Row
from rig.usage import Usage, bytes_alone, children_of, thread_cpu_s, usage_of

MINUTES, QUICK_S = 10, 10.0
ALL_PODS, GPU_PODS, CORES, DOMAINS = 60, 8, 128, 2
THREADS: Final = 40  # of a pod
MIB: Final = 1 << 20
SETTLE_S: Final = 5.0


async def answer(options: argparse.Namespace) -> Answer:
    """One local control plane, one agent."""
    lasting_s = 60.0 * options.minutes if options.minutes else QUICK_S if options.quick else 60.0 * MINUTES
    spec = ClusterSpec(nodes=f"1x{GPU_PODS}x{CORES}", racks=1, pods_per_node=max(PODS_PER_NODE, options.pods))
    async with running_cluster(spec, tell=tell) as cluster, cluster.client("admin") as admin:
        await admin.patch("/api/v1/namespaces/default", {"metadata": {"labels": {THROTTLING: "true"}}})
        (node,) = (item["metadata"]["name"] for item in (await admin.get("/api/v1/nodes"))["items"])
        items = [pod_json(f"cpu-{number}", node, gpus=0) for number in range(options.pods - GPU_PODS)]
        items += [pod_json(f"train-{number}", node, gpus=1) for number in range(GPU_PODS)]
        async with following(admin, PODS) as pods:
            await create_all(admin, PODS, items)
            await pods.until(lambda by_key: sum(map(_runs, by_key.values())) == len(items))
            running = sorted(pods.cache.by_key.values(), key=lambda item: str(item["metadata"]["name"]))
        with tempfile.TemporaryDirectory(prefix="coda-agent-", dir=_fast_folder()) as folder:
            kubeconfig = await cluster.agent_kubeconfig(node)
            write_trees(Path(folder), running, options.domains)
            samples = await measured(Path(folder), node, running, kubeconfig, lasting_s)
    shape = f"agent, {options.pods} pods, {GPU_PODS} GPUs"
    shape += f", {options.domains} domains" if options.domains != DOMAINS else ""
    lasted_s = samples[-1].at_s - samples[0].at_s
    return Answer(
        question="agent_cost",
        rows=tuple(_rows(shape, samples, budget="<= 3" if options.pods > ALL_PODS else "<= 2")),
        detail={"lasted_s": round(lasted_s, 1)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the agent has used until `at_s`: with all its processes, in its event loop, and in its driver's process."""

    at_s: float
    whole: Usage
    event_loop_cpu_s: float
    driver: Usage
    alone_bytes: int  # of memory, if nothing else on the machine were made of the same files


def _rows(shape: str, samples: Sequence[Sample], *, budget: str) -> Iterator[Row]:
    first, last = samples[0], samples[-1]

    def share(cpu_s: Callable[[Sample], float]) -> float:
        return 100 * (cpu_s(last) - cpu_s(first)) / (last.at_s - first.at_s)

    def threads(sample: Sample) -> float:
        return sample.whole.cpu_s - sample.event_loop_cpu_s - sample.driver.cpu_s

    yield Row(name=f"{shape}: CPU", value=share(lambda one: one.whole.cpu_s), unit="% of a core", budget=budget)
    yield Row(name=f"{shape}: CPU, reading the node", value=share(threads), unit="% of a core")
    yield Row(name=f"{shape}: CPU, event loop", value=share(lambda one: one.event_loop_cpu_s), unit="% of a core")
    yield Row(name=f"{shape}: CPU, GPU driver's process", value=share(lambda one: one.driver.cpu_s), unit="% of a core")
    most = max(samples, key=lambda one: one.whole.pss_bytes)
    yield Row(name=f"{shape}: memory", value=most.whole.pss_bytes / MIB, unit="MiB", budget="<= 80")
    yield Row(name=f"{shape}: memory, GPU driver's process", value=most.driver.pss_bytes / MIB, unit="MiB")
    alone = max(sample.alone_bytes for sample in samples) / MIB
    yield Row(name=f"{shape}: memory without other Python programs", value=alone, unit="MiB")


async def measured(folder: Path, node: str, pods: Sequence[Json], kubeconfig: Path, lasting_s: float) -> list[Sample]:
    """What the agent has used, every few seconds from when it has settled."""
    gpus = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(GPU_PODS)]
    training = [pod for pod in pods if pod["metadata"]["name"].startswith("train")]
    state = NvmlState(path=folder / "nvml")
    with state.batch():
        for number, (uuid, pod) in enumerate(zip(gpus, training, strict=True)):
            state.add(Device(uuid=uuid, minor=number, pci_bus_id=f"00000000:{number + 1:02X}:00.0"))
            state.set_utilisation(uuid, 0.8)
            state.set_processes(uuid, [Process(pid=first_thread(pods.index(pod)))])
    with PodResourcesServer(folder / "pod-resources.sock") as kubelet:
        kubelet.give(
            ContainerDevices(
                namespace="default", pod=pod["metadata"]["name"], container="main", devices=(("nvidia.com/gpu", uuid),)
            )
            for uuid, pod in zip(gpus, training, strict=True)
        )
        environment = environment_for(build(Settings.from_environ().cache), state.path, os.environ)
        return await _watched(environment | variables(folder, node, kubeconfig), lasting_s)


async def _watched(environment: dict[str, str], lasting_s: float) -> list[Sample]:
    agent = await asyncio.create_subprocess_exec(sys.executable, "-m", "coda_agent", env=environment)
    loop = asyncio.get_running_loop()
    try:
        while not children_of(agent.pid):
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        samples = [_sample(loop.time(), agent.pid)]
        while samples[-1].at_s - samples[0].at_s < lasting_s:
            await asyncio.sleep(min(5.0, lasting_s))
            samples.append(_sample(loop.time(), agent.pid))
        return samples
    finally:
        agent.terminate()
        await agent.wait()


def _sample(at_s: float, agent: int) -> Sample:
    (driver,) = children_of(agent)
    return Sample(
        at_s=at_s,
        whole=usage_of(agent),
        event_loop_cpu_s=thread_cpu_s(agent),
        driver=usage_of(driver),
        alone_bytes=bytes_alone([agent, driver]),
    )


def variables(folder: Path, node: str, kubeconfig: Path) -> dict[str, str]:
    """The agent's settings."""
    return {
        "CODA_NODE_NAME": node,
        "CODA_KUBECONFIG": str(kubeconfig),
        "CODA_METRICS_PORT": "0",
        "CODA_HOST": "127.0.0.1",
        "CODA_STATE_DIR": str(folder / "state"),
        "CODA_PROC": str(folder / "proc"),
        "CODA_SYS": str(folder / "sys"),
        "CODA_CGROUP": str(folder / "cgroup"),
        "CODA_RESCTRL": str(folder / "resctrl"),
        "CODA_POD_RESOURCES": str(folder / "pod-resources.sock"),
        "CODA_PEAK_GB_PER_S": '{"0": 160, "1": 160}',
        "CODA_LOG_LEVEL": "WARNING",
    }


def write_trees(folder: Path, pods: Sequence[Json], domains: int) -> None:
    """What the kernel would show of these pods."""
    _file(folder / "proc/sys/kernel/random/boot_id", "5f1b0c1e-0000-4000-8000-000000000001\n")
    for cpu in range(CORES):
        _file(folder / f"sys/devices/system/cpu/cpu{cpu}/cache/index3/id", f"{cpu * domains // CORES}\n")
    _file(folder / "cgroup/cgroup.controllers", "cpuset cpu io memory\n")
    resctrl = folder / "resctrl"
    for name, text in _INFO.items():
        _file(resctrl / "info" / name, text)
    _group(resctrl, range(0), domains)
    _file(resctrl / "schemata", f"    MB:{';'.join(f'{domain}=100' for domain in range(domains))}\n")
    cpu_pods = sorted(pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"].startswith("cpu"))
    followed = {*cpu_pods[: most_pods(domains, None)]}  # as the agent chooses them: all use as much
    if len(followed) == len(cpu_pods):
        followed = {pod["metadata"]["uid"] for pod in pods}
    for place, pod in enumerate(pods):
        threads = range(first_thread(place), first_thread(place) + THREADS)
        _cgroup(folder, pod, threads)
        if pod["metadata"]["uid"] in followed:
            _group(resctrl / f"mon_groups/coda-{pod['metadata']['uid']}", threads, domains)


def first_thread(place: int) -> int:
    """The first of the thread ids of a pod."""
    return 10_000 + 100 * place


def _cgroup(folder: Path, pod: Json, threads: range) -> None:
    uid = pod["metadata"]["uid"]
    quality = pod["status"]["qosClass"].lower()
    above = f"kubepods-{quality}" if quality != "guaranteed" else "kubepods"
    parts = ["kubepods.slice", *([f"{above}.slice"] if quality != "guaranteed" else [])]
    path = "/".join([*parts, f"{above}-pod{uid.replace('-', '_')}.slice"])
    scope = f"{path}/cri-containerd-{uid.replace('-', '') * 2}.scope"
    for place, inside in ((path, range(0)), (scope, threads)):
        ids = "".join(f"{thread}\n" for thread in inside)
        _file(folder / "cgroup" / place / "cgroup.threads", ids)
        _file(folder / "cgroup" / place / "cgroup.procs", ids)
        _file(folder / "cgroup" / place / "cpu.max", "max 100000\n")
        _file(folder / "cgroup" / place / "cpu.stat", _CPU_STAT)
    for thread in threads:
        fields = " ".join(["S", *["0"] * 18, "1000", *["0"] * 30])
        _file(folder / f"proc/{thread}/stat", f"{thread} (main) {fields}\n")
        _file(folder / f"proc/{thread}/cgroup", f"0::/{scope}\n")
        _file(folder / f"proc/{thread}/cpu_resctrl_groups", f"res:/\nmon:coda-{uid}\n")


def _group(path: Path, threads: range, domains: int) -> None:
    _file(path / "tasks", "".join(f"{thread}\n" for thread in threads))
    for domain in range(domains):
        _file(path / f"mon_data/mon_L3_{domain:02}/mbm_total_bytes", "123456789012\n")


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _runs(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def pod_json(name: str, node: str, *, gpus: int) -> Json:
    """A pod that is bound already."""
    amounts: dict[str, Any] = {"cpu": "1", "memory": "256Mi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    resources = {"requests": amounts | {"cpu": "250m"}, "limits": amounts}
    container = {"name": "main", "image": "none.invalid/none", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"lab.coda.scheduler/run-seconds": "86400"}},
        "spec": {"nodeName": node, "containers": [container], "restartPolicy": "Never"},
    }


_CPU_STAT: Final = (
    "usage_usec 123456789\nuser_usec 100000000\nsystem_usec 23456789\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"
)
_INFO: Final = {
    "last_cmd_status": "ok\n",
    "MB/num_closids": "8\n",
    "MB/min_bandwidth": "10\n",
    "MB/bandwidth_gran": "10\n",
    "MB/delay_linear": "1\n",
    "L3_MON/num_rmids": "512\n",
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
}


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pods", type=positive, default=ALL_PODS, help=f"{GPU_PODS} of them train (default {ALL_PODS})"
    )
    parser.add_argument("--domains", type=positive, default=DOMAINS, help=f"of bandwidth (default {DOMAINS})")
    parser.add_argument("--minutes", type=positive, help=f"of watching the agent (default {MINUTES})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
