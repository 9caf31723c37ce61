"""Starts the parts of a cluster again when they end, as a kubelet would. Owns no processes: the cluster does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

from coda_lab.cluster import LocalCluster

log = logging.getLogger(__name__)

_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 30.0
_STEADY_S = 60.0  # a part that lived this long starts again after the first delay


class Restarter:
    """Keeps every part of `cluster` alive; `changed` is called after each end and each start."""

    def __init__(self, cluster: LocalCluster, *, changed: Callable[[], None] = lambda: None) -> None:
        self._cluster = cluster
        self._changed = changed
        self.restarts_by_part = dict.fromkeys(cluster.part_by_name, 0)

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
            if time.time() - process.started_s > _STEADY_S:
                delay_s = _FIRST_DELAY_S
            log.warning("%s ended with exit code %d; starting it again in %.0f s", part, code, delay_s)
            self._changed()
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            self.restarts_by_part[part] += 1
            self._cluster.launch(part)
            self._changed()


@asynccontextmanager
async def kept_alive(cluster: LocalCluster) -> AsyncIterator[None]:
    """While the block lasts, what ends in the cluster is started again."""
    keeping = asyncio.create_task(Restarter(cluster).keep_all())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
