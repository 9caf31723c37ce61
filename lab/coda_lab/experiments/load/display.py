"""What a person sees during a run: a line for each event, and live counts below."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from coda_lab.checker import Checker
from coda_lab.experiments.load.account import Account

_REFRESH_S: Final = 0.5
_LINE_EVERY_S: Final = 30.0  # where no live line can be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The progress of a run: `done` of `total`, and its books."""

    done: int
    total: int
    account: Account
    checker: Checker

    def counts(self) -> str:
        """`jobs: 31 open, 120 ended; foreign pods: 40 open, 200 ended; breaches: 0`."""
        jobs, pods = self.account.open_jobs, len(self.account.open_pods)
        return (
            f"jobs: {jobs} open, {len(self.account.jobs) - jobs} ended; "
            f"foreign pods: {pods} open, {len(self.account.pods) - pods} ended; breaches: {len(self.checker.breaches)}"
        )


class _Lines(logging.Handler):
    """Gives each message to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


class Display:
    """Shows one run on one console. `unit`: what `done` counts."""

    def __init__(self, console: Console, unit: str) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._standing: Callable[[], Standing] | None = None
        self._bar = Progress(
            BarColumn(bar_width=20),
            TextColumn(f"{{task.completed}}/{{task.total}} {unit}  {{task.description}}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        logging.getLogger("coda_lab.local.restarts").addHandler(_Lines(self.say))
        logging.getLogger("coda_kube").setLevel(
            logging.ERROR
        )  # our own watches break on purpose, or the run reports it anyway
        self._task = self._bar.add_task("", total=None)

    def say(self, what: str) -> None:
        """One line, with the time since the start."""
        elapsed_s = time.monotonic() - self._began_s
        self._console.print(f"{elapsed_s:6.1f} s  {what.strip()}", markup=False, highlight=False, soft_wrap=True)

    def show(self, standing: Callable[[], Standing]) -> None:
        """Show this from now on."""
        self._standing = standing

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Keep the counts up to date until the block is left."""
        with self._bar:
            task = asyncio.create_task(self._refresh())
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _refresh(self) -> None:
        next_line_s, told = _LINE_EVERY_S, 0
        while True:
            await asyncio.sleep(_REFRESH_S)
            if self._standing is None:
                continue
            standing = self._standing()
            for breach in standing.checker.breaches[told:]:
                self.say(f"invariant ({breach.invariant.value}): {breach.sentence} ({', '.join(breach.objects)})")
            told = len(standing.checker.breaches)
            counts = standing.counts()
            self._bar.update(self._task, completed=standing.done, total=standing.total, description=counts)
            if not self._console.is_terminal and time.monotonic() - self._began_s > next_line_s:
                next_line_s = time.monotonic() - self._began_s + _LINE_EVERY_S
                self.say(counts)
