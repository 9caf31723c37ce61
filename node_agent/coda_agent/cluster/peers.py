"""The NodeProfiles of other nodes, each read when it is asked for.

Nothing is watched: a thousand agents that watch all NodeProfiles would be sent each of them a thousand times."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from coda.allocator.ranks import RankReport
from coda.errors import Outage
from coda_agent.cluster.caches import READ_ERRORS
from coda_agent.cluster.rank_reports import reports_from_json
from coda_kube.api.retry_pauses import write_pause_s
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""The most reads under way at one time: a gang may have thousands of nodes. Our choice."""

AGAIN_S: Final = 5.0
LONGEST_S: Final = 60.0
"""The least seconds between two reads of one profile, and the bound of that after failures. Our choice."""


class Peers:
    """What agents on other nodes report of their ranks. `read`: returns a NodeProfile; None: there is none."""

    def __init__(self, read: Callable[[str], Awaitable[Json | None]], now_s: Callable[[], float]) -> None:
        self._read = read
        self._now_s = now_s
        self._reports: dict[str, tuple[RankReport, ...]] = {}  # by node, of those that were read
        self._again_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._left_out: dict[str, int] = {}  # by node: reports that could not be read, as logged last
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    def ask(self, node: str) -> None:
        """Begin to read the profile of `node`, unless that is under way or was done a moment ago."""
        if node not in self._under_way and self._now_s() >= self._again_s.get(node, 0.0):
            self._under_way[node] = asyncio.create_task(self._attempt(node))

    def reports_of(self, node: str) -> tuple[RankReport, ...] | None:
        """Return what was read last; None if nothing was read yet."""
        return self._reports.get(node)

    def forget_all_except(self, nodes: Collection[str]) -> None:
        """Keep only what is known of these nodes."""
        for node in (self._reports.keys() | self._again_s.keys()) - set(nodes):
            self._reports.pop(node, None)
            self._again_s.pop(node, None)
            self._failures.pop(node, None)
            self._left_out.pop(node, None)

    async def cancel(self) -> None:
        """End all reads under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _attempt(self, node: str) -> None:
        try:
            async with self._slots:
                faults: list[str] = []
                self._reports[node] = reports_from_json(await self._read(node), faults)
            self._log_faults(node, faults)
            self._failures.pop(node, None)
            self._again_s[node] = self._now_s() + AGAIN_S
        except READ_ERRORS as error:
            failures, asked_s = self._failures.get(node, 0), error.retry_after_s if isinstance(error, Outage) else 0.0
            pause_s = write_pause_s(failures, asked_s, first_s=AGAIN_S, longest_s=LONGEST_S)
            self._again_s[node], self._failures[node] = self._now_s() + pause_s, failures + 1
            if not failures:
                log.warning("the NodeProfile of %s cannot be read: %s", node, error)
        finally:
            self._under_way.pop(node, None)

    def _log_faults(self, node: str, faults: Sequence[str]) -> None:
        if faults and len(faults) != self._left_out.get(node):
            log.warning("%d reports of ranks in the NodeProfile of %s cannot be read: %s", len(faults), node, faults[0])
        self._left_out[node] = len(faults)
