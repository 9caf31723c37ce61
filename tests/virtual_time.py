"""An event loop whose clock stands still while there is work, and jumps to the next timer when there is none."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers fire in order and at once; waiting for what no timer ends raises instead of hanging."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self._now_s

    def run_in_executor(  # type: ignore[override]  # asyncio types its arguments by a type variable
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run it at once: the clock knows of no thread, and would jump past every limit while one works."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def jump(self, seconds: float) -> None:
        self._now_s += seconds


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        events: list[Any] = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("everything waits and no timer is set: nothing would ever happen again")
        if not events and timeout:
            self._loop.jump(timeout)
        return events
