"""Limits on requests to the API server: how many at once, and writes only while the Lease is ours.

Pods of gangs have slots of their own, so that no status waits for the 4096 creates of another job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from coda.errors import Outage


class NotLeaderError(Outage):
    """The Lease is not ours, or no longer ours: nothing may be written."""


class RequestSlots:
    """Slots: `at_once` for the pods of gangs, half of that for all else (an idle TLS connection costs 130 KiB).

    `may_write` is asked when a write gets its slot, not when it was decided."""

    def __init__(self, may_write: Callable[[], bool], *, at_once: int) -> None:
        self._may_write = may_write
        self._slots = asyncio.Semaphore(max(1, at_once // 2))
        self._bulk_slots = asyncio.Semaphore(at_once)

    def require_lease(self) -> None:
        """Raise NotLeaderError unless writes are allowed now."""
        if not self._may_write():
            raise NotLeaderError("the Lease is not ours")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Wait for a slot for a request that changes nothing."""
        async with self._slots:
            yield

    @asynccontextmanager
    async def writing(self, *, bulk: bool = False) -> AsyncIterator[None]:
        """Wait for a slot for a write; `bulk`: of a gang's pod. Raises NotLeaderError."""
        async with self._bulk_slots if bulk else self._slots:
            self.require_lease()
            yield
