"""What a burst leaves behind goes, without anybody asking."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from coda_operator import memory_trim


class Circle:
    """Holds itself, so that no count of references ever ends it."""

    def __init__(self) -> None:
        self.held = self


@pytest.fixture
def no_collection_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("libc", ["glibc", "another"])
async def test_what_hangs_together_in_circles_goes(
    monkeypatch: pytest.MonkeyPatch, no_collection_by_itself: None, libc: str
) -> None:
    monkeypatch.setattr(memory_trim, "EVERY_S", 0.0)
    if libc == "another":
        monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())  # has no malloc_trim
    left = weakref.ref(Circle())
    assert left() is not None
    task = asyncio.create_task(memory_trim.trim_after_bursts())
    async with asyncio.timeout(10):
        while left() is not None:
            await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
