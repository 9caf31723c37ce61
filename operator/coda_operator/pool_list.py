"""Lists the pool's nodes for the API server, whose admission policies read the list (`deploy/manifests/policies.yaml`).

A policy cannot look a node up, so the names lie in ConfigMaps, as one text each: the API server converts a map of 5000
keys again for each pod, a text costs it nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from coda.errors import CodaError
from coda.nodes.pool import is_in_pool, pool_lists
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU, OPERATOR, POOL_TAINT, SYSTEM_NAMESPACE
from coda_kube.objects.quantities import whole_from_quantity

log = logging.getLogger(__name__)

LISTS_PATH: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
LABELS: Final = {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": "pool-nodes"}
GATHER_S: Final = 0.05  # our choice: many nodes come at once, and one write lists them all
RETRY_S: Final = 1.0


class PoolList:
    """Keeps the ConfigMaps true while `run` runs, also after somebody removes or changes one."""

    def __init__(self, client: Client, *, is_shared: bool) -> None:
        self._client = client
        self._is_shared = is_shared
        self._names: set[str] = set()
        self._changed = asyncio.Event()
        self._nodes = WatchCache(client, "/api/v1/nodes", listener=self._on_node)
        selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
        self._lists = WatchCache(client, LISTS_PATH, listener=self._on_list, query={"labelSelector": selector})

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._lists.run())
            tasks.create_task(self._keep())

    async def _keep(self) -> None:
        await self._nodes.synced.wait()
        await self._lists.synced.wait()
        self._changed.set()
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            try:
                await self.write()
            except CodaError as error:
                log.warning("the list of the pool's nodes is not written yet: %s", error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def write(self) -> None:
        """Write each list that is not as it should be."""
        for number, names in enumerate(pool_lists(self._names)):
            wanted = list_json(number, names)
            name = wanted["metadata"]["name"]
            known = self._lists.by_key.get(f"{SYSTEM_NAMESPACE}/{name}")
            if known is None or known.get("data") != wanted["data"]:
                written = await self._client.apply(f"{LISTS_PATH}/{name}", wanted, manager=OPERATOR)
                self._lists.put(written)
                log.info("%s lists %d nodes of the pool", name, len(names))

    def _on_node(self, old: Json | None, new: Json | None) -> None:
        name = key_of(new or old or {})
        was_in, is_in = name in self._names, new is not None and self._is_in_pool(new)
        if new is not None:  # nothing else is kept of a node
            version = new["metadata"]["resourceVersion"]
            self._nodes.by_key[name] = {"metadata": {"name": name, "resourceVersion": version}}
        if was_in != is_in:
            (self._names.add if is_in else self._names.discard)(name)
            self._changed.set()

    def _is_in_pool(self, node: Json) -> bool:
        keys = {taint.get("key") for taint in (node.get("spec") or {}).get("taints") or ()}
        gpus = whole_from_quantity(((node.get("status") or {}).get("allocatable") or {}).get(GPU, "0"))
        return is_in_pool(keys, gpus, pool_taint=POOL_TAINT, is_shared=self._is_shared)

    def _on_list(self, _old: Json | None, _new: Json | None) -> None:
        self._changed.set()


def list_json(number: int, names: tuple[str, ...]) -> Json:
    """Return one list. Each name stands between line ends, so that no name is found inside another."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"coda-pool-nodes-{number}", "namespace": SYSTEM_NAMESPACE, "labels": LABELS},
        "data": {"names": "\n".join(["", *names, ""])},
    }
