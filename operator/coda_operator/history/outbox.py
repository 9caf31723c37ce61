"""Which finished jobs may go: those whose record is stored. The finished TrainingJob is the outbox.

A job is asked for its record at each of its steps, until the store has it. So nothing is lost with the process, and
what is stored twice is one record. Where the store is away for a day the record is dropped, counted, and the job goes;
but not before a try has failed since it was asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from coda.history import FinishedJob
from coda_operator.history.writer import BATCH, Key, Writer
from coda_operator.metrics import HistoryMetrics

log = logging.getLogger(__name__)

LONGEST_WAIT_S: Final = 86400.0
"""A job waits for a store that is away for so long, and no longer."""
LOOK_AGAIN_S: Final = 60.0
MOST_SETTLED: Final = 10_000
"""Jobs remembered as stored while their finalizer is not lifted yet; one that is forgotten is stored once more."""


class _Asked(NamedTuple):
    """When a record was asked for first: by the clock, and by that of the writer."""

    at_s: float
    by_writer_s: float


class Outbox:
    """What became of the records of finished jobs. All methods are called on the event loop.

    Without a `writer` there is no store: every job may go at once."""

    def __init__(
        self,
        writer: Writer | None,
        wake: Callable[[str], None],
        metrics: HistoryMetrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer = writer
        self._wake = wake
        self._metrics = metrics
        self._clock = clock
        self._settled: dict[Key, None] = {}
        self._job_by_key: dict[Key, str] = {}  # of the records that wait in the writer
        self._turned_away: dict[str, None] = {}  # jobs whose record found no place in it
        self._asked: dict[Key, _Asked] = {}

    def is_settled(self, uid: str, attempt: int) -> bool:
        """True once the record of this end is stored, or never will be."""
        return self._writer is None or (uid, attempt) in self._settled

    def post(self, job: str, record: FinishedJob, since_s: float) -> float:
        """Have the record of `job` (namespace/name) stored; return when to look again, if nobody wakes it before.

        `since_s`: when the job ended, or was deleted, and its last pods gave back their GPUs, by its own status."""
        key, now_s = (record.uid, record.attempt), self._clock()
        assert self._writer is not None
        asked = self._asked.setdefault(key, _Asked(now_s, self._writer.now_s))
        last_s = min(since_s or now_s, asked.at_s) + LONGEST_WAIT_S
        if now_s >= last_s and self._writer.has_failed_since(asked.by_writer_s):
            self._drop(key, job)
            return now_s
        if self._writer.put(record):
            self._job_by_key[key] = job
        else:
            self._turned_away[job] = None
        return last_s if last_s > now_s else now_s + LOOK_AGAIN_S

    def forget(self, uid: str, attempt: int) -> None:
        """The job may go, or is gone."""
        self._settled.pop((uid, attempt), None)
        self._asked.pop((uid, attempt), None)

    def on_stored(self, stored: Sequence[Key], refused: Sequence[Key]) -> None:
        """The writer has stored these, and lost those that the store refused for good."""
        self._metrics.stored.inc(len(stored))
        self._metrics.dropped.labels("Refused").inc(len(refused))
        for key in (*stored, *refused):
            self._settle(key)
        for job in list(self._turned_away)[:BATCH]:
            del self._turned_away[job]
            self._wake(job)

    def _drop(self, key: Key, job: str) -> None:
        assert self._writer is not None
        self._writer.discard(key)
        self._job_by_key[key] = job
        self._turned_away.pop(job, None)
        self._metrics.dropped.labels("StoreAway").inc()
        log.error("%s: its record is dropped, the history store was away for a day: %s", job, self._writer.error)
        self._settle(key)

    def _settle(self, key: Key) -> None:
        self._settled[key] = None
        self._asked.pop(key, None)
        while len(self._settled) > MOST_SETTLED:
            del self._settled[next(iter(self._settled))]
        if (job := self._job_by_key.pop(key, None)) is not None:
            self._wake(job)
