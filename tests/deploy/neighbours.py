"""The definitions of others in a cluster, and the real cert-manager beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import yaml

from coda_kube.api.client import Client
from coda_kube.api.until import until
from coda_kube.objects.json_types import Json
from coda_lab import install
from coda_lab.host import processes
from coda_lab.host.paths import Settings
from coda_lab.host.ports import LOOPBACK
from coda_lab.local.cluster import LocalCluster
from coda_lab.programs.neighbours import Neighbour, cert_manager
from tests.deploy.installed import COLLECTIONS
from tests.e2e.jobs import PATIENCE_S


class _Words(yaml.CSafeLoader):
    """As Go reads it: `=` is a word. YAML 1.1 has a type of its own for it."""


_Words.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)


async def define(admin: Client, neighbour: Neighbour) -> None:
    """Apply its definitions, and wait until the API server serves them."""
    folder = await asyncio.to_thread(neighbour.definitions, Settings.from_environ())
    definitions = [
        item
        for file in sorted(folder.glob("*.yaml"))
        for item in yaml.load_all(file.read_text(), Loader=_Words)
        if item
    ]
    await install.apply_all(admin, definitions)
    names = {item["metadata"]["name"] for item in definitions}

    def is_served(item: Json) -> bool:
        conditions = (item.get("status") or {}).get("conditions") or ()
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    async with asyncio.timeout(PATIENCE_S):
        path = COLLECTIONS["CustomResourceDefinition"]
        await until(admin, path, lambda found: all(name in found and is_served(found[name]) for name in names))


@asynccontextmanager
async def cert_manager_runs(cluster: LocalCluster) -> AsyncIterator[None]:
    """While the block lasts, its controllers do, as administrator."""
    program = await asyncio.to_thread(cert_manager, Settings.from_environ())
    folder, log = cluster.layout.folder, cluster.log_path(program.name)
    argv = (str(program), f"--kubeconfig={cluster.kubeconfig('admin')}")
    environ = {processes.MARK: str(folder), "NO_PROXY": LOOPBACK}
    process = processes.start(argv, environ=environ, log=log, folder=folder)
    try:
        yield
        assert process.exit_code is None, log.read_text()[-2000:]
    finally:
        process.end_at_once()
