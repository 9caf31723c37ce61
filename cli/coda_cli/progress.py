"""How far a replay is: a progress bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from coda.model import Phase
from coda_cli.job_history import History
from coda_sim.durations import duration_from_seconds

LINE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """How far a replay is. `left_s`: real time until the last job ends, if no job waits from now on."""

    jobs: int
    submitted: int
    waiting: int
    running: int
    finished: int
    failed: int
    elapsed_s: float
    trace_s: float
    left_s: float

    def sentence(self) -> str:
        """Return all of it in one line."""
        return (
            f"{self.submitted}/{self.jobs} submitted, {self.waiting} waiting, {self.running} running, "
            f"{self.finished} finished, {self.failed} failed; trace time {duration_from_seconds(round(self.trace_s))}, "
            f"at least {duration_from_seconds(round(self.left_s))} left"
        )


def counts_of(histories: Mapping[str, History]) -> dict[str, int]:
    """Count the jobs that wait, run (placed and not over), finished (succeeded) and failed (or were deleted)."""
    found = dict.fromkeys(("waiting", "running", "finished", "failed"), 0)
    for history in histories.values():
        if history.phase is Phase.SUCCEEDED:
            found["finished"] += 1
        elif history.is_over:
            found["failed"] += 1
        elif history.is_waiting:
            found["waiting"] += 1
        else:
            found["running"] += 1
    return found


class ReplayDisplay:
    """Shows progress inside its context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line_s = 0.0
        self._task = TaskID(0)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=30), TextColumn("{task.description}"), console=console, transient=True
            )

    def __enter__(self) -> ReplayDisplay:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, progress: Progressed) -> None:
        """Show `progress`: at once as a bar, or a line at most every ten seconds where no bar can be drawn."""
        if self._bar is not None:
            over = progress.finished + progress.failed
            self._bar.update(self._task, total=progress.jobs, completed=over, description=progress.sentence())
        elif progress.elapsed_s >= self._next_line_s:
            self._next_line_s = progress.elapsed_s + LINE_EVERY_S
            self._console.print(f"{progress.elapsed_s:5.0f} s  {progress.sentence()}", highlight=False, soft_wrap=True)
