"""The operator on the fake cluster: everything of a process but kopf, whose part a plain watch of jobs takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from coda.history import FinishedJob
from coda.lifecycle import LifecycleConfig
from coda_kube.api.client import MERGE, Client
from coda_kube.objects.json_types import Json
from coda_operator.cores_limit import NO_LIMIT, CoresLimit
from coda_operator.history import Outbox
from coda_operator.history.writer import MOST_WAITING, Target, Writer
from coda_operator.metrics import HistoryMetrics, Metrics
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.ownerless_pods import OwnerlessPods
from coda_operator.reconcile.reconciler import Reconciler
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.trials import Trials
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

    async def tail(self, path: str, query: Mapping[str, str], *, keep_bytes: int, limit_s: float) -> bytes:
        await self._alive()
        return await self._to.tail(path, query, keep_bytes=keep_bytes, limit_s=limit_s)

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        await self._alive()
        return await self._to.version_at(path, key, version)

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

    async def apply(self, path: str, body: Json, *, manager: str, timeout_s: float | None = None) -> Json:
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


class LoopWriter(Writer):
    """Does on the loop, in virtual time, what the writer's thread does. It ends with its process."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._put = asyncio.Event()

    def put(self, job: FinishedJob) -> bool:
        self._put.set()
        return super().put(job)

    async def run(self, client: Client) -> None:
        while not (isinstance(client, Wire) and client.dead.is_set()):
            self._put.clear()
            delay_s = self.step()
            await (self._put.wait() if delay_s is None else asyncio.sleep(delay_s))


@asynccontextmanager
async def operator(
    api: FakeCluster,
    *,
    wire: Client | None = None,
    config: LifecycleConfig = CONFIG,
    may_write: Callable[[], bool] = lambda: True,
    store: Target | None = None,
    most_waiting: int = MOST_WAITING,
    trial_nodes: Mapping[str, str] | None = None,
    cores_limit: CoresLimit = NO_LIMIT,
) -> AsyncIterator[Operator]:
    """An operator that leads until the block ends. `store` takes the records of finished jobs; None: no history."""
    client = wire or api
    outbox: Outbox
    reconciler: Reconciler
    metrics = Metrics(CollectorRegistry())
    workers = WorkQueue(lambda key: metrics.timed(reconciler.reconcile(key)), clock=clock)
    cluster = ClusterView(client, workers.wake, workers.wake_soon, clock=clock, config=config)
    recorder = Recorder(client, "operator-0")
    requests = RequestSlots(may_write, at_once=8)
    writer = (
        None
        if store is None
        else LoopWriter(store, lambda stored, refused: outbox.on_stored(stored, refused), most_waiting=most_waiting)
    )
    trials = Trials(client, trial_nodes)
    outbox = Outbox(writer, workers.wake, HistoryMetrics(metrics.registry), clock=clock)
    more: Any = {"clock": clock, "trials": trials, "cores_limit": cores_limit}
    reconciler = Reconciler(client, cluster, requests, recorder, metrics, config, outbox, **more)
    metrics.show_jobs(cluster.jobs.by_key.values)
    metrics.show_nodes(cluster.nodes.unready_count, cluster.nodes.is_braked)
    metrics.show_leader(may_write)
    works = (cluster.run(), recorder.run(), trials.run())
    tasks = [asyncio.create_task(work) for work in works]
    await cluster.synced()
    tasks.append(asyncio.create_task(cluster.jobs.run()))
    tasks.append(asyncio.create_task(OwnerlessPods(client, cluster, requests, clock=clock).run()))
    if writer is not None:
        tasks.append(asyncio.create_task(writer.run(client)))
    try:
        yield Operator(cluster=cluster, workers=workers, reconciler=reconciler, registry=metrics.registry)
    finally:
        await workers.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
