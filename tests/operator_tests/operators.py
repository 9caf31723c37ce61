"""The operator on the fake cluster: everything of a process but kopf, whose part a plain watch of jobs takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from coda.lifecycle import LifecycleConfig
from coda_kube.api.client import MERGE, Client
from coda_kube.objects.json_types import Json
from coda_operator.metrics import Metrics
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.reconciler import Reconciler
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view.cluster import ClusterView
from coda_operator.work_queue import WorkQueue
from tests.operator_tests.fake_cluster import FakeCluster, clock

CONFIG = LifecycleConfig()


class Wire(Client):
    """One process' way to the API server. After its last write nothing is heard or said any more: it was killed
    when the write had arrived and before the answer came. A watch of `deaf_to` tells nothing."""

    def __init__(self, api: FakeCluster, *, last_write: int | None = None, deaf_to: str = "") -> None:
        self._to = api
        self._left = last_write
        self._deaf_to = deaf_to
        self.dead = asyncio.Event()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        await self._alive()
        return await self._to.get(path, query)

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> AsyncIterator[Json]:
        yield await self.list_pages(path, query, page)

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> Json:
        await self._alive()
        return await self._to.list_pages(path, query, page)

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        await self._alive()
        answer = await self._to.create(path, body, query)
        if path.endswith("/events") or (query or {}).get("dryRun"):
            return answer
        await self._wrote()
        return answer

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        await self._alive()
        answer = await self._to.patch(path, body, content_type)
        await self._wrote()
        return answer

    async def apply(self, path: str, body: Json, *, manager: str) -> Json:
        await self._alive()
        answer = await self._to.apply(path, body, manager=manager)
        await self._wrote()
        return answer

    async def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        await self._alive()
        await self._to.delete(path, uid=uid, grace_s=grace_s)
        await self._wrote()

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        if path == self._deaf_to:
            await asyncio.Event().wait()
        async with self._to.watch(path, query, idle_s=idle_s) as events:
            yield events

    async def _alive(self) -> None:
        if self.dead.is_set():
            await asyncio.Event().wait()

    async def _wrote(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left <= 0:
            self.dead.set()
        await self._alive()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One running process."""

    cluster: ClusterView
    workers: WorkQueue
    reconciler: Reconciler
    registry: CollectorRegistry

    def count(self, metric: str, **labels: str) -> float:
        """The value of a metric."""
        return self.registry.get_sample_value(metric, labels) or 0.0


@asynccontextmanager
async def operator(
    api: FakeCluster,
    *,
    wire: Client | None = None,
    config: LifecycleConfig = CONFIG,
    may_write: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Operator]:
    """An operator that leads until the block ends."""
    client = wire or api
    metrics = Metrics(CollectorRegistry())
    workers = WorkQueue(lambda key: metrics.timed(reconciler.reconcile(key)), clock=clock)
    cluster = ClusterView(client, workers.wake, workers.wake_soon, clock=clock)
    recorder = Recorder(client, "operator-0")
    requests = RequestSlots(may_write, at_once=8)
    reconciler = Reconciler(client, cluster, requests, recorder, metrics, config, clock=clock)
    metrics.show_jobs(cluster.jobs.by_key.values)
    metrics.show_leader(may_write)
    tasks = [asyncio.create_task(cluster.run()), asyncio.create_task(recorder.run())]
    await cluster.synced()
    tasks.append(asyncio.create_task(cluster.jobs.run()))
    try:
        yield Operator(cluster=cluster, workers=workers, reconciler=reconciler, registry=metrics.registry)
    finally:
        await workers.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
