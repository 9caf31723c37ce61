"""Writes the CPU jobs that ended to the store while this replica leads, and keeps the store small."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import inf
from typing import Any, Final, Protocol

from coda.errors import Outage
from coda.history.cpu_jobs import FinishedCpuJob
from coda_kube.say_again import SayAgain
from coda_operator.cpu_history.pod_watch import KEPT_S, CpuPodWatch
from coda_operator.history.writer import FIRST_DELAY_S, LAST_DELAY_S, LONGEST_TRY_S, RecordRefused, StoreFull
from coda_operator.metrics import CpuHistoryMetrics

log = logging.getLogger(__name__)

BATCH: Final = 500
"""Records of one transaction. Our choice: it takes 20 ms, and pods of one Job are one line."""
COLLECT_S: Final = 1.0
"""After a pod has ended, so that the pods of a Job that end together are one transaction. Our choice."""
TIDY_EVERY_S: Final = 600.0
COUNTED_S: Final = 2 * KEPT_S
"""A pod that is gone stays counted for so long: twice what another replica may tell of it again."""


class Target(Protocol):
    """What is written to: a `CpuJobTable`, or a test's."""

    def write(self, jobs: Sequence[FinishedCpuJob], now_s: float) -> int:
        """Count those that are not counted yet, all or none. Raises Outage or RecordRefused."""

    def forget_counted(self, before_s: float, existing: Collection[str]) -> int:
        """Forget which pods were counted before and do not exist."""

    def delete_before(self, ended_s: float) -> int:
        """Delete lines that ended before."""


class CpuRecorder:
    """`run` writes while this replica leads. `opened` brings the store's schema up to date. Raises Outage.

    `delete_jobs` deletes old records of TrainingJobs, given the time. `aside` does what may wait without making the
    event loop wait."""

    def __init__(
        self,
        watch: CpuPodWatch,
        table: Target,
        opened: Callable[[], Awaitable[Any]],
        metrics: CpuHistoryMetrics,
        *,
        kept_s: float,
        delete_jobs: Callable[[float], Any] = lambda now_s: None,
        clock: Callable[[], float] = time.time,
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._watch = watch
        self._table = table
        self._opened = opened
        self._metrics = metrics
        self._kept_s = kept_s
        self._delete_jobs = delete_jobs
        self._clock = clock
        self._aside = aside
        self._tidied_s = -inf
        self._failures = 0
        self._away = SayAgain(clock)
        self._began_s: float | None = None  # the present try
        self._is_open = False
        self._is_full = False
        metrics.show_waiting(lambda: watch.waiting, lambda: watch.lost)

    @property
    def is_away(self) -> bool:
        """True if the last try failed, or the present one lasts too long, and this replica leads."""
        began_s = self._began_s
        return self._failures > 0 or (began_s is not None and self._clock() - began_s > LONGEST_TRY_S)

    async def run(self) -> None:
        """Write until cancelled. While the store is away, records wait in the process."""
        await self._watch.cache.synced.wait()
        self._watch.begin_term()
        try:
            while True:
                self._began_s = self._clock()
                delay_s = await self._step_or_fail()
                self._began_s = None
                if delay_s is not None:
                    await asyncio.sleep(delay_s)
                    continue
                await self._wait_for_news()
        finally:
            self._failures, self._began_s = 0, None  # the next leader's word counts
            self._away.end()
            self._watch.end_term()

    async def _wait_for_news(self) -> None:
        self._watch.has_news.clear()
        if not self._watch.waiting:
            try:
                async with asyncio.timeout(TIDY_EVERY_S):
                    await self._watch.has_news.wait()
            except TimeoutError:
                return
            await asyncio.sleep(COLLECT_S)

    async def _step_or_fail(self) -> float | None:
        try:
            return await self._step()
        except Exception:  # the outermost loop of this work: without it the whole operator would end
            log.exception("the recorder of CPU jobs failed")
            return self._delay_s()

    def _delay_s(self) -> float:
        """A try has failed: the next one is after so long."""
        delay_s = min(LAST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._failures, 30))
        self._failures += 1
        self._is_open = False  # what comes back may be a back-up of an older version
        return delay_s

    async def _step(self) -> float | None:
        """Write one batch, and tidy up if it is time. Returns in how many seconds to go on; None: at the next news."""
        try:
            if not self._is_open:
                await self._opened()
                self._is_open = True
            if self._is_full:  # else nothing could ever be written
                self._is_full = False
                await self._tidy()
            if batch := self._watch.pending(BATCH):
                await self._write(batch)
            if self._clock() >= self._tidied_s + TIDY_EVERY_S or self._clock() < self._tidied_s:
                await self._tidy()
        except Outage as error:
            self._is_full = isinstance(error, StoreFull)
            if self._away.is_due():
                log.warning("CPU jobs are not stored: %s; %d records wait", error, self._watch.waiting)
            return self._delay_s()
        if self._failures:
            log.info("CPU jobs are stored again")
            self._away.end()
        self._failures = 0
        return 0.0 if self._watch.waiting else None

    async def _write(self, batch: Sequence[FinishedCpuJob]) -> None:
        try:
            new = await self._aside(self._table.write, batch, self._clock())
        except RecordRefused as error:
            if len(batch) > 1:
                for job in batch:  # one that is refused takes no other with it
                    await self._write([job])
                return
            log.error("the record of pod %s is lost, the store refuses it: %s", batch[0].uid, error)
            self._metrics.refused.inc()
            new = 0
        self._metrics.stored.inc(new)
        for job in batch:
            self._watch.settle(job.uid)

    async def _tidy(self) -> None:
        """Which pods exist is taken before the question: one that comes meanwhile is not counted yet."""
        now_s = self._clock()
        if self._watch.cache.in_touch.is_set():
            await self._aside(self._table.forget_counted, now_s - COUNTED_S, self._watch.existing())
        await self._aside(self._table.delete_before, now_s - self._kept_s)
        await self._aside(self._delete_jobs, now_s)
        self._tidied_s = now_s
