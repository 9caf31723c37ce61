"""Writes records to the store in a thread of its own, so that no event loop waits for a database.

The queue is bounded: what it has no place for stays with its finished TrainingJob, which is asked for it again. A store
that is away is tried again after a back-off, with all that waits. `Writer.step` decides what to try and when; the
thread only waits in between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from coda.errors import CodaError, Outage
from coda.history import FinishedJob
from coda_kube.say_again import SayAgain

log = logging.getLogger(__name__)

MOST_WAITING: Final = 1000
BATCH: Final = 100
"""Records of one transaction. Our choice: 100 take 20 ms, and a thousand no less for each."""
FIRST_DELAY_S: Final = 1.0
LAST_DELAY_S: Final = 60.0
STATEMENT_S: Final = 30
"""What one statement may take in the store. Our choice."""
LONGEST_TRY_S: Final = 2.0 * STATEMENT_S
"""A try that lasts longer has met a store that hangs: a server that answers pings keeps no limit of its own. Twice a
statement, since a try has more than one. Our choice."""

Key = tuple[str, int]
"""The uid of a job and the attempt in which it ended."""


class RecordRefused(CodaError):
    """The database will never take such a record."""


class StoreFull(Outage):
    """The database has no space for more."""


class Target(Protocol):
    """What is written to: `Store`, or a test's."""

    def migrate(self) -> None:
        """Bring the schema up to date. Raises Outage."""

    def write(self, jobs: Sequence[FinishedJob]) -> int:
        """Write all of them or none. Raises Outage or RecordRefused."""


class Writer:
    """A bounded queue of records in front of a store. `put`, `discard` and `is_away` may be called from any thread.

    `on_stored` is told, by the writing thread, what was stored, and what the store refused for good. `on_opened` is
    called by it once the store is open for the first time, and as long as it returns False, again after records were
    written."""

    def __init__(
        self,
        store: Target,
        on_stored: Callable[[Sequence[Key], Sequence[Key]], None],
        on_opened: Callable[[], bool] = lambda: True,
        *,
        most_waiting: int = MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._on_stored = on_stored
        self._on_opened = on_opened
        self._most_waiting = most_waiting
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[Key, FinishedJob] = {}
        self._is_open = False
        self._was_open = False
        self._calls_again = False
        self._failures = 0
        self._began_s: float | None = None  # the present try
        self._tried_s = 0.0  # when the last one began that has ended
        self._stopped = False
        self._error = ""
        self._away = SayAgain(clock)

    def put(self, job: FinishedJob) -> bool:
        """Have a record written; False if too many wait already. One that waits already stays as it is."""
        key = (job.uid, job.attempt)
        with self._changed:
            if key not in self._waiting:
                if len(self._waiting) >= self._most_waiting:
                    return False
                self._waiting[key] = job
                self._changed.notify()
        return True

    def discard(self, key: Key) -> None:
        """Do not write it any more; nothing if it does not wait."""
        with self._changed:
            self._waiting.pop(key, None)

    @property
    def is_away(self) -> bool:
        """True if the last try failed, or the present one lasts too long."""
        return self._failures > 0 or self._silent_s > LONGEST_TRY_S

    @property
    def error(self) -> str:
        """Why the store is away; empty if it is not."""
        silent_s = self._silent_s
        return f"it has not answered for {silent_s:.0f} s" if silent_s > LONGEST_TRY_S else self._error

    @property
    def now_s(self) -> float:
        """By the clock of `has_failed_since`."""
        return self._clock()

    def has_failed_since(self, since_s: float) -> bool:
        """True if a try failed that began since, and none went well after it; or the present one lasts too long since.

        So whoever waited from then on was tried in vain."""
        began_s = self._began_s
        hangs = began_s is not None and self._clock() - max(began_s, since_s) > LONGEST_TRY_S
        return hangs or (self._failures > 0 and self._tried_s >= since_s)

    @property
    def _silent_s(self) -> float:
        """How long the present try lasts."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock() - began_s

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return len(self._waiting)

    def step(self) -> float | None:
        """Try once: open the store, then write one batch. Returns in how many seconds to try again; None: when woken.

        Not for two threads at once."""
        self._began_s = began_s = self._clock()
        try:
            return self._try()
        finally:
            self._began_s, self._tried_s = None, began_s

    def _try(self) -> float | None:
        calls_again = self._calls_again
        try:
            if not self._is_open:
                self._store.migrate()
                self._is_open = True
                if not self._was_open:
                    self._was_open, self._calls_again = True, not self._on_opened()
            with self._changed:
                batch = dict(list(self._waiting.items())[:BATCH])
            stored, refused = self._written(batch)
        except Outage as error:
            return self._failed(str(error))
        if self._failures:
            log.info("the history store is back")
            self._away.end()
        self._failures, self._error = 0, ""
        with self._changed:
            for key in batch:
                self._waiting.pop(key, None)
            left = bool(self._waiting)
        if batch:
            self._on_stored(stored, refused)
        if calls_again and not left:
            self._calls_again = not self._on_opened()
        return 0.0 if left else None

    def _written(self, batch: dict[Key, FinishedJob]) -> tuple[list[Key], list[Key]]:
        """Return what was stored and what was refused. One record that is refused takes no other with it."""
        if not batch:
            return [], []
        try:
            self._store.write(tuple(batch.values()))
        except RecordRefused as error:
            if len(batch) > 1:
                stored: list[Key] = []
                refused: list[Key] = []
                for key, job in batch.items():
                    one_stored, one_refused = self._written({key: job})
                    stored += one_stored
                    refused += one_refused
                return stored, refused
            log.error("the record of job %s is lost, the store refuses it: %s", next(iter(batch))[0], error)
            return [], list(batch)
        return list(batch), []

    def _failed(self, sentence: str) -> float:
        delay_s = min(LAST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._failures, 30))
        if self._away.is_due(sentence):
            log.warning("the history store is away: %s; %d records wait", sentence, len(self._waiting))
        self._failures, self._error = self._failures + 1, sentence
        self._is_open = False  # what comes back may be a back-up of an older version
        return delay_s

    def run_in_thread(self) -> threading.Thread:
        """Start the thread that calls `step`. It ends after `stop`."""
        thread = threading.Thread(target=self._run, name="history", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """End the thread after its present try. What waits is written by the next leader."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        due_s: float | None = time.monotonic()
        while True:
            with self._changed:
                while not self._stopped and not self._is_due(due_s):
                    self._changed.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))
                if self._stopped:
                    return
            delay_s = self._step_or_fail()
            due_s = None if delay_s is None else time.monotonic() + delay_s

    def _is_due(self, due_s: float | None) -> bool:
        return bool(self._waiting) if due_s is None else time.monotonic() >= due_s

    def _step_or_fail(self) -> float | None:
        try:
            return self.step()
        except Exception as error:  # the outermost loop of the thread: without it no job would ever go
            log.exception("the history writer failed")
            return self._failed(f"{type(error).__name__}: {error}")
