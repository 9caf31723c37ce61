"""Pods as kubelet and container runtime make, change and end them, by the same writes.

Source: kubernetes `pkg/kubelet/cm`, opencontainers/cgroups, crun.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from coda_lab.emulators.cgroups.tree import V1_DIRECTORY, CgroupTree

PERIOD_US = 100_000


class Quality(Enum):
    """A pod's quality of service, with the directory of its pods below the kubelet's root."""

    GUARANTEED = ""
    BURSTABLE = "burstable"
    BEST_EFFORT = "besteffort"


class Runtime(Enum):
    """How a runtime names a container's scope."""

    CONTAINERD = "cri-containerd"
    CRIO = "crio"
    DOCKER = "docker"


@dataclass(slots=True, kw_only=True)
class Container:
    """A running container. `path`: its group, from the hierarchy's root; `inner`: where its processes are."""

    id: str
    path: str
    inner: str
    cores: float | None
    process: int


@dataclass(slots=True, kw_only=True)
class Pod:
    """A pod with a group, and its containers by name; the sandbox is called `POD`."""

    uid: str
    path: str
    containers: dict[str, Container] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The set-up of a node. `prefix`: a `--cgroup-root`, empty or with its slash; `has_subgroup`: crun on v2.

    `has_cgroupfs_runtime`: containerd with `SystemdCgroup = false` under a kubelet with systemd."""

    has_systemd: bool = True
    runtime: Runtime = Runtime.CONTAINERD
    prefix: str = ""
    has_subgroup: bool = False
    has_cgroupfs_runtime: bool = False


class Kubelet:
    """The kubelet and the runtime of one emulated node. Refused writes surface as the kernel's OSError."""

    def __init__(self, tree: CgroupTree, setup: Setup) -> None:
        self._tree = tree
        self._setup = setup
        self._hierarchy = f"{V1_DIRECTORY}/" if tree.kernel.version == 1 else ""
        self._started = 0
        self.pods: dict[str, Pod] = {}
        stem = setup.prefix.rstrip("/").rpartition("/")[2].removesuffix(".slice")
        nested = f"{stem}-" if stem and setup.has_systemd else ""
        self.root = f"{setup.prefix}{nested}kubepods{'.slice' if setup.has_systemd else ''}"
        for quality in Quality:
            self._make(self._parent(quality))

    def start(self, uid: str, quality: Quality, cores_by_name: Mapping[str, float | None]) -> Pod:
        """A new pod; None: a container without limit. The pod is limited if all its containers are."""
        pod = Pod(uid=uid, path=self._pod_path(uid, quality))
        self._make(pod.path)
        self.pods[uid] = pod
        limits = list(cores_by_name.values())
        self._limit(pod.path, _total(limits))
        self._run(pod, "POD", None)
        for name, cores in cores_by_name.items():
            self._run(pod, name, cores)
        return pod

    def resize(self, uid: str, name: str, cores: float) -> None:
        """In-place resize of one container: pod first if it grows, container first if it shrinks."""
        pod = self.pods[uid]
        container = pod.containers[name]
        grows = container.cores is not None and cores > container.cores
        container.cores = cores
        total = _total([one.cores for key, one in pod.containers.items() if key != "POD"])
        writes = [(pod.path, total), (container.path, cores)]
        for path, wanted in writes if grows else reversed(writes):
            self._limit(path, wanted)

    def reapply(self, uid: str, name: str) -> None:
        """The runtime writes the limit it remembers, as with every update of a container."""
        container = self.pods[uid].containers[name]
        self._limit(container.path, container.cores)

    def restart(self, uid: str, name: str) -> Container:
        """The container ends and starts again, with a new id and a new group."""
        pod = self.pods[uid]
        cores = pod.containers[name].cores
        self._end(pod.containers.pop(name))
        return self._run(pod, name, cores)

    def stop(self, uid: str) -> None:
        """The pod ends."""
        pod = self.pods.pop(uid)
        for container in pod.containers.values():
            self._end(container)
        self._tree.rmdir(self._hierarchy + pod.path)

    def execute(self, uid: str, name: str, threads: int = 1) -> tuple[int, ...]:
        """`kubectl exec`: a new process in the container, not started by one of its processes."""
        inner = self._tree.kernel.find(self.pods[uid].containers[name].inner)
        return self._tree.tasks.spawn(uid, threads, self._tree.membership(inner))

    def demand(self, uid: str, name: str, cores: float) -> None:
        """The cores that the container's processes would use without limits."""
        self._tree.kernel.find(self.pods[uid].containers[name].inner).demand_cores = cores

    def rewrite_qualities(self) -> None:
        """The kubelet's work of every minute: weights of the two lower classes."""
        name, text = ("cpu.shares", "2") if self._hierarchy else ("cpu.weight", "1")
        for quality in (Quality.BURSTABLE, Quality.BEST_EFFORT):
            self._tree.write(f"{self._hierarchy}{self._parent(quality)}/{name}", text)

    def _run(self, pod: Pod, name: str, cores: float | None) -> Container:
        self._started += 1
        identity = hashlib.sha256(f"{pod.uid}/{name}/{self._started}".encode()).hexdigest()
        path = f"{pod.path}/{self._scope(identity)}"
        if self._setup.has_cgroupfs_runtime:  # runc takes systemd's `slice:prefix:name` for a path below its own group
            folder = pod.path.rpartition("/")[2]
            path = f"system.slice/containerd.service/{folder}:{self._setup.runtime.value}:{identity}"
        inner = f"{path}/container" if self._setup.has_subgroup and name != "POD" else path
        self._make(path)
        self._make(inner)
        self._limit(path, cores)
        (process,) = self._tree.tasks.spawn(pod.uid, 1, self._tree.membership(self._tree.kernel.find(inner)))
        container = Container(id=identity, path=path, inner=inner, cores=cores, process=process)
        pod.containers[name] = container
        return container

    def _end(self, container: Container) -> None:
        kernel = self._tree.kernel
        for group in reversed(tuple(kernel.find(container.path).walk())):
            for task in self._tree.members(group):
                self._tree.tasks.exit(task.tid)
            self._tree.rmdir(self._hierarchy + group.path)

    def _limit(self, path: str, cores: float | None) -> None:
        quota_us = -1 if cores is None else max(1000, math.floor(cores * PERIOD_US))
        if quota_us > 0 and self._setup.has_systemd:
            quota_us = -(-quota_us // 1000) * 1000  # systemd: whole 1 % of a core
        if self._hierarchy:
            self._tree.write(f"{self._hierarchy}{path}/cpu.cfs_quota_us", str(quota_us))
        else:
            self._tree.write(f"{path}/cpu.max", f"{'max' if quota_us < 0 else quota_us} {PERIOD_US}")

    def _make(self, path: str) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            if parts[count - 1] not in self._tree.kernel.find("/".join(parts[: count - 1])).children:
                self._tree.mkdir(self._hierarchy + above)

    def _parent(self, quality: Quality) -> str:
        if quality is Quality.GUARANTEED:
            return self.root
        stem = self.root.rpartition("/")[2].removesuffix(".slice")
        return f"{self.root}/{f'{stem}-{quality.value}.slice' if self._setup.has_systemd else quality.value}"

    def _pod_path(self, uid: str, quality: Quality) -> str:
        parent = self._parent(quality)
        if not self._setup.has_systemd:
            return f"{parent}/pod{uid}"
        stem = parent.rpartition("/")[2].removesuffix(".slice")
        return f"{parent}/{stem}-pod{uid.replace('-', '_')}.slice"

    def _scope(self, identity: str) -> str:
        if self._setup.has_systemd:
            return f"{self._setup.runtime.value}-{identity}.scope"
        return f"crio-{identity}" if self._setup.runtime is Runtime.CRIO else identity


def _total(limits: list[float | None]) -> float | None:
    return None if None in limits else sum(limit for limit in limits if limit is not None)
