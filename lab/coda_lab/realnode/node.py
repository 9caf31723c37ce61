"""Makes a Kubernetes node of a virtual machine, and lets tests do to it what happens to nodes.

All of it goes through the machine's guest program and the API server, so any process that may read the cluster's folder
can use it. `host_process` owns the machine.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from coda_lab.host.errors import LabFailure, last_lines
from coda_lab.kubelets.nodes import LABEL_RACK
from coda_lab.realnode import configuration
from coda_lab.realnode.artifacts import NodePieces
from coda_lab.realnode.configuration import KUBELET_ROOT, NODE
from coda_lab.realnode.guest import Ended, Guest, Service
from coda_lab.realnode.vm import SHARE

CONTAINERD = "containerd"
KUBELET = "kubelet"
GPU_PLUGIN = "gpu-plugin"

_NODE_FILES = f"{SHARE}/node"
_RUNTIME = f"{_NODE_FILES}/runtime"
_UNHEALTHY = f"{_NODE_FILES}/unhealthy-gpus"
_STATE_FILES = ("cpu_manager_state", "memory_manager_state")
_SOCKET_TIMEOUT_S = 120.0
_IMPORT_TIMEOUT_S = 3600.0  # the agent's image has 200 MB, which the emulated machine unpacks; on a busy one slowly
_LOOK_S = 0.2  # a new file in the machine sends no event here
_WATCHDOG_S = 120.0
"""The kubelet speaks twice in that time. It falls silent once its loop over pods is stuck for 5 minutes, such as in a
call of a device plug-in, which has no time limit (kubernetes/kubernetes#129249)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealNode:
    """The node, from outside. `folder` is its part of the cluster's folder."""

    guest: Guest
    folder: Path

    @classmethod
    def at(cls, folder: Path) -> RealNode:
        """The node whose machine keeps its files in `folder`. Raises LabFailure."""
        return cls(guest=Guest.load(folder / "machine.json"), folder=folder)

    @property
    def name(self) -> str:
        """Its name in the API server."""
        return NODE

    @property
    def share(self) -> Path:
        """The folder here that is `/coda` there: files are visible at once in both directions."""
        return self.folder / "share"

    async def run(self, *argv: str, timeout_s: float = 60.0, environ: Mapping[str, str] | None = None) -> Ended:
        """Run a command in the machine, as root. Raises LabFailure if it cannot run or takes longer."""
        return await self.guest.run(*argv, timeout_s=timeout_s, environ=environ)

    async def read(self, path: str) -> str:
        """The content of a file in the machine. Raises LabFailure."""
        return await self.guest.read(path)

    async def start(
        self,
        name: str,
        *argv: str,
        environ: Mapping[str, str] | None = None,
        restarts: bool = False,
        watchdog_s: float = 0.0,
    ) -> int:
        """Start a program that keeps running, under a name; return its pid there. Raises LabFailure."""
        (self.share / "logs").mkdir(exist_ok=True)
        log = f"{SHARE}/logs/{name}.log"
        service = Service(
            name=name, argv=argv, log=log, environ=environ or {}, restarts=restarts, watchdog_s=watchdog_s
        )
        return await self.guest.start(service)

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """End a started program (containerd, kubelet, gpu-plugin or an own one); return its exit code."""
        return await self.guest.end(name, number)

    def log(self, name: str) -> Path:
        """The log of such a program, a growing file on this machine."""
        return self.share / "logs" / f"{name}.log"

    async def container_cgroup(self, pod_uid: str, container_id: str = "") -> str:
        """The cgroup folder of a pod, or of one of its containers (`containerd://...`). Raises LabFailure."""
        pattern = f"pod{pod_uid}/{container_id.removeprefix('containerd://')}".rstrip("/")
        said = await self.run("/usr/bin/find", "/sys/fs/cgroup/kubepods", "-type", "d", "-path", f"*/{pattern}")
        folders = said.check().split()
        if len(folders) != 1:
            raise LabFailure(f"The real node has {len(folders)} cgroups that end in {pattern}.")
        return folders[0]

    async def pod_resources(self) -> dict[str, Any]:
        """The list of the kubelet's pod-resources socket. Raises LabFailure."""
        said = await self.run("/run/coda-vm/guest", "pod-resources", configuration.POD_RESOURCES)
        listed: dict[str, Any] = json.loads(said.check())
        return listed

    async def set_unhealthy(self, *gpu_ids: str) -> None:
        """Call these GPUs unhealthy, and all others healthy."""
        await self.guest.run("/bin/sh", "-c", f"cat > {_UNHEALTHY}", stdin="\n".join(gpu_ids).encode())

    async def restart_kubelet(self, changes: Mapping[str, Any] | None = None) -> None:
        """Kill the kubelet and start it again; `changes` are applied to its first configuration.

        Containers keep running. Raises LabFailure.
        """
        if await self.guest.is_running(KUBELET):
            await self.kill(KUBELET)
        await self.start_kubelet(changes)

    async def start_kubelet(self, changes: Mapping[str, Any] | None = None) -> None:
        """Start the kubelet that was killed. Raises LabFailure."""
        if changes is not None:
            self._write("kubelet.yaml", configuration.kubelet_yaml(changes))
            for state in _STATE_FILES:  # it refuses to start on the state of another policy
                (await self.run("/bin/rm", "-f", f"{KUBELET_ROOT}/{state}")).check()
        await self.start(
            KUBELET,
            f"{_NODE_FILES}/kubelet",
            f"--config={_NODE_FILES}/kubelet.yaml",
            f"--kubeconfig={_NODE_FILES}/kubelet.kubeconfig",
            f"--root-dir={KUBELET_ROOT}",
            f"--cert-dir={KUBELET_ROOT}/pki",
            f"--hostname-override={NODE}",
            f"--node-labels={configuration.LABEL_REAL}=true,{LABEL_RACK}=real",
            "--v=2",
            restarts=True,
            watchdog_s=_WATCHDOG_S,
        )

    async def start_all(self, pieces: NodePieces, credentials: Mapping[str, str]) -> None:
        """Make a node of a machine that has just booted. `credentials`: kubeconfigs to put there, by name.

        Raises LabFailure. The API server says when the node is Ready.
        """
        self._write_files(pieces, credentials)
        drivers = str(PurePosixPath(configuration.NVML_LIBRARY).parent)
        (await self.run("/bin/mkdir", "-p", "/etc/cni/net.d", "/run/containerd", drivers)).check()
        (await self.run("/bin/cp", f"{_NODE_FILES}/pods.conflist", "/etc/cni/net.d/")).check()
        (await self.run("/bin/cp", str(pieces.nvml), drivers)).check()
        spec = json.loads((await self.run(f"{_RUNTIME}/ctr", "oci", "spec")).check())
        self._write("nvidia-spec.json", configuration.nvidia_spec(spec))
        (await self.run("/bin/cp", f"{_NODE_FILES}/nvidia-spec.json", configuration.NVIDIA_SPEC)).check()
        await self.start_containerd()
        for archive in pieces.image_archives:
            await self.import_image(archive)
        await self.start_kubelet()
        await self.start_gpu_plugin()

    async def start_containerd(self) -> None:
        """Start the containerd that was killed, and wait until it takes commands. Raises LabFailure."""
        (await self.run("/bin/rm", "-f", configuration.CONTAINERD_SOCKET)).check()
        argv = (f"{_RUNTIME}/containerd", f"--config={_NODE_FILES}/containerd.toml")
        path = f"{_RUNTIME}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        await self.start(CONTAINERD, *argv, environ={"PATH": path}, restarts=True)
        await self._wait_for(configuration.CONTAINERD_SOCKET)

    async def import_image(self, archive: Path) -> None:
        """Give containerd an image of this machine, a docker or OCI archive. Raises LabFailure."""
        ctr = (f"{_RUNTIME}/ctr", f"--address={configuration.CONTAINERD_SOCKET}", "--namespace=k8s.io")
        (await self.run(*ctr, "images", "import", "--local", str(archive), timeout_s=_IMPORT_TIMEOUT_S)).check()

    async def start_gpu_plugin(self) -> None:
        """Start the device plug-in that was killed. Raises LabFailure."""
        argv = ("/run/coda-vm/guest", "gpus", _UNHEALTHY, *configuration.gpu_ids())
        await self.start(GPU_PLUGIN, *argv, restarts=True)

    def _write_files(self, pieces: NodePieces, credentials: Mapping[str, str]) -> None:
        (self.share / "node").mkdir(parents=True, exist_ok=True)
        self._write("containerd.toml", configuration.containerd_toml(PurePosixPath(pieces.runtime)))
        self._write("pods.conflist", configuration.cni_conflist())
        self._write("kubelet.yaml", configuration.kubelet_yaml({}))
        for name, kubeconfig in credentials.items():
            self._write(f"{name}.kubeconfig", kubeconfig, mode=0o600)
        for name, path in (("kubelet", pieces.kubelet), ("runtime", pieces.runtime)):
            link = self.share / "node" / name  # not a copy: files of the share are not cached in the machine
            link.unlink(missing_ok=True)
            link.symlink_to(path)

    def _write(self, name: str, text: str, *, mode: int = 0o644) -> None:
        path = self.share / "node" / name
        path.touch(mode=mode)
        path.write_text(text)

    async def _wait_for(self, path: str) -> None:
        ends_s = time.monotonic() + _SOCKET_TIMEOUT_S
        while (await self.run("/bin/test", "-e", path)).code != 0:
            if time.monotonic() > ends_s:
                log = self.log(CONTAINERD)
                raise LabFailure(f"containerd made no {path}.", log=log, last_lines=last_lines(log))
            await asyncio.sleep(_LOOK_S)
