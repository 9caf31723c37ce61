"""Ends a program's work when the program is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any


async def run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends, or until SIGTERM or SIGINT cancels it. Raises what `work` raises."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
