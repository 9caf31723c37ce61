"""A thread for work that may wait for the kernel. The process can end while it hangs."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")


class WorkerThread:
    """Does one piece of work after the other.

    Not an executor of the standard library: that one waits for its threads when the process ends, also for one that
    hangs."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Return the result, or what `work` raises, to the running event loop."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()

        def attempt() -> None:
            try:
                _tell(loop, outcome, partial(outcome.set_result, work()))
            except BaseException as error:  # raised where the outcome is awaited
                _tell(loop, outcome, partial(outcome.set_exception, error))

        self._work.put(attempt)
        return outcome

    def end(self) -> None:
        """Let the thread end after its present work, and do not wait for it."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _tell(loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[_T], say: Callable[[], None]) -> None:
    """Nobody waits any more where the outcome was cancelled, or the loop is closed."""
    try:
        loop.call_soon_threadsafe(lambda: None if outcome.done() else say())
    except RuntimeError:
        return
