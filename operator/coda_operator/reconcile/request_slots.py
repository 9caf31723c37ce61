"""Limits on requests to the API server: how many at once, in turns between jobs, and writes only with the Lease.

Creating pods, ending pods and all else have slots of their own. So no status waits for the 4096 creates of another job,
and no roll-back for its launch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

from coda.errors import Outage


class NotLeaderError(Outage):
    """The Lease is not ours, or no longer ours: nothing may be written."""


class Purpose(Enum):
    """What a write is for."""

    STATUS = "status"  # the job itself, its Service, reads
    CREATE = "create"  # pods, and their cores
    END = "end"  # of pods: their deletion, and our finalizer


class RequestSlots:
    """Slots: `at_once` each for creating pods, for ending pods and for all else.

    More of them queue up at the API server, where every write of a small job then waits behind them: 32 delayed a job
    of one GPU by 2.1 s beside the launch of 4096 ranks, 8 by 1.2 to 1.8 s (docs/decisions/0038).

    `may_write` is asked when a write gets its slot, not when it was decided."""

    def __init__(self, may_write: Callable[[], bool], *, at_once: int) -> None:
        self._may_write = may_write
        self._slots_by_purpose = {
            Purpose.STATUS: TurnSlots(at_once),
            Purpose.CREATE: TurnSlots(at_once),
            Purpose.END: TurnSlots(at_once),
        }
        self.used = 0  # requests that got a slot so far: a sign of life

    def require_lease(self) -> None:
        """Raise NotLeaderError unless writes are allowed now."""
        if not self._may_write():
            raise NotLeaderError("the Lease is not ours")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Wait for a slot for a request that changes nothing."""
        async with self._slots_by_purpose[Purpose.STATUS].slot(""):
            self.used += 1
            yield

    @asynccontextmanager
    async def writing(self, purpose: Purpose = Purpose.STATUS, job_uid: str = "") -> AsyncIterator[None]:
        """Wait for a slot for a write; jobs take turns. Raises NotLeaderError."""
        async with self._slots_by_purpose[purpose].slot(job_uid):
            self.require_lease()
            self.used += 1
            yield


class TurnSlots:
    """A number of slots. Whoever waits gets the next one in turns of the keys: no key waits for all of another's."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        await self._acquire(key)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, key: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # it was given to us in the same moment
            raise

    def _release(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            turns = self._waiting.pop(key)
            turn = turns.popleft()
            if turns:
                self._waiting[key] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
