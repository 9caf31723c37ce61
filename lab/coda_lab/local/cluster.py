"""A running local cluster: its processes by name, and the handles that programs and tests use."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from coda_kube.api.client import Client, connect
from coda_lab.host import processes
from coda_lab.host.errors import LabFailure, last_lines
from coda_lab.host.paths import Settings
from coda_lab.host.ports import LOOPBACK, check_free, free_ports
from coda_lab.host.processes import Process
from coda_lab.kubeconfigs import write_agent_credentials
from coda_lab.local.parts import Part, coda_parts, control_plane
from coda_lab.programs.control_plane import Binaries
from coda_lab.realnode.node import RealNode
from coda_lab.spec import ClusterSpec, Layout

READY_TIMEOUT_S = 120.0  # for one step; seconds are usual
READY_TIMEOUT_REAL_NODE_S = 900.0  # more, where there is one: 60 s are usual, and a boot that hangs takes 200 s
READY_TIMEOUT_PER_NODE_S = 0.1  # 1000 simulated nodes took 30 s on two busy cores
_POLL_S = 0.05  # a foreign program says that it is ready only when asked
_HIDDEN = ("KUBECONFIG", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")


class LocalCluster:
    """The processes of one cluster. Belongs to no event loop; only the main thread may start parts."""

    def __init__(self, spec: ClusterSpec, folder: Path, binaries: Binaries, settings: Settings) -> None:
        self.spec = spec
        self.layout = Layout(folder=folder)
        self.binaries = binaries
        self.settings = settings
        self.ports = _choose_ports(spec)
        parts = (
            *control_plane(spec, self.layout, binaries.argv_by_part, self.ports),
            *coda_parts(spec, self.layout, self.ports),
        )
        self.part_by_name: Mapping[str, Part] = {part.name: part for part in parts}
        self._process_by_name: dict[str, Process] = {}
        self._log_offset: dict[str, int] = {}

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{LOOPBACK}:{self.ports['kube-apiserver']}"

    @property
    def kubectl(self) -> tuple[str, ...]:
        """The start of a kubectl command line, as administrator."""
        return (str(self.layout.kubectl),)

    def kubeconfig(self, identity: str = "admin") -> Path:
        """The kubeconfig of an identity (admin, user, operator, extender, agent, ...)."""
        return self.layout.kubeconfig(identity)

    @property
    def real_node(self) -> RealNode:
        """The handle on the real node. Raises LabFailure when there is none."""
        return RealNode.at(self.layout.real_node)

    def log_path(self, part: str) -> Path:
        """The log of a part."""
        return self.layout.log(part)

    @asynccontextmanager
    async def client(self, identity: str = "admin", *, timeout_s: float = 30.0) -> AsyncIterator[Client]:
        """A client with that identity, closed when the block is left."""
        api = await connect(str(self.kubeconfig(identity)), timeout_s=timeout_s)
        try:
            yield api
        finally:
            await api.close()

    @asynccontextmanager
    async def agent_client(self, node: str, *, timeout_s: float = 30.0) -> AsyncIterator[Client]:
        """A client with the identity of the agent on `node`, closed when the block is left."""
        path = await self.agent_kubeconfig(node)
        api = await connect(str(path), timeout_s=timeout_s)
        try:
            yield api
        finally:
            await api.close()

    async def agent_kubeconfig(self, node: str) -> Path:
        """A new kubeconfig with the identity of the agent on `node`."""
        path = self.layout.kubeconfig(f"agent-on-{node}")
        async with self.client() as admin:
            await write_agent_credentials(admin, path, node=node, server=self.server, authority=self.layout.certificate)
        return path

    def process(self, part: str) -> Process | None:
        """The newest process of a part, ended or not; None if it was never started."""
        return self._process_by_name.get(part)

    def is_running(self, part: str) -> bool:
        """True while the part's process lives, stopped by SIGSTOP or not."""
        process = self.process(part)
        return process is not None and process.exit_code is None

    async def start(self, part: str, *, environ: Mapping[str, str] | None = None) -> None:
        """Start a part that is not running and wait until it is ready. Raises LabFailure."""
        self.launch(part, environ=environ)
        await self.guarded(self._answers_ready(self.part_by_name[part]), watch=(part,), doing=f"starting {part}")

    async def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a part; after SIGKILL, SIGTERM and SIGINT also wait for its end."""
        process = self._process_by_name[part]
        process.signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            await self.guarded(process.ended(), watch=(), doing=f"ending {part} by {number.name}")

    async def restart(self, part: str, *, environ: Mapping[str, str] | None = None) -> None:
        """End the part by SIGTERM, and start it again."""
        if self.is_running(part):
            await self.kill(part, signal.SIGTERM)
        await self.start(part, environ=environ)

    def launch(self, part: str, *, environ: Mapping[str, str] | None = None) -> None:
        """Start a part's process without waiting for it."""
        if self.is_running(part):
            raise LabFailure(f"{part} runs already.")
        planned = self.part_by_name[part]
        log = self.log_path(part)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_offset[part] = log.stat().st_size if log.exists() else 0
        more = {**planned.environ, **self.spec.environ_by_part.get(part, {}), **(environ or {})}
        self._process_by_name[part] = processes.start(
            planned.argv, environ=self._environ(more), log=log, folder=self.layout.folder
        )

    async def guarded(self, wanted: Coroutine[Any, Any, Any], *, watch: Iterable[str], doing: str) -> None:
        """Wait for `wanted`. Raises LabFailure when a watched part ends first, or when it takes far too long."""
        patience_s = READY_TIMEOUT_S + READY_TIMEOUT_PER_NODE_S * self.spec.node_count
        patience_s += READY_TIMEOUT_REAL_NODE_S if self.spec.real_node_cores else 0.0
        task = asyncio.ensure_future(wanted)
        ends = {asyncio.ensure_future(self._process_by_name[name].ended()): name for name in watch}
        try:
            done, _ = await asyncio.wait({task, *ends}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                task.result()
                return
        finally:
            for pending in (task, *ends):
                pending.cancel()
            await asyncio.gather(task, *ends, return_exceptions=True)
        for ended in done:
            raise self._failure_of(ends[ended], f"while {doing}")
        raise LabFailure(f"{doing}: not done after {patience_s:.0f} s.")

    def end(self) -> None:
        """Kill every process at once. No state is kept, so no graceful end is needed."""
        for process in self._process_by_name.values():
            process.signal(signal.SIGKILL)
        for process in self._process_by_name.values():
            process.end_at_once()
        processes.kill_marked(str(self.layout.folder))

    async def _answers_ready(self, part: Part) -> None:
        while not await self._is_ready(part):
            await asyncio.sleep(_POLL_S)

    async def _is_ready(self, part: Part) -> bool:
        if part.ready_url is not None:
            return await answers_ok(part.ready_url)
        with self.log_path(part.name).open("rb") as log:
            log.seek(self._log_offset[part.name])
            return b"ready" in log.read().splitlines()

    def _failure_of(self, part: str, when: str) -> LabFailure:
        code = self._process_by_name[part].exit_code
        log = self.log_path(part)
        said = log.read_text(errors="replace")[-65_536:]
        if "address already in use" in said:
            return LabFailure(f"Port {self.ports[part]} on {LOOPBACK} is in use, so {part} cannot start: try again.")
        if "no space left on device" in said.lower():
            return LabFailure(f"The disk is full: {part} cannot write to {self.layout.folder}. Free some space.")
        kept = self.settings.cache / "failed" / log.name  # the cluster's own folder is removed next
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)
        return LabFailure(f"{part} ended with exit code {code} {when}.", log=kept, last_lines=last_lines(kept))

    def _environ(self, more: Mapping[str, str]) -> dict[str, str]:
        scratch = self.layout.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        kept = {name: value for name, value in self.settings.environ.items() if name not in _HIDDEN}
        return kept | {
            processes.MARK: str(self.layout.folder),
            "NO_PROXY": f"{LOOPBACK},localhost",
            "no_proxy": f"{LOOPBACK},localhost",
            "PYTHONPATH": processes.python_path(),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(scratch),
            **more,
        }


async def answers_ok(url: str, *, timeout_s: float = 2.0) -> bool:
    """True when a GET of a loopback `url` answers 200 now."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=False) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def _choose_ports(spec: ClusterSpec) -> dict[str, int]:
    names = spec.port_names
    found = [port for port in free_ports(len(names) + 1, random.Random()) if port != spec.api_port]
    chosen = dict(zip(names, found, strict=False))
    if spec.api_port:
        check_free(spec.api_port)
        chosen["kube-apiserver"] = spec.api_port
    return chosen
