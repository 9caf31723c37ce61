"""Writes the extender's part of a job's status: `placement` and `pending`, always both at once.

Every write has three conditions: the Lease is held, the job is as it was decided on, and nobody wrote to the object
meanwhile (its resourceVersion).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final
from weakref import WeakValueDictionary

from coda.errors import Conflict, Outage
from coda.model import Job, JobId
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.metrics import Metrics
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER
from coda_kube.objects.write import job_path, status_patch

log = logging.getLogger(__name__)

RETRY_S: Final = (0.02, 0.2, 0.5, 1.0, 2.0)
"""How long to wait after writes that did not work, each time longer; the first is a conflict's."""

Change = Callable[[Json], Json | None]
"""From a status to the extender's new part of it; None: write nothing."""


class Written(Enum):
    """The outcome of a write."""

    DONE = "done"
    NEEDLESS = "needless"  # nothing to change any more
    STALE = "stale"  # the job is not as it was decided on; its change causes another cycle
    CONFLICT = "conflict"  # somebody wrote first, and the cache does not show it yet
    LAPSED = "lapsed"  # the Lease is not held any more
    FAILED = "failed"  # the API server did not answer, or refused


class StatusWriter:
    """Writes as the extender's field manager: one write per job at a time, and `at_once` for all jobs."""

    def __init__(
        self, client: Client, cluster: ExtenderCluster, metrics: Metrics, held: Callable[[], bool], *, at_once: int
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._held = held
        self._slots = asyncio.Semaphore(at_once)
        self._locks: WeakValueDictionary[JobId, asyncio.Lock] = WeakValueDictionary()

    async def write(self, job_id: JobId, change: Change, *, decided_on: Job | None = None) -> Written:
        """Apply `change`, if the job is still as in `decided_on`."""
        lock = self._locks.get(job_id)
        if lock is None:
            lock = self._locks[job_id] = asyncio.Lock()
        async with self._slots, lock:
            written = await self._write(job_id, change, decided_on)
        if written not in (Written.DONE, Written.NEEDLESS):
            self._metrics.refused_writes.labels(written.value).inc()
        return written

    async def _write(self, job_id: JobId, change: Change, decided_on: Job | None) -> Written:
        item = self._cluster.state.job_json_by_id.get(job_id)
        if item is None or (decided_on is not None and not _is_unchanged(decided_on, self._cluster.state.job(job_id))):
            return Written.STALE
        status = change(item.get("status") or {})
        if status is None:
            return Written.NEEDLESS
        if not self._held():
            return Written.LAPSED
        metadata: dict[str, Any] = item["metadata"]
        body = status_patch(job_id, status, uid=metadata["uid"], version=metadata["resourceVersion"])
        try:
            answer = await self._client.apply(job_path(job_id, status=True), body, manager=EXTENDER)
        except Conflict:
            return Written.CONFLICT
        except NotFound:
            return Written.STALE
        except (Outage, Rejected) as error:
            log.warning("the status of %s was not written: %s", job_id, error)
            return Written.FAILED
        self._cluster.jobs.put(answer)
        return Written.DONE


def _is_unchanged(before: Job, now: Job | None) -> bool:
    """True if only its pods changed: which are bound or missing, and what they have. No decision depends on that."""
    if before is now:
        return True
    return now is not None and _without_pods(before) == _without_pods(now)


def _without_pods(job: Job) -> Job:
    return replace(job, bound=frozenset(), unbound={}, pod_cpu_m={})
