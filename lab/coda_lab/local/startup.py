"""Brings a cluster up from nothing. Steps that do not need each other run at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coda.errors import CodaError
from coda.wording import counted
from coda_kube.certificates import AUTHORITY_S, files_of, new_authority, new_leaf
from coda_lab import install
from coda_lab.emulators.nvml.library import build
from coda_lab.host.errors import failure_from_os_error
from coda_lab.host.paths import Settings, crds, manifests
from coda_lab.host.temp_folder import temporary_folder
from coda_lab.kubeconfigs import write_agent_credentials, write_private
from coda_lab.kubelets.nodes import node_specs
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.credentials import local_objects, write_credentials
from coda_lab.local.first_state import FirstState
from coda_lab.local.parts import account_key, extender_pod, foreign_scheduler_config, scheduler_config
from coda_lab.programs.control_plane import ensure_shown
from coda_lab.realnode.artifacts import ensure_node
from coda_lab.spec import (
    AGENT,
    EXTENDER,
    FOREIGN_SCHEDULER,
    FORWARDER,
    KUBELETS,
    MACHINES,
    OPERATOR,
    REAL_NODE,
    SCHEDULER,
    ClusterSpec,
    Layout,
    Tell,
    identity_of,
)


@asynccontextmanager
async def running_cluster(
    spec: ClusterSpec,
    *,
    tell: Tell,
    kind: type[LocalCluster] = LocalCluster,
    folder: Path | None = None,
    settings: Settings | None = None,
) -> AsyncIterator[LocalCluster]:
    """A ready cluster for the time of the block; nothing of it remains afterwards. Raises LabFailure or InvalidInput.

    `folder` for its files must be empty or absent; None takes a temporary one. Missing programs are built first, with
    progress on stderr. `kind`: the class of the handle.
    """
    spec.check()  # before anything is started
    settings = settings or Settings.from_environ()
    binaries = ensure_shown(settings)
    if spec.real_node_cores:
        ensure_node(settings, tell)
    if spec.agents:
        build(settings.cache)
    with contextlib.ExitStack() as files:
        try:
            home = folder or files.enter_context(temporary_folder())
            files.callback(shutil.rmtree, home, ignore_errors=True)
            cluster = kind(spec, home, binaries, settings)
            files.callback(cluster.end)
            await bring_up(cluster, tell)
        except OSError as error:
            raise failure_from_os_error(error, "starting the local control plane") from error
        yield cluster


async def bring_up(cluster: LocalCluster, tell: Tell) -> None:
    """Start everything of the cluster's spec but `stopped`, and wait until it works. Raises CodaError."""
    began_s = time.monotonic()
    steps = _Steps(cluster, tell, began_s)
    write_files(cluster)
    await steps.begin_etcd()
    await steps.start("etcd")
    await steps.start("kube-apiserver")
    tell(f"{time.monotonic() - began_s:5.1f} s  the API server answers at {cluster.server}")
    await together(
        steps.start("kube-controller-manager"),
        steps.start(SCHEDULER),
        steps.start(FOREIGN_SCHEDULER),
        steps.guarded(_take_effect(cluster), "waiting for Coda's definitions and roles"),
    )
    tell(f"{time.monotonic() - began_s:5.1f} s  scheduler and controllers run, definitions and roles are installed")
    await together(steps.simulate_nodes(), steps.start_coda(), steps.start_real_node(), steps.take_jobs())
    await steps.start_agents()


