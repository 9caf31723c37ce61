"""Wires the history of CPU jobs of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from coda_kube.api.client import Client
from coda_operator.cpu_history.pod_watch import CpuPodWatch
from coda_operator.cpu_history.recorder import CpuRecorder
from coda_operator.metrics import CpuHistoryMetrics

if TYPE_CHECKING:
    from coda_operator.history.store import Store


class CpuHistory:
    """Without a `store` no pod is watched, and nothing is kept. `days`: lines older than this are deleted."""

    def __init__(
        self, store: Store | None, client: Client, registry: CollectorRegistry, *, days: int, clock: Callable[[], float]
    ) -> None:
        self._watch: CpuPodWatch | None = None
        self._recorder: CpuRecorder | None = None
        if store is not None:
            self._watch = CpuPodWatch(client, clock=clock)
            self._recorder = CpuRecorder(
                self._watch,
                store.cpu_jobs,
                lambda: asyncio.to_thread(store.migrate),
                CpuHistoryMetrics(registry),
                kept_s=days * 86400.0,
                clock=clock,
            )

    def is_away(self) -> bool:
        """True while this replica leads and cannot write the store."""
        return self._recorder is not None and self._recorder.is_away

    async def watch(self) -> None:
        """Know which CPU jobs ended, until cancelled. For every replica."""
        await (self._watch.run() if self._watch is not None else asyncio.Event().wait())

    async def record(self) -> None:
        """Write their records, until cancelled. For the replica that leads."""
        await (self._recorder.run() if self._recorder is not None else asyncio.Event().wait())
