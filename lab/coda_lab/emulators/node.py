"""One emulated machine: a kubelet with cgroups and processes, resctrl, GPUs, and loads that respond to limits.

As time passes, each container gets the CPU time that its limits allow. Its traffic follows that and the bandwidth
limits, and GPUs are as busy as their job's cores and bandwidth allow.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coda_agent.gpus.allocations import Grant
from coda_agent.gpus.samples import Moment
from coda_kube.objects.names import API_VERSION, KIND, LABEL_JOB, LABEL_JOB_UID
from coda_lab.emulators.cgroups.file_access import files_over
from coda_lab.emulators.cgroups.kernel import Kernel
from coda_lab.emulators.cgroups.kubelet import Kubelet, Quality, Setup
from coda_lab.emulators.cgroups.proc import ProcTree
from coda_lab.emulators.cgroups.tree import CgroupTree
from coda_lab.emulators.load import Curved, Gpus, Load, Trainer
from coda_lab.emulators.nvml import Device, NvmlState, Process
from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.profiles import PROFILES
from coda_lab.emulators.resctrl.tasks import FakeTasks
from coda_lab.emulators.resctrl.traffic import advance, served_shares

GB = 1e9
MAIN = "main"
START_WALL_S = 1_700_000_000.0
START_MONOTONIC_S = 5000.0
WRONG_BY_S = -40.0  # the node's own clock, against the API server's
CPUS_PER_DOMAIN = 32
NAMES = {Quality.GUARANTEED: "Guaranteed", Quality.BURSTABLE: "Burstable", Quality.BEST_EFFORT: "BestEffort"}


@dataclass(slots=True, kw_only=True)
class Work:
    """The work of a pod. `demand_cores`, `bytes_per_s`: without limits. `gpus`: how its GPUs respond; None: it has
    none.
    """

    name: str
    uid: str
    domain: int
    demand_cores: float
    bytes_per_s: float
    quality: Quality
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gpus: Gpus | None = None
    devices: tuple[str, ...] = ()
    seen_share: float = 0.0  # of the GPUs in the last step

    @property
    def trains(self) -> bool:
        """True if it has GPUs."""
        return self.gpus is not None


class EmulatedNode:
    """One machine with its pods. Time moves only by `advance`."""

    def __init__(
        self,
        folder: Path,
        *,
        profile: str = "intel",
        version: int = 2,
        setup: Setup | None = None,
        gpus: int = 8,
        first_gpu: int = 0,
        cores: int | None = None,
        numa_nodes: int = 0,
        is_live: bool = False,
    ) -> None:
        """`folder`: for the state of the GPUs and the CPU topology. The caller loads the NVML library.

        `first_gpu`: number of the first one, in its UUID. `cores`: None for 32 on each socket. `numa_nodes`: that the
        kernel tells of, with as many CPUs each; 0: none. `is_live`: True if GPU
        samples have the real time and the caller advances time by `flow` and `train`; else by `advance`, in fake
        seconds.
        """
        self._seconds = 0
        self._is_live = is_live
        self._is_new = True  # no time has passed
        self.tasks = FakeTasks()
        self.machine = Machine(PROFILES[profile], self.tasks)
        self.tree = CgroupTree(Kernel(version), self.tasks)
        self.kubelet = Kubelet(self.tree, setup or Setup(has_systemd=version == 2))
        self.proc = ProcTree(self.tree, self.machine.groups_of)
        has_resctrl = self.machine.profile.is_mounted
        self.files = files_over(cgroup=self.tree, proc=self.proc, machine=self.machine if has_resctrl else None)
        domains = self.machine.profile.domains
        cores = len(domains) * CPUS_PER_DOMAIN if cores is None else cores
        _write_topology(folder / "sys", domains, cores)
        _write_numa_nodes(folder / "sys", numa_nodes, cores)
        self.files.sys = type(self.files.sys)(folder / "sys")
        self.state = NvmlState(path=folder / "nvml")
        self.works: dict[str, Work] = {}  # by pod uid
        self._free = [_uuid("GPU", first_gpu + number) for number in range(gpus)]
        with self.state.batch():
            self._stamp()
            for number, device in enumerate(self._free):
                self.state.add(Device(uuid=device, minor=number, pci_bus_id=f"00000000:{number + 1:02X}:00.0"))

    @property
    def now(self) -> Moment:
        """The fake time on all clocks. This node's own is wrong."""
        wall_s = START_WALL_S + self._seconds
        return Moment(monotonic_s=START_MONOTONIC_S + self._seconds, wall_s=wall_s, node_wall_s=wall_s + WRONG_BY_S)

    def start(
        self,
        name: str,
        *,
        cores: float | None,
        demand_cores: float | None = None,
        gb_per_s: float = 0.0,
        domain: int = 0,
        quality: Quality = Quality.BURSTABLE,
        trainer: Trainer | Curved | None = None,
        gpus: int = 0,
        seed: int = 0,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Work:
        """A new pod with one container of a CPU limit of `cores` (None: without)."""
        work = Work(
            name=name,
            uid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
            domain=domain,
            demand_cores=demand_cores or cores or 1.0,
            bytes_per_s=gb_per_s * GB,
            quality=quality,
            labels=labels or {},
            annotations=annotations or {},
            gpus=None if trainer is None else Gpus(trainer, seed),
        )
        self.run(work, cores=cores, gpus=gpus)
        return work

    def run(self, work: Work, *, cores: float | None, gpus: int = 0) -> None:
        """A pod that does this work, in one container with a CPU limit of `cores` (None: without)."""
        self.kubelet.start(work.uid, work.quality, {MAIN: cores})
        work.devices, self._free = tuple(self._free[:gpus]), self._free[gpus:]
        self.works[work.uid] = work
        process = self.kubelet.pods[work.uid].containers[MAIN].process
        with self.state.batch():
            for device in work.devices:
                self.state.set_processes(device, [Process(pid=process)])
        self.demand(work)

    def demand(self, work: Work) -> None:
        """The demand of the work has changed."""
        self.kubelet.demand(work.uid, MAIN, work.demand_cores)
        self._set_load(work)

    def stop(self, work: Work) -> None:
        """The pod ends; its GPUs are idle and free."""
        self.kubelet.stop(work.uid)
        del self.works[work.uid]
        self.machine.loads.pop(work.uid, None)
        self._free += work.devices
        with self.state.batch():
            for device in work.devices:
                self.state.set_processes(device, [])
                self.state.set_utilisation(device, 0.0)

    def advance(self, seconds: int = 1) -> Moment:
        """Let whole fake seconds pass; return the time then."""
        for _ in range(seconds):
            self._seconds += 1
            self.flow(1.0)
            self.train()
        return self.now

    def flow(self, seconds: float) -> None:
        """Let this much CPU time and traffic pass."""
        self._is_new = False
        self.tree.kernel.advance(seconds)
        for work in self.works.values():
            self._set_load(work)
        if self.machine.profile.is_mounted:
            advance(self.machine, seconds)

    def train(self) -> None:
        """Let every job's GPUs show what its cores and bandwidth allow now."""
        shares = served_shares(self.machine) if self.machine.profile.is_mounted else {}
        with self.state.batch():
            self._stamp()
            for work in self.works.values():
                self._train(work, shares.get(work.uid, 1.0))

    def cores_of(self, work: Work) -> float:
        """The cores the pod's container got in the last step."""
        return self.tree.kernel.find(self.kubelet.pods[work.uid].containers[MAIN].path).served_cores

    def limit_of(self, work: Work) -> float:
        """The CPU limit in force on the pod's container, in cores: the least along its path; infinite without."""
        pod = self.kubelet.pods[work.uid]
        find = self.tree.kernel.find
        return min(find(pod.path).cores, find(pod.containers[MAIN].path).cores)

    def grants(self) -> tuple[Grant, ...]:
        """The kubelet's list of granted devices."""
        return tuple(
            Grant(
                namespace=work.namespace,
                pod=work.name,
                container=MAIN,
                device_ids=tuple(("nvidia.com/gpu", device) for device in work.devices),
            )
            for work in self.works.values()
        )

    def pods_json(self) -> list[dict[str, Any]]:
        """The pods as the API server has them."""
        return [self._pod_json(work) for work in self.works.values()]

    def _train(self, work: Work, served_share: float) -> None:
        if work.gpus is None:
            return
        limit = self.limit_of(work)
        work.seen_share = work.gpus.period(min(limit, work.demand_cores), served_share, limit=limit)
        for device in work.devices:
            self.state.set_utilisation(device, work.seen_share, at_us=self._since_us())

    def _set_load(self, work: Work) -> None:
        """Set its traffic by the CPU time it got (before its first second: all it wants)."""
        served = work.demand_cores if self._is_new else self.cores_of(work)
        part = min(1.0, served / work.demand_cores)
        self.machine.loads[work.uid] = Load(
            name=work.uid, domain=work.domain, cores=max(served, 0.1), bytes_per_s=work.bytes_per_s * part
        )

    def _stamp(self) -> None:
        if not self._is_live:
            self.state.freeze(int(self.now.node_wall_s * 1e6))

    def _since_us(self) -> int:
        """The start of the present GPU values. Live, that is now: earlier samples cannot change any more."""
        return self.state.now_us() - (0 if self._is_live else 1_000_000)

    def _pod_json(self, work: Work) -> dict[str, Any]:
        container = self.kubelet.pods[work.uid].containers[MAIN]
        resources = _resources(work.quality, container.cores, len(work.devices))
        return {
            "metadata": {
                "name": work.name,
                "namespace": work.namespace,
                "uid": work.uid,
                "labels": dict(work.labels),
                "annotations": dict(work.annotations),
                "ownerReferences": _owners(work.labels),
                "resourceVersion": str(self._seconds + 1),
            },
            "spec": {"containers": [{"name": MAIN, "resources": resources}]},
            "status": {
                "phase": "Running",
                "qosClass": NAMES[work.quality],
                "containerStatuses": [{"name": MAIN, "containerID": f"containerd://{container.id}"}],
            },
        }


def _resources(quality: Quality, cores: float | None, gpus: int) -> dict[str, Any]:
    devices = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    cpu = {} if cores is None else {"cpu": f"{round(cores * 1000)}m"}
    if quality is Quality.GUARANTEED:
        return {"requests": {**cpu, **devices}, "limits": {**cpu, **devices}}
    return {"limits": {**cpu, **devices}, "requests": {"cpu": "100m", **devices} if cpu else {}}


def _uuid(kind: str, number: int) -> str:
    return f"{kind}-{number:08d}-0000-0000-0000-000000000000"


def _write_topology(sys: Path, domains: Sequence[int], cores: int) -> None:
    """Neighbouring CPUs share a cache, with as many on each as possible."""
    for cpu in range(cores):
        cache = sys / f"devices/system/cpu/cpu{cpu}/cache/index3"
        cache.mkdir(parents=True)
        (cache / "id").write_text(f"{domains[cpu * len(domains) // cores]}\n")


def _write_numa_nodes(sys: Path, count: int, cores: int) -> None:
    for number in range(count):
        node = sys / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{number * cores // count}-{(number + 1) * cores // count - 1}\n")


def _owners(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The job that controls a rank, as the operator writes it."""
    if LABEL_JOB_UID not in labels:
        return []
    owner: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": labels[LABEL_JOB],
        "uid": labels[LABEL_JOB_UID],
    }
    return [owner | {"controller": True}]
