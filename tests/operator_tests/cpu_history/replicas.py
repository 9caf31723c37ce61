"""One operator, as far as CPU jobs go, and its store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from coda.errors import Outage
from coda.history.cpu_jobs import FinishedCpuJob
from coda_kube.objects.json_types import Json
from coda_operator.cpu_history.pod_watch import CpuPodWatch
from coda_operator.cpu_history.recorder import CpuRecorder
from coda_operator.history.writer import RecordRefused
from coda_operator.metrics import CpuHistoryMetrics
from tests.operator_tests.cpu_history.pods import PODS, cpu_pod
from tests.operator_tests.fake_cluster import FakeCluster, clock


@dataclass
class Table:
    """A store in memory that counts each pod once, as `CpuJobTable` does."""

    is_away: bool = False
    refused: str = ""
    counted: dict[str, float] = field(default_factory=dict)
    written: list[FinishedCpuJob] = field(default_factory=list)
    batches: int = 0

    def write(self, jobs: Sequence[FinishedCpuJob], now_s: float) -> int:
        if self.is_away:
            raise Outage("nobody answers")
        if any(job.uid == self.refused for job in jobs):
            raise RecordRefused("no place")
        new = [job for job in jobs if job.uid not in self.counted]
        self.counted |= {job.uid: now_s for job in new}
        self.written += new
        self.batches += 1
        return len(new)

    def forget_counted(self, before_s: float, existing: Collection[str]) -> int:
        old = [uid for uid, at_s in self.counted.items() if at_s < before_s and uid not in existing]
        for uid in old:
            del self.counted[uid]
        return len(old)

    def delete_before(self, ended_s: float) -> int:
        kept = [job for job in self.written if job.ended_s >= ended_s]
        deleted = len(self.written) - len(kept)
        self.written = kept
        return deleted


async def at_once(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)


class Replica:
    """One operator, as far as CPU jobs go."""

    def __init__(
        self,
        api: FakeCluster,
        table: Table,
        *,
        kept_s: float = 90 * 86400.0,
        delete_jobs: Callable[[float], Any] = lambda now_s: None,
        aside: Callable[..., Awaitable[Any]] = at_once,
    ) -> None:
        self.registry = CollectorRegistry()
        self.openings = 0
        self.watch = CpuPodWatch(api, clock=clock)
        self.recorder = CpuRecorder(
            self.watch,
            table,
            self._open,
            CpuHistoryMetrics(self.registry),
            kept_s=kept_s,
            delete_jobs=delete_jobs,
            clock=clock,
            aside=aside,
        )

    async def _open(self) -> None:
        self.openings += 1

    @asynccontextmanager
    async def running(self, *, leads: bool = True) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.watch.run())]
        if leads:
            tasks.append(asyncio.create_task(self.recorder.run()))
        try:
            await self.watch.cache.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """A term of a replica that watches."""
        task = asyncio.create_task(self.recorder.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"coda_operator_history_cpu_jobs_{name}")


def put(api: FakeCluster, status: Json, name: str = "work", **more: Any) -> None:
    more.setdefault("created_s", clock())
    api.set(PODS, cpu_pod(status, name=name, **more))
