"""What a person sees during a run: a line for each fault and its recovery, and live counts underneath."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from coda_lab.chaos.running import Audience, Scene
from coda_lab.chaos.schedule import Fault

_REFRESH_S: Final = 0.5
_LINE_EVERY_S: Final = 30.0  # where no live line can be shown


class _Lines(logging.Handler):
    """Gives each message to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


class Display:
    """Tells the run on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._scene: Scene | None = None
        self._bar = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total} faults  {task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        logging.getLogger("coda_lab.restarting").addHandler(_Lines(self._say))
        logging.getLogger("coda_kube").setLevel(logging.ERROR)  # every outage breaks our own watches: that is meant
        self._task = self._bar.add_task("", total=None)

    @property
    def audience(self) -> Audience:
        """What `running.run` takes."""
        return Audience(step=self._say, fault=self._fault, scene=self._show)

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

    def _fault(self, fault: Fault, what: str) -> None:
        joined = "+" if fault.joins else " "
        self._say(f"{joined}#{fault.number:<3} {fault.target.value:14} {what}")

    def _say(self, what: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._console.print(f"{elapsed_s:6.1f} s  {what.strip()}", markup=False, highlight=False, soft_wrap=True)

    def _show(self, scene: Scene) -> None:
        self._scene = scene
        self._bar.update(self._task, total=len(scene.options.faults))

    async def _refresh(self) -> None:
        next_line_s, told = _LINE_EVERY_S, 0
        while True:
            await asyncio.sleep(_REFRESH_S)
            if self._scene is None:
                continue
            for breach in self._scene.checker.breaches[told:]:
                self._say(f"BREACH of invariant ({breach.invariant.value}): {breach.sentence}")
            told = len(self._scene.checker.breaches)
            self._bar.update(self._task, completed=len(self._scene.struck), description=counts(self._scene))
            if not self._console.is_terminal and time.monotonic() - self._began_s > next_line_s:
                next_line_s = time.monotonic() - self._began_s + _LINE_EVERY_S
                self._say(counts(self._scene))


def counts(scene: Scene) -> str:
    """`jobs: 31 open, 120 ended; foreign pods: 40 open, 200 ended; breaches: 0`."""
    account = scene.account
    jobs, pods = account.open_jobs, len(account.open_pods)
    return (
        f"jobs: {jobs} open, {len(account.jobs) - jobs} ended; "
        f"foreign pods: {pods} open, {len(account.pods) - pods} ended; breaches: {len(scene.checker.breaches)}"
    )
