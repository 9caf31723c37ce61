"""Writes side by side, of which a slow one holds up nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from coda.model import JobId
from coda.placements.failed_writes import PATIENCE_S, SLOW_PER_NAMESPACE
from coda_extender.written import Written

Write = Callable[[], Coroutine[Any, Any, Written]]


class WriteSlots:
    """One write per job at a time, and `at_once` for all jobs.

    A write without an answer after `PATIENCE_S` goes on, and no longer counts among these. Each namespace may have a
    few such. `on_slow_end` is called when one of them ends."""

    def __init__(self, at_once: int, on_slow_end: Callable[[], object]) -> None:
        self._on_slow_end = on_slow_end
        self._slots = asyncio.Semaphore(at_once)
        self._task_by_job: dict[JobId, asyncio.Task[Written]] = {}
        self._slow_jobs: set[JobId] = set()
        self._slow_by_namespace: Counter[str] = Counter()

    async def run(self, job: JobId, write: Write, *, to_its_end: bool = False) -> Written | None:
        """Return what came of the write; None if it did not begin, because others of its job or namespace are slow.

        A slow one is left to itself, and is SLOW. With `to_its_end` it is awaited, and has no slot any more."""
        namespace = job.partition("/")[0]
        async with self._slots:
            if await self._is_busy(job) or self._slow_by_namespace[namespace] >= SLOW_PER_NAMESPACE:
                return None
            task = self._task_by_job[job] = asyncio.create_task(write())
            try:
                await asyncio.wait((task,), timeout=PATIENCE_S)
            except asyncio.CancelledError:
                task.cancel()
                raise
            finally:
                if task.done() or task.cancelling():
                    self._forget(job, task)
        if task.done():
            return task.result()
        self._slow_jobs.add(job)
        self._slow_by_namespace[namespace] += 1
        task.add_done_callback(lambda task: self._forget_slow(job, namespace, task))
        if not to_its_end:
            return Written.SLOW
        await asyncio.wait((task,))
        return task.result()

    def cancel(self) -> None:
        """Give up every slow write."""
        for task in self._task_by_job.values():
            task.cancel()

    async def _is_busy(self, job: JobId) -> bool:
        """True if an earlier write of the job is slow. One that is not, of its wait reason for example, is awaited."""
        task = self._task_by_job.get(job)
        if task is not None and job not in self._slow_jobs:
            await asyncio.wait((task,), timeout=PATIENCE_S)
            task = self._task_by_job.get(job)  # another write may have waited for it too
        return task is not None and not task.done()

    def _forget(self, job: JobId, task: asyncio.Task[Written]) -> None:
        if self._task_by_job.get(job) is task:
            del self._task_by_job[job]

    def _forget_slow(self, job: JobId, namespace: str, task: asyncio.Task[Written]) -> None:
        self._forget(job, task)
        self._slow_jobs.discard(job)
        self._slow_by_namespace[namespace] -= 1
        if not task.cancelled():
            task.result()
        self._on_slow_end()
