"""Wires the history of one process: the store, the thread that writes it, the outbox, and what is read at its start."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from coda.allocator import Category
from coda.allocator.start_point import Tuned
from coda.errors import Outage
from coda_kube.api.client import Client
from coda_operator.history.outbox import Outbox
from coda_operator.history.run_times_map import RunTimesMap
from coda_operator.history.writer import Key, Writer
from coda_operator.metrics import HistoryMetrics
from coda_operator.view.experience import LearnedCores

if TYPE_CHECKING:
    from coda_operator.history.store import Store

log = logging.getLogger(__name__)

TAUGHT_S: Final = 90 * 86400.0
"""What jobs of this long ago were tuned to still guides the next ones. Our choice: programs change."""


def store_of(url: str, file: str, *, url_file: str = "", ca_file: str = "") -> Store | None:
    """Return the store of the URL in `url_file`, or else at `url`, or else in the SQLite file; None if none is given.

    `ca_file`: of the authorities that sign PostgreSQL's certificate. Raises InvalidInput."""
    if not url_file and not url and not file:
        return None
    # Here, since SQLAlchemy takes a third of a second and 20 MB: an operator without a store never loads it.
    from coda_operator.history.address import UrlFile, database_url
    from coda_operator.history.store import Store

    found = UrlFile(Path(url_file)) if url_file else database_url(url, file)
    return None if found is None else Store(found, ca_file=ca_file)


class HistoryKeeper:
    """The history of one process. Without a `store` nothing is kept, and no job waits for it."""

    def __init__(
        self,
        store: Store | None,
        client: Client,
        wake: Callable[[str], None],
        learned: LearnedCores,
        registry: CollectorRegistry,
        *,
        cpu_jobs_away: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`cpu_jobs_away`: whether the CPU jobs cannot be written; their history is in the same store."""
        self._clock = clock
        self._learned = learned
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer = None if self._store is None else Writer(self._store, self._tell_loop, self._learn)
        metrics = HistoryMetrics(registry)
        self.outbox = Outbox(self._writer, wake, metrics, clock=clock)
        self._map = RunTimesMap(client, self._store, clock=clock)
        if self._writer is None:
            log.warning(
                "no history of finished jobs is kept: set CODA_HISTORY_URL_FILE, CODA_HISTORY_URL or CODA_HISTORY_FILE"
            )
        else:
            writer = self._writer
            metrics.show_writer(lambda: writer.waiting, lambda: writer.is_away or cpu_jobs_away())

    def start(self) -> None:
        """Open the store and write from now on, in a thread. Called on the event loop."""
        self._loop = asyncio.get_running_loop()
        if self._writer is not None:
            self._writer.run_in_thread()

    def stop(self) -> None:
        """End the thread after its present write; what waits is written by the next leader."""
        self._loop = None
        if self._writer is not None:
            self._writer.stop()

    async def publish(self) -> None:
        """Keep the ConfigMap of run times while this replica leads, until cancelled."""
        await self._map.run()

    def _tell_loop(self, stored: Sequence[Key], refused: Sequence[Key]) -> None:
        def tell() -> None:
            self.outbox.on_stored(stored, refused)
            self._map.note_change()

        self._call(tell)

    def _learn(self) -> bool:
        """Start points of the jobs that the API server has no more. False if they are to be asked for again."""
        assert self._store is not None
        try:
            taught = self._store.tuned(self._clock() - TAUGHT_S)
        except Outage as error:
            log.warning("start points are not read from the history store: %s; they are when a job has ended", error)
            return False
        for owner, category, gpus, cores in taught:
            known = Category(category) if category in _CATEGORIES else None
            tuned = Tuned(owner=owner, category=known, gpus_per_replica=gpus, cores_per_replica=cores)
            self._call(self._learned.learn, tuned)
        return True

    def _call(self, function: Callable[..., None], *values: object) -> None:
        """From the writing thread. A loop that has ended needs nothing any more."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *values)


_CATEGORIES: Final = frozenset(category.value for category in Category)
