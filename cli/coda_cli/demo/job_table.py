"""The demo's tables: where every job is while the demo runs, and what became of the jobs at its end."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coda.model import Phase
from coda.wording import counted
from coda_cli.job_history import History
from coda_sim.durations import duration_from_seconds

_STYLE_BY_PHASE = {
    Phase.QUEUED: "yellow",
    Phase.RUNNING: "green",
    Phase.RESTARTING: "magenta",
    Phase.SUCCEEDED: "dim green",
    Phase.FAILED: "red",
}


class DemoDisplay:
    """A live table on a terminal; elsewhere a line for each change of a job."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._names = names
        self._began_s = time.monotonic()
        self._said: dict[str, str] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> DemoDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, histories: Mapping[str, History]) -> None:
        """Draw the present state."""
        known = [histories[name] for name in self._names if name in histories]
        if self._live is not None:
            self._live.update(live_table(known))
            return
        for history in known:
            line = sentence_of(history)
            if self._said.get(history.name) != line:
                self._said[history.name] = line
                elapsed_s = time.monotonic() - self._began_s
                self._console.print(f"{elapsed_s:5.1f} s  {line}", highlight=False, markup=False, soft_wrap=True)


def live_table(histories: Sequence[History]) -> Table:
    """Return a table of where every job is now."""
    table = Table(title="TrainingJobs", expand=True)
    for column in ("job", "phase", "GPUs", "cores"):
        justify: Literal["right", "left"] = "right" if column in ("GPUs", "cores") else "left"
        table.add_column(column, justify=justify, no_wrap=True)
    # One line per job, in what the others leave: the reasons are printed whole at the end.
    table.add_column("where, or why it waits", ratio=1, no_wrap=True, overflow="ellipsis")
    for history in histories:
        phase = _phase(history)
        style = _STYLE_BY_PHASE.get(history.phase, "") if history.phase else ""
        nodes = "" if history.is_waiting else compressed(history.nodes)
        where = ": ".join(part for part in (nodes, _why(history)) if part)
        table.add_row(
            history.name,
            Text(phase, style=style),
            str(history.gpus),
            str(history.cores),
            Text(where),
        )
    return table


def sentence_of(history: History) -> str:
    """Return the same of one job as a line."""
    where = f" on {compressed(history.nodes)}" if history.nodes and not history.is_waiting else ""
    why = f": {_why(history)}" if _why(history) else ""
    size = f"{counted(history.gpus, 'GPU')}, {counted(history.cores, 'core')}"
    return f"{history.name} ({size}) {_phase(history)}{where}{why}"


def summary_table(histories: Sequence[History]) -> Table:
    """Return a table of what ran where, and how long each job waited for its first placement."""
    table = Table(title="What became of the jobs")
    for column in ("job", "result", "GPUs", "ran on", "waited"):
        numbers = column in ("GPUs", "waited")
        table.add_column(column, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    for history in histories:
        result = "can never fit" if history.is_hopeless else _phase(history)
        table.add_row(history.name, result, str(history.gpus), Text(compressed(history.nodes)), _waited(history))
    return table


def reasons_of(histories: Sequence[History]) -> list[str]:
    """Return a line for each code of each job that waited, with the last sentence of that code."""
    return [
        f"{history.name} {'can never fit' if history.is_hopeless else 'waited'}: {reason.code}: {reason.message}"
        for history in histories
        for reason in {reason.code: reason for reason in history.reasons}.values()
    ]


def compressed(names: Sequence[str]) -> str:
    """Join names that are numbered one after the other: node-0000, node-0001, node-0003 -> `node-[0000-0001,0003]`."""
    numbers_by_prefix: dict[str, list[str]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d+)", name, re.ASCII)
        if match is None:
            plain.append(name)
        else:
            numbers_by_prefix.setdefault(match[1], []).append(match[2])
    return ", ".join([*plain, *(_joined(prefix, numbers) for prefix, numbers in numbers_by_prefix.items())])


def _joined(prefix: str, numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda digits: (len(digits), int(digits))):
        previous = runs[-1][-1] if runs else None
        if previous is not None and len(previous) == len(number) and int(number) == int(previous) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return f"{prefix}[{','.join(run[0] if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}]"


def _phase(history: History) -> str:
    phase = history.phase.value if history.phase else "created"
    again = f", attempt {history.attempt}" if history.attempt > 1 else ""
    return f"{phase}{again}"


def _why(history: History) -> str:
    if history.is_waiting:
        return f"{history.pending.code}: {history.pending.message}" if history.pending else ""
    return history.message if history.phase in (Phase.RESTARTING, Phase.FAILED) else ""


def _waited(history: History) -> str:
    seen = history.seen
    if seen.queued_s is None or seen.placed_s is None:
        return "-"
    return duration_from_seconds(round(max(0.0, seen.placed_s - seen.queued_s), 1))