class _Steps:
    """The steps of one start; each is a no-op for parts that are absent or to be left stopped."""

    def __init__(self, cluster: LocalCluster, tell: Tell, began_s: float) -> None:
        self._cluster = cluster
        self._tell = tell
        self._began_s = began_s

    async def start(self, part: str) -> None:
        if part in self._cluster.part_by_name and part not in self._cluster.spec.stopped:
            await self._cluster.start(part)

    async def begin_etcd(self) -> None:
        """Give etcd its first state: one that was kept, else one that this cluster's control plane writes now."""
        cluster = self._cluster
        programs = (Path(argv[0]) for argv in cluster.binaries.argv_by_part.values())
        files = (file for folder in (crds(), manifests()) for file in sorted(folder.glob("*.yaml")))
        state = FirstState(cluster.settings.cache, programs, files, more=repr(local_objects()))
        async with state.locked():
            if state.copy_to(cluster.layout.etcd):
                return
            parts = ("etcd", "kube-apiserver", "kube-controller-manager")
            for part in parts:
                await self.start(part)
            await self.guarded(_install(cluster), "installing Coda's definitions and roles")
            for part in reversed(parts):
                await cluster.kill(part, signal.SIGTERM if part == "etcd" else signal.SIGKILL)
            state.keep(cluster.layout.etcd)
        self._say("definitions and roles are installed, and kept for later clusters")

    async def guarded(self, wanted: Coroutine[Any, Any, None], doing: str) -> None:
        running = [name for name in self._cluster.part_by_name if self._cluster.is_running(name)]
        await self._cluster.guarded(wanted, watch=running, doing=doing)

    async def simulate_nodes(self) -> None:
        if KUBELETS not in self._cluster.part_by_name or KUBELETS in self._cluster.spec.stopped:
            return
        await self.start(KUBELETS)
        async with self._cluster.client() as api:
            count = self._cluster.spec.node_count
            await self.guarded(install.wait_for_nodes(api, count), "waiting for the nodes")
        self._say(f"{count} simulated nodes are ready")

    async def take_jobs(self) -> None:
        async with self._cluster.client("user") as user:
            await self.guarded(install.wait_until_jobs_are_taken(user), "waiting until TrainingJobs are taken")

    async def start_real_node(self) -> None:
        await self.start(REAL_NODE)
        if REAL_NODE in self._cluster.part_by_name and self._cluster.is_running(REAL_NODE):
            self._say("the real node is ready")

    async def start_coda(self) -> None:
        await together(self._start_extenders(), self._start_operators())

    async def _start_extenders(self) -> None:
        extenders = [name for name in self._cluster.part_by_name if name.startswith(EXTENDER)]
        await together(self.start(FORWARDER), *(self.start(name) for name in extenders))
        if any(self._cluster.is_running(name) for name in extenders):
            async with self._cluster.client() as api:
                await self.guarded(install.wait_for_leader(api), "waiting for a leader among the extender's replicas")
            self._say(f"{counted(len(extenders), 'extender replica')} started, one of them leads")

    async def _start_operators(self) -> None:
        operators = [name for name in self._cluster.part_by_name if name.startswith(OPERATOR)]
        await together(*(self.start(name) for name in operators))
        if any(self._cluster.is_running(name) for name in operators):
            self._say("the operator runs")

    async def start_agents(self) -> None:
        agents = [name for name in self._cluster.part_by_name if identity_of(name) == AGENT]
        await self.start(MACHINES)
        if agents:
            await self.guarded(self._write_agent_credentials(agents), "making the agents' tokens")
        await together(*(self.start(name) for name in agents))
        if any(self._cluster.is_running(name) for name in agents):
            self._say(f"{counted(len(agents), 'agent')} started, each on an emulated machine")

    async def _write_agent_credentials(self, agents: list[str]) -> None:
        cluster = self._cluster
        nodes = node_specs(cluster.spec.nodes, racks=cluster.spec.racks)
        async with cluster.client() as admin:
            for number, agent in enumerate(agents):
                await write_agent_credentials(
                    admin,
                    cluster.layout.kubeconfig_of(agent, cluster.spec),
                    node=nodes[number].name,
                    server=cluster.spec.server_by_part.get(agent, cluster.server),
                    authority=cluster.layout.certificate,
                )

    def _say(self, what: str) -> None:
        self._tell(f"{time.monotonic() - self._began_s:5.1f} s  {what}")


async def together(*steps: Coroutine[Any, Any, None]) -> None:
    """Run steps at the same time; the first failure cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except BaseExceptionGroup as failures:
        expected, _ = failures.split(CodaError)
        raise (expected or failures).exceptions[0] from None


def write_files(cluster: LocalCluster) -> None:
    """Write all files that the parts read (credentials, keys, configurations), and the kubectl for people."""
    layout = cluster.layout
    write_credentials(
        layout.credentials,
        server=cluster.server,
        authority=layout.certificate,
        server_by_part=cluster.spec.server_by_part,
    )
    layout.certificate.parent.mkdir(mode=0o700, exist_ok=True)
    if cluster.spec.agents:
        layout.machines.mkdir(mode=0o700, exist_ok=True)
    layout.account_key.touch(mode=0o600)
    layout.account_key.write_text(account_key())
    _write_tls(layout)
    layout.scheduler_config.write_text(scheduler_config(cluster.spec, layout, cluster.ports["forwarder"]))
    if cluster.spec.foreign_scheduler:
        layout.foreign_scheduler_config.write_text(foreign_scheduler_config(layout))
    words = shlex.join(cluster.binaries.argv_by_part["kubectl"])
    admin = shlex.quote(str(layout.kubeconfig("admin")))
    layout.kubectl.write_text(f'#!/bin/sh\nKUBECONFIG="${{KUBECONFIG:-{admin}}}" exec {words} "$@"\n')
    layout.kubectl.chmod(0o755)


def _write_tls(layout: Layout) -> None:
    """The certificates between scheduler and extender, for as long as a local cluster may live."""
    now_s = time.time()
    authority = new_authority(now_s)
    for side, serves in ((EXTENDER, True), (SCHEDULER, False)):
        leaf = new_leaf(authority, serves=serves, now_s=now_s, valid_s=AUTHORITY_S)
        layout.tls(side).mkdir(mode=0o700, parents=True)
        for name, content in files_of(leaf, authority).items():
            write_private(layout.tls(side) / name, content.decode())


async def _install(cluster: LocalCluster) -> None:
    """What does not depend on the cluster's spec."""
    definitions = install.objects_in(crds())
    async with cluster.client() as api:
        await install.apply_all(api, (*definitions, *install.objects_in(manifests()), *local_objects()))
        await install.wait_until_served(api, definitions)
        await install.wait_for_account(api, "default")


async def _take_effect(cluster: LocalCluster) -> None:
    async with cluster.client() as api:
        await install.wait_until_served(api, install.objects_in(crds()))
        for number in range(cluster.spec.extenders if cluster.spec.coda else 0):
            port = cluster.ports[f"{EXTENDER}-{number}"]
            await install.create_pod(api, extender_pod(number, port))
        await install.wait_for_account(api, "default")
    async with cluster.client("user") as user:
        await install.wait_until_allowed(user, verb="create", resource="trainingjobs")
        await install.wait_until_refused(user)
