"""Starts the parts of a cluster again when they end, as a kubelet would. The cluster owns the processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn

from coda_lab.local.cluster import LocalCluster

log = logging.getLogger(__name__)

_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 30.0
_STEADY_S = 60.0  # a part that lived this long starts again after the first delay


class Restarter:
    """Keeps every part of `cluster` alive; calls `changed` after each end and each start."""

    def __init__(self, cluster: LocalCluster, *, changed: Callable[[], None] = lambda: None) -> None:
        self._cluster = cluster
        self._changed = changed
        self.restarts_by_part = dict.fromkeys(cluster.part_by_name, 0)
        self._left_to_others: dict[str, asyncio.Event] = {}  # part -> set when it is ours again

    @contextmanager
    def leaving(self, part: str) -> Iterator[None]:
        """While the block lasts, the caller ends the part and starts it again."""
        ours_again = self._left_to_others[part] = asyncio.Event()
        try:
            yield
        finally:
            del self._left_to_others[part]
            ours_again.set()

    async def keep_all(self) -> None:
        """Keep every part until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._cluster.part_by_name:
                group.create_task(self._keep(part))

    async def _keep(self, part: str) -> NoReturn:
        delay_s = _FIRST_DELAY_S
        while True:
            process = self._cluster.process(part)
            assert process is not None
            code = await process.ended()
            if part in self._left_to_others:
                await self._left_to_others[part].wait()
                if self._cluster.is_running(part):
                    continue
            if time.time() - process.started_s > _STEADY_S:
                delay_s = _FIRST_DELAY_S
            log.warning("%s ended with exit code %d; starting it again in %.0f s", part, code, delay_s)
            self._changed()
            await asyncio.sleep(delay_s)
            if self._cluster.is_running(part):
                continue  # somebody else was faster
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            self.restarts_by_part[part] += 1
            self._cluster.launch(part)
            self._changed()


@asynccontextmanager
async def kept_alive(cluster: LocalCluster) -> AsyncIterator[None]:
    """While the block lasts, every part that ends is started again."""
    keeping = asyncio.create_task(Restarter(cluster).keep_all())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
