"""How the operator may talk to the API server: so many requests at once, and writes only while the Lease is ours.

The many pods of a gang have slots of their own: a status is never held up by 4096 creates of another job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from coda.errors import Outage


class NotLeaderError(Outage):
    """The Lease is not ours (any more): nothing may be written."""


class RequestSlots:
    """Slots: `at_once` for the pods of gangs, half as many for all else (an idle TLS connection costs 130 KiB).

    `may_write` is asked when a write's turn has come, not when it was decided."""

    def __init__(self, may_write: Callable[[], bool], *, at_once: int) -> None:
        self._may_write = may_write
        self._slots = asyncio.Semaphore(max(1, at_once // 2))
        self._bulk_slots = asyncio.Semaphore(at_once)

    def check(self) -> None:
        """Raise NotLeaderError unless we may write now."""
        if not self._may_write():
            raise NotLeaderError("the Lease is not ours")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """A slot for a request that changes nothing."""
        async with self._slots:
            yield

    @asynccontextmanager
    async def writing(self, *, bulk: bool = False) -> AsyncIterator[None]:
        """A slot for a write; `bulk` for one of a gang's pods. Raises NotLeaderError."""
        async with self._bulk_slots if bulk else self._slots:
            self.check()
            yield
