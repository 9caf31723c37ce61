"""What a person sees while the lab builds: a progress bar on a terminal, a line every 15 s elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coda_lab.programs.go_build import BuildProgress, Recipe

_LINE_EVERY_S = 15.0


class BuildDisplay:
    """Shows a build inside a `with` block. It shows nothing if nothing is built."""

    def __init__(self, recipe: Recipe, console: Console | None = None) -> None:
        self._recipe = recipe
        self._console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._next_line_s = 0.0
        self._said_anything = False

    def __enter__(self) -> BuildDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: BuildProgress) -> None:
        """Show how far the build is."""
        if not self._said_anything:
            self._said_anything = True
            self._console.print(self._recipe.announcement, soft_wrap=True)
        if self._console.is_terminal:
            self._show_bar(progress)
        else:
            self._show_line(progress)

    def _show_bar(self, progress: BuildProgress) -> None:
        if self._bar is None:
            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.percentage:.0f} %"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        said = f"{_left(progress.left_s)}  {_activity(progress)[-50:]}"
        self._bar.update(self._task, completed=progress.share, description=said)

    def _show_line(self, progress: BuildProgress) -> None:
        now_s = time.monotonic()
        if now_s < self._next_line_s:
            return
        self._next_line_s = now_s + _LINE_EVERY_S
        far = f"{100 * progress.share:3.0f} %, {_left(progress.left_s)}"
        with contextlib.suppress(BrokenPipeError):
            self._console.print(f"  {progress.elapsed_s:4.0f} s  {far}  {_activity(progress)}", soft_wrap=True)


def _left(seconds: float) -> str:
    if seconds < 60:
        return "less than a minute left"
    return f"about {round(seconds / 60)} min left"


def _activity(progress: BuildProgress) -> str:
    return progress.current or "preparing"
