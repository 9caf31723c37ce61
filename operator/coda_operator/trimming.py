"""Gives the memory of a burst back to the system: free() keeps what lies between two pieces in use, until it is told to
look. Knows nothing of what was in it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from typing import Final

LOOK_EVERY_S: Final = 10.0
WORTH_TRIMMING: Final = 5_000  # objects that came or went between two looks; about half a MiB
MOST_LOOKS: Final = 6  # while it never rests


class Tide:
    """The number of objects alive, again and again."""

    def __init__(self) -> None:
        self._before = 0
        self._looks = 0  # since much came or went, none while all is calm

    def is_time(self, count: int) -> bool:
        """True once it is calm after much came or went, and now and then while it never is."""
        moved, self._before = abs(count - self._before), count
        is_rough = moved >= WORTH_TRIMMING
        if not is_rough and not self._looks:
            return False
        self._looks += 1
        if is_rough and self._looks < MOST_LOOKS:
            return False
        self._looks = 0
        return True


async def trim_after_bursts() -> None:
    """Trim whenever a burst is over, until cancelled. Milliseconds each time; while little changes, nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl has none and keeps less
    tide = Tide()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if tide.is_time(sys.getallocatedblocks()):
            gc.collect()  # what hangs together in circles goes long after the burst, or never
            if trim is not None:
                trim(0)
