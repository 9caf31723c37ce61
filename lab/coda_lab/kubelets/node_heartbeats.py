"""Makes the Node objects Ready and renews their Leases: the kubelets' signs of life. Knows no pods."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from coda.errors import Outage
from coda_kube.api.client import AlreadyExists, Client, NotFound, Rejected
from coda_kube.objects.quantities import micro_time_from_seconds
from coda_lab.kubelets.fleet import is_lost
from coda_lab.kubelets.machine import Machine
from coda_lab.kubelets.nodes import LABEL_SIMULATED, NodeSpec, is_ready, lease_json, node_json, node_patch, node_status
from coda_lab.kubelets.pods.status_writer import STRATEGIC

log = logging.getLogger(__name__)

Json = Mapping[str, Any]

FEW_NODES: Final = 100  # up to here the node controller's real timings work
_RENEW_EVERY_S: Final = (5.0, 120.0)  # few, many: many need --node-monitor-grace-period=10m
_MISSED_RENEWALS: Final = 8  # a Lease is valid for this many intervals (a kubelet: 40 s, renewed every 10 s)
_AT_ONCE: Final = 32
_PATIENCE_S: Final = 60.0  # how long an outage may last while nodes are registered
_DELAYS_S: Final = (0.1, 0.3, 1.0, 2.0, 5.0)
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


async def with_patience(call: Callable[[], Awaitable[Any]], *, until_s: float) -> Any:
    """Return the answer of `call`, tried again through outages until the loop's time `until_s`. Raises Outage then."""
    for delay_s in itertools.chain(_DELAYS_S, itertools.repeat(_DELAYS_S[-1])):
        try:
            return await call()
        except Outage:
            if asyncio.get_running_loop().time() + delay_s > until_s:
                raise
            await asyncio.sleep(delay_s)
    raise AssertionError("the delays never end")


class Registrar:
    """The Nodes and Leases of `specs`; `machines` says which of them are silent."""

    def __init__(self, client: Client, specs: Iterable[NodeSpec], machines: Mapping[str, Machine], port: int) -> None:
        self._client = client
        self._specs = {spec.name: spec for spec in specs}
        self._machines = machines
        self._port = port
        self._version = ""
        self._renew_every_s = _RENEW_EVERY_S[len(self._specs) > FEW_NODES]
        self._existing: set[str] = set()  # nodes that existed before us
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: set[str] = set()

    async def register_all(self) -> None:
        """Make every Node exist and Ready, with a fresh Lease. Nodes marked as lost stay as they are.

        Raises Outage when the API server does not answer for a minute, Rejected when it refuses."""
        until_s = asyncio.get_running_loop().time() + _PATIENCE_S
        self._version = (await with_patience(lambda: self._client.get("/version"), until_s=until_s))["gitVersion"]
        selector = {"labelSelector": f"{LABEL_SIMULATED}=true"}
        listing = await with_patience(lambda: self._client.list_pages("/api/v1/nodes", selector), until_s=until_s)
        for node in listing["items"]:
            machine = self._machines.get(node["metadata"]["name"])
            if machine is not None:
                self._existing.add(machine.name)
                machine.silent = is_lost(node)
        waiting = iter([spec for spec in self._specs.values() if not self._machines[spec.name].silent])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._register_each(waiting))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _register_each(self, waiting: Iterable[NodeSpec]) -> None:
        for spec in waiting:  # shared by all workers: each takes the next
            await self._register(spec)

    async def _register(self, spec: NodeSpec) -> None:
        until_s = asyncio.get_running_loop().time() + _PATIENCE_S
        exists = spec.name in self._existing
        node = await with_patience(lambda: self._take_over(spec) if exists else self._create(spec), until_s=until_s)
        await with_patience(lambda: self._fresh_lease(node), until_s=until_s)

    async def _create(self, spec: NodeSpec) -> Json:
        whole = node_json(spec, port=self._port, version=self._version, now_s=time.time())
        try:
            node: Json = await self._client.create("/api/v1/nodes", whole)
        except AlreadyExists:  # also if an earlier try succeeded but its answer was lost
            return await self._take_over(spec)
        return node if is_ready(node) else await self._take_over(spec)

    async def _take_over(self, spec: NodeSpec) -> Json:
        path = f"/api/v1/nodes/{spec.name}"
        await self._client.patch(path, node_patch(spec), STRATEGIC)
        boots = self._machines[spec.name].boots
        status = node_status(spec, self._port, self._version, time.time(), boots=boots)
        return await self._client.patch(f"{path}/status", status, STRATEGIC)

    async def _fresh_lease(self, node: Json) -> None:
        lease = lease_json(node, duration_s=_MISSED_RENEWALS * self._renew_every_s, now_s=time.time())
        try:
            await self._client.create(_LEASES, lease)
        except AlreadyExists:
            await self._client.patch(f"{_LEASES}/{lease['metadata']['name']}", lease)

    def returned(self, machine: Machine) -> None:
        """A machine is heard again: make its Node Ready and its Lease fresh as soon as possible."""
        self._start(machine.name, self._report_return(self._specs[machine.name]))

    async def _report_return(self, spec: NodeSpec) -> None:
        until_s = asyncio.get_running_loop().time() + _PATIENCE_S
        node = await with_patience(lambda: self._take_over(spec), until_s=until_s)
        await with_patience(lambda: self._fresh_lease(node), until_s=until_s)

    async def keep_leases(self) -> None:
        """Renew each Lease once in every interval, evenly spread, until cancelled."""
        loop = asyncio.get_running_loop()
        gap_s = self._renew_every_s / len(self._specs)
        next_s = loop.time()
        for name in itertools.cycle(self._specs):
            next_s = max(next_s + gap_s, loop.time() - self._renew_every_s)  # after a pause catch up one interval only
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            if not self._machines[name].silent and name not in self._renewing:
                self._start(name, self._renew(name))

    async def _renew(self, name: str) -> None:
        until_s = asyncio.get_running_loop().time() + self._renew_every_s
        patch = {"spec": {"renewTime": micro_time_from_seconds(time.time())}}
        try:
            await with_patience(lambda: self._client.patch(f"{_LEASES}/{name}", patch), until_s=until_s)
        except NotFound:  # collected with an earlier Node of this name
            node = await self._client.get(f"/api/v1/nodes/{name}")
            await with_patience(lambda: self._fresh_lease(node), until_s=until_s)

    def _start(self, name: str, work: Any) -> None:
        self._renewing.add(name)
        task = asyncio.get_running_loop().create_task(self._guarded(name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except (Outage, Rejected) as error:
            log.warning("%s: no sign of life got through: %s", name, error)
        finally:
            self._renewing.discard(name)
