"""Publishes what the store teaches as a small ConfigMap, because the planner has no database.

It is written again when jobs have finished since, at most every `EVERY_S`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from math import inf
from typing import Any, Final, Protocol

from coda.errors import CodaError
from coda.history import Account, FinishedJob, FinishedRun, RunGroup, accounts, run_groups
from coda.history.cpu_jobs import CpuUse
from coda.history.division import SPAN_S, HeldSpan, PastUse, held_span, past_use, with_cpu_use
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import OPERATOR
from coda_kube.objects.run_times import NAME, PATH, map_json

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
RETRY_S: Final = 10.0
MOST_RUNS: Final = 20_000
MOST_GROUPS: Final = 1000
"""A bound of the map, besides the one in bytes (`coda_kube.objects.run_times`). Our choice."""
WEEK_S: Final = SPAN_S
USAGE_EVERY_S: Final = 600.0
"""The use of a week changes slowly, and to read the records of 100 000 jobs takes about six seconds of a core."""


class Records(Protocol):
    """What is read: `Store`, or a test's. Both may wait for a database, and raise Outage."""

    def runs(self, most: int) -> list[FinishedRun]:
        """The last runs, oldest first."""

    def jobs(self, from_s: float, to_s: float) -> Iterable[FinishedJob]:
        """The jobs that ended in the span."""

    def cpu_use(self, from_s: float, to_s: float) -> CpuUse:
        """What the CPU jobs used that ended in the span."""


class RunTimesMap:
    """Keeps the ConfigMap up to date while `run` runs. `note_change` says that the store has new records.

    `aside` does what may wait without making the event loop wait."""

    def __init__(
        self,
        client: Client,
        records: Records | None,
        *,
        clock: Callable[[], float] = time.time,
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._client = client
        self._aside = aside
        self._records = records
        self._clock = clock
        self._changed = asyncio.Event()
        self._written: Json | None = None
        self._used: tuple[Account, ...] = ()
        self._past = PastUse()
        self._used_at_s = -inf
        self._refusal = ""

    def note_change(self) -> None:
        """There are new records. On the event loop."""
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled. Without a store nothing is written."""
        self._written = None  # another replica may have led meanwhile
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._records is not None:
                    await self.write(self._records)
                await asyncio.sleep(EVERY_S)
            except Rejected as error:
                if str(error) != self._refusal:
                    log.warning("%s is refused: %s", NAME, error)
                self._refusal = str(error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)
            except CodaError as error:
                log.info("%s is not written yet: %s", NAME, error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)
            except Exception:  # the outermost loop of this work: jobs do without the map, but not without an operator
                log.exception("%s is not written", NAME)
                self._changed.set()
                await asyncio.sleep(EVERY_S)

    async def write(self, records: Records) -> None:
        """Write the map if it is not as it was. Raises a CodaError."""
        now_s = self._clock()
        groups = await self._aside(_groups, records)
        if not 0 <= now_s - self._used_at_s < USAGE_EVERY_S:
            self._used, self._past = await self._aside(_used, records, now_s - WEEK_S, now_s + WEEK_S)
            self._used_at_s = now_s
        wanted = map_json(groups, self._used, self._past)
        if wanted != self._written:
            await self._client.apply(PATH, wanted, manager=OPERATOR)
            self._written = wanted


def _groups(records: Records) -> tuple[RunGroup, ...]:
    return run_groups(records.runs(MOST_RUNS), MOST_GROUPS)


def _used(records: Records, from_s: float, to_s: float) -> tuple[tuple[Account, ...], PastUse]:
    """What the accounts and the division are made of, in one reading of the records."""
    spans: list[HeldSpan] = []

    def read() -> Iterator[FinishedJob]:
        for job in records.jobs(from_s, to_s):
            span = held_span(job)
            if span is not None:
                spans.append(span)
            yield job

    used = accounts(read(), from_s, to_s)
    return used, with_cpu_use(past_use(spans, from_s, to_s), records.cpu_use(from_s, to_s))
