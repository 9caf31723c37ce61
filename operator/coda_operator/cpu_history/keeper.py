"""Wires the history of CPU jobs of one process, which also deletes what is too old in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from coda_kube.api.client import Client
from coda_operator.cpu_history.pod_watch import CpuPodWatch
from coda_operator.cpu_history.recorder import CpuRecorder
from coda_operator.metrics import CpuHistoryMetrics

if TYPE_CHECKING:
    from coda_operator.history.store import Store


DAY_S: Final = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """For how long records are kept after the end, in days. `job_days`: of TrainingJobs; 0: for ever."""

    cpu_days: int
    job_days: int


def delete_old_jobs(store: Store, kept: Retention, now_s: float) -> int:
    """Delete the records of TrainingJobs that are too old; return how many. Raises Outage."""
    return store.delete_before(now_s - kept.job_days * DAY_S) if kept.job_days else 0


class CpuHistory:
    """Without a `store` no pod is watched, and nothing is kept. `kept`: what is older is deleted."""

    def __init__(
        self,
        store: Store | None,
        client: Client,
        registry: CollectorRegistry,
        *,
        kept: Retention,
        clock: Callable[[], float],
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
                kept_s=kept.cpu_days * DAY_S,
                delete_jobs=lambda now_s: delete_old_jobs(store, kept, now_s),
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
