"""Writes why jobs wait into their status, beside everything else that the planner writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from itertools import islice
from typing import Final

from coda.model import JobId
from coda.model.decision import Refusal
from coda.model.live_placement import is_waiting
from coda.placements.failed_writes import PATIENCE_S, WriteFailures
from coda_extender.metrics import Metrics
from coda_extender.planner.pending_reasons import (
    BATCH,
    PendingNotice,
    PendingReasons,
    first_wait_since_s,
    notice_for,
    pending_for,
)
from coda_extender.planner.status_writer import RETRY_S, StatusWriter
from coda_extender.planner_process import ChangedRefusals
from coda_extender.written import Written
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json

WRITES_AVERAGED: Final = 16  # for what a write takes at present
SLOW_PAUSE_LIMIT_S: Final = 8.0  # while writes only take long; those that fail have longer pauses
_FAILED: Final = (Written.FAILED, Written.REFUSED, Written.BUSY)
_OVERTAKEN: Final = (Written.CONFLICT, Written.LAPSED)


class ReasonWriter:
    """Keeps all refusals, compares each with what the job's object shows, and writes the differences as they become
    due. A job whose write did not work pauses, and is compared again after that. One whose write is slow pauses until
    its end, and one that such writes of its namespace keep from beginning until the end of one of them."""

    def __init__(self, writer: StatusWriter, state: ClusterState, metrics: Metrics, *, at_once: int) -> None:
        self._writer = writer
        self._state = state
        self._metrics = metrics
        self._slots = asyncio.Semaphore(at_once)
        self._reasons = PendingReasons()
        self._refusal_by_job: dict[JobId, Refusal] = {}
        self._stale: set[JobId] = set()
        self._changed = asyncio.Event()
        self._failures: dict[JobId, WriteFailures] = {}
        self._paused_until_s: dict[JobId, float] = {}
        self._conflicts: dict[JobId, int] = {}  # in a row
        self._slow: set[JobId] = set()  # their writes go on
        self._crowded: dict[str, dict[JobId, None]] = {}  # by namespace, the longest wait first
        self._worked_s = float("-inf")
        self._write_s = 0.0

    def change_refusals(self, changes: ChangedRefusals) -> None:
        """Take over what changed. O(jobs that changed)."""
        for generation, reason, jobs in changes.groups:
            for job in jobs:
                self._refusal_by_job[job] = Refusal(job, generation, reason)
                self._compare(job)
        for job in changes.gone:
            self._refusal_by_job.pop(job, None)
            self._compare(job)
        self._changed.set()

    def remove_reasons(self, stale: Iterable[JobId]) -> None:
        """Remove the reasons of these jobs and no others: they show one though they wait no more."""
        before, self._stale = self._stale, set(stale)
        for job in sorted(before ^ self._stale):
            self._compare(job)
        self._changed.set()

    def note_job(self, job: JobId) -> None:
        """The job's object changed."""
        if job in self._refusal_by_job or job in self._stale:
            self._compare(job)
            self._changed.set()

    def forget(self) -> None:
        """Forget all refusals: they are told again, or by another leader."""
        self._refusal_by_job.clear()
        self._stale.clear()
        self._paused_until_s.clear()
        self._slow.clear()
        self._crowded.clear()
        self._reasons.clear()

    def _compare(self, job: JobId) -> None:
        refusal = self._refusal_by_job.get(job)
        if job in self._stale:
            notice: PendingNotice | None = PendingNotice(job=job, refusal=None, urgent=True)
        else:
            notice = notice_for(refusal, self._state.job_json_by_id.get(job)) if refusal is not None else None
        if notice is None:
            self._reasons.discard(job)
        else:
            self._reasons.put(notice)

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0
        while True:
            self._changed.clear()
            now_s = time.monotonic()
            self._end_pauses(now_s)
            notices, more_in_s = self._reasons.pop_due(now_s, self._write_s)
            due = [notice for notice in notices if notice.job not in self._paused_until_s]
            if due:
                results = await asyncio.gather(*(self._write(notice) for notice in due))
                if all(written in _FAILED for written in results):  # the API server is away, or has its own trouble
                    failures = min(failures + 1, len(RETRY_S) - 1)
                    await asyncio.sleep(RETRY_S[failures])
                else:
                    failures = 0
            elif not notices:
                await self._wait(more_in_s, now_s)

    async def _wait(self, more_in_s: float | None, now_s: float) -> None:
        """Until the next notice is due, or there are new ones."""
        paused_until_s = min(self._paused_until_s.values(), default=None)
        if paused_until_s is not None:
            more_in_s = min(paused_until_s - now_s, paused_until_s - now_s if more_in_s is None else more_in_s)
        if more_in_s is None or more_in_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(more_in_s):
                    await self._changed.wait()

    def _end_pauses(self, now_s: float) -> None:
        for job in [job for job, until_s in self._paused_until_s.items() if until_s <= now_s]:
            self._end_pause(job)
        for by_job in (self._failures, self._conflicts):
            for job in [job for job in by_job if job not in self._state.job_json_by_id]:
                del by_job[job]

    def _pause(self, job: JobId, pause_s: float) -> None:
        self._paused_until_s[job] = time.monotonic() + pause_s

    def _end_pause(self, job: JobId) -> None:
        self._paused_until_s.pop(job, None)
        self._crowded.get(_namespace(job), {}).pop(job, None)
        self._compare(job)

    async def _write(self, notice: PendingNotice) -> Written:
        """What came of the write; SLOW also if it did not begin because of slow ones."""
        job, began = notice.job, False

        def status_after(status: Json) -> Json | None:
            nonlocal began
            began = True
            return self._status_after(notice, status)

        async with self._slots:
            created_s = first_wait_since_s(self._state.job_json_by_id.get(job))
            began_s = time.monotonic()
            written = await self._writer.write(
                job,
                status_after,
                done=lambda: self._note_stored(job, created_s),
                ended=lambda written: self._note_late_end(job, written),
            )
            if began and written not in (Written.NEEDLESS, Written.LAPSED):  # these ask the API server nothing
                self._write_s += (time.monotonic() - began_s - self._write_s) / WRITES_AVERAGED
        if written is Written.SLOW:
            self._slow.add(job)
            self._pause(job, SLOW_PAUSE_LIMIT_S)
        elif written is Written.BUSY and not began:
            crowded = self._crowded.setdefault(_namespace(job), {})
            crowded[job] = None
            self._pause(job, min(SLOW_PAUSE_LIMIT_S, PATIENCE_S * max(1.0, len(crowded) / BATCH)))
            written = Written.SLOW
        else:
            self._note_end(job, written)
        return written

    def _note_end(self, job: JobId, written: Written) -> None:
        now_s = time.monotonic()
        if written in _OVERTAKEN:
            conflicts = self._conflicts[job] = self._conflicts.get(job, -1) + 1
            self._pause(job, RETRY_S[min(conflicts, len(RETRY_S) - 2)])
        elif written in _FAILED:
            before = self._failures.get(job) or WriteFailures(since_s=now_s)
            failures = self._failures[job] = before.with_failure(now_s)
            pause_s = failures.pause_s(others_work=self._worked_s > failures.since_s)
            if written is Written.BUSY:
                pause_s = min(pause_s, SLOW_PAUSE_LIMIT_S)
            self._pause(job, max(pause_s, RETRY_S[1]))

    def _note_late_end(self, job: JobId, written: Written) -> None:
        """A write has ended. If it was slow, its job is free again, and there is room for others of its namespace."""
        if job not in self._slow:
            return
        self._slow.discard(job)
        if written in _FAILED or written in _OVERTAKEN:
            self._note_end(job, written)
        else:
            self._end_pause(job)
        for other in list(islice(self._crowded.get(_namespace(job), {}), BATCH)):
            self._end_pause(other)
        self._changed.set()

    def _note_stored(self, job: JobId, created_s: float | None) -> None:
        """Soon or late: a slow write that is stored in the end is no failure."""
        self._metrics.pending_writes.inc()
        if created_s is not None:
            self._metrics.first_reason_s.observe(max(0.0, self._writer.now_s() - created_s))
        self._failures.pop(job, None)
        self._conflicts.pop(job, None)
        self._worked_s = time.monotonic()

    def _status_after(self, notice: PendingNotice, status: Json) -> Json | None:
        """The status with the reason if the job still waits, or without it if it still does not; else None."""
        unchanged = {name: status[name] for name in ("placement", "sharing") if status.get(name)}
        if notice.refusal is None:
            return unchanged if status.get("pending") and status.get("phase") != "Queued" else None
        job = self._state.job(notice.job)
        if job is None or not is_waiting(job) or notice_for(notice.refusal, {"status": status}) is None:
            return None
        return unchanged | {"pending": pending_for(notice.refusal, status, self._writer.now_s())}


def _namespace(job: JobId) -> str:
    return job.partition("/")[0]
