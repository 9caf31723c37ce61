"""The answers as tables: in the terminal, and in docs/benchmarks.md between two markers; the rest of the page stays."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Final

from rich.table import Table

from coda.errors import InvalidInput
from rig.results import Answer, Row, keeps

BEGIN: Final = "<!-- make bench writes from here -->"
END: Final = "<!-- make bench writes to here -->"
HEADINGS: Final = ("what", "measured", "budget", "aim", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and when it was measured."""

    machine: str
    date: str
    commit: str


def setting_here(repository: Path, kubernetes: str) -> Setting:
    """This machine, today, this commit; marked where files differ from it."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    machine = (
        f"{os.cpu_count()} cores ({platform.machine()}), {memory_gib:.0f} GiB of memory, Linux {platform.release()}, "
        f"Python {platform.python_version()}, Kubernetes {kubernetes}, load average before {os.getloadavg()[0]:.1f}"
    )
    commit = _git(repository, "rev-parse", "--short", "HEAD")
    changed = " with uncommitted changes" if _git(repository, "status", "--porcelain", "--untracked-files=no") else ""
    return Setting(machine=machine, date=datetime.now(UTC).date().isoformat(), commit=commit + changed)


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table: name, value, bounds and how the value stands to them."""
    budget, aim = (f"{bound} {row.unit}".strip() if bound else "" for bound in (row.budget, row.aim))
    return row.name, f"{figure(row.value)} {row.unit}".strip(), budget, aim, verdict(row)


def verdict(row: Row) -> str:
    """How a value stands to its bounds: the aim, the budget, or missed; empty without bounds."""
    within, reached = keeps(row.value, row.budget), keeps(row.value, row.aim)
    if reached:
        return "aim"
    if within is None:
        return ""
    return "budget" if within else "missed"


def figure(value: float) -> str:
    """Three significant digits, never an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.4f}"


def terminal_table(answers: Iterable[Answer], setting: Setting) -> Table:
    """For people at the terminal."""
    table = Table(title=f"{setting.machine}; {setting.date}, commit {setting.commit}", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for answer in answers:
        for row in answer.rows:
            table.add_row(*cells(row))
        table.add_section()
    return table


def markdown(answers: Sequence[Answer], setting: Setting) -> str:
    """For the page: what stands between the markers."""
    return "\n".join(_lines(answers, setting))


def with_tables(page: str, tables: str) -> str:
    """The page with what stands between its markers replaced. Raises InvalidInput when it has not both, in order."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInput(f"the page needs the lines {BEGIN!r} and {END!r}, in this order")
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def _lines(answers: Sequence[Answer], setting: Setting) -> Iterator[str]:
    yield from wrap(f"Machine: {setting.machine}. {setting.date}, commit {setting.commit}.", width=100)
    yield ""
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|" + "---|" * len(HEADINGS)
    for answer in answers:
        for row in answer.rows:
            yield "| " + " | ".join(cells(row)) + " |"


def _git(repository: Path, *words: str) -> str:
    return subprocess.run(("git", "-C", repository, *words), check=True, capture_output=True, text=True).stdout.strip()
