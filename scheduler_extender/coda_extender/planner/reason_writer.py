"""Writes why jobs wait into their status, beside everything else that the planner writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from coda.model import JobId
from coda.model.live_placement import is_waiting
from coda_extender.metrics import Metrics
from coda_extender.planner.pending_reasons import (
    PendingNotice,
    PendingNotices,
    PendingReasons,
    notice_for,
    pending_for,
)
from coda_extender.planner.status_writer import RETRY_S, StatusWriter, Written
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json


class ReasonWriter:
    """Writes notices as they become due. A notice whose write did not work is due again."""

    def __init__(self, writer: StatusWriter, state: ClusterState, metrics: Metrics, *, at_once: int) -> None:
        self._writer = writer
        self._state = state
        self._metrics = metrics
        self._slots = asyncio.Semaphore(at_once)
        self._reasons = PendingReasons()
        self._changed = asyncio.Event()

    def replace_notices(self, notices: PendingNotices, stale: Iterable[JobId] = ()) -> None:
        """Write these from now on, and no others. `stale`: jobs that show a reason though they wait no more."""
        removals = (PendingNotice(job=job, refusal=None, urgent=True) for job in sorted(stale))
        self._reasons.replace(notices, removals)
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0
        while True:
            self._changed.clear()
            notices, more_in_s = self._reasons.pop_due(time.monotonic())
            if notices:
                results = await asyncio.gather(*(self._write(notice) for notice in notices))
                failed = Written.FAILED in results or Written.LAPSED in results
                failures = min(failures + 1, len(RETRY_S) - 1) if failed else 0
                if failed or Written.CONFLICT in results:
                    await asyncio.sleep(RETRY_S[failures])
            elif more_in_s is None or more_in_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(more_in_s):
                        await self._changed.wait()

    async def _write(self, notice: PendingNotice) -> Written:
        async with self._slots:
            written = await self._writer.write(notice.job, lambda status: self._status_after(notice, status))
        if written is Written.DONE:
            self._metrics.pending_writes.inc()
        elif written in (Written.CONFLICT, Written.FAILED, Written.LAPSED):
            self._reasons.put_back(notice)
        return written

    def _status_after(self, notice: PendingNotice, status: Json) -> Json | None:
        """The status with the reason if the job still waits, or without it if it still does not; else None."""
        unchanged: Json = {"placement": status["placement"]} if status.get("placement") else {}
        if notice.refusal is None:
            return unchanged if status.get("pending") and status.get("phase") != "Queued" else None
        job = self._state.job(notice.job)
        if job is None or not is_waiting(job) or notice_for(notice.refusal, {"status": status}) is None:
            return None
        return unchanged | {"pending": pending_for(notice.refusal, status, time.time())}
