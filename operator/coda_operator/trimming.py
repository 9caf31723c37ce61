"""Gives the memory of a burst back to the system: free() keeps what lies between two pieces in use, until it is told to
look. Knows nothing of what was in it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from typing import Final

LOOK_EVERY_S: Final = 10.0
WORTH_TRIMMING: Final = 50_000  # objects gone; about five MiB


class Tide:
    """The number of objects alive, again and again."""

    def __init__(self) -> None:
        self._most = 0

    def has_fallen(self, count: int) -> bool:
        """True once so many have gone since the most there were that looking for their memory is worth it."""
        self._most = max(self._most, count)
        if self._most - count < WORTH_TRIMMING:
            return False
        self._most = count
        return True


async def trim_after_bursts() -> None:
    """Trim whenever a burst is over, until cancelled. Milliseconds each time; while little changes, nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl has none and keeps less
    tide = Tide()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if tide.has_fallen(sys.getallocatedblocks()):
            gc.collect()
            if trim is not None:
                trim(0)
