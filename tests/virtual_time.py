"""An event loop whose clock stands still while there is work, and jumps to the next timer when there is none."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers fire in order and at once; waiting for what no timer ends raises instead of hanging.

    The work of threads takes no time: the clock stands still until they are done."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self.in_threads = 0
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

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], Result], *args: *Args
    ) -> asyncio.Future[Result]:
        future = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._leave_thread)
        return future

    def _leave_thread(self, _: asyncio.Future[Any]) -> None:
        self.in_threads -= 1


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        waits = timeout != 0 and self._loop.in_threads > 0
        events: list[Any] = super().select(None if waits else 0)
        if waits:
            return events
        if not events and timeout is None:
            raise RuntimeError("everything waits and no timer is set: nothing would ever happen again")
        if not events and timeout:
            self._loop.jump(timeout)
        return events
