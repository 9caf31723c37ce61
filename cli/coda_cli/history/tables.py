"""A report as tables of words, for a terminal and for a page."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coda.history.report import DelayRow, EndingRow, FailureRow, HistoryReport, OwnerRow, SizeRow, TrialRow
from coda_sim.durations import duration_from_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTable:
    """One table: the first column holds names, the others amounts."""

    title: str
    note: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def word_tables(report: HistoryReport, top: int) -> tuple[WordTable, ...]:
    """Return the tables that have rows; of reasons and owners the first `top`."""
    tables = (
        WordTable(
            title="Sizes: run times and waits",
            columns=("size", "jobs", "run p50", "run p90", "wait p50", "wait p90", "waited 10 min", "GPU-hours"),
            rows=tuple(_size(row) for row in report.sizes),
        ),
        WordTable(
            title="Endings",
            note="Utilisation is of jobs whose GPUs were measured.",
            columns=("ending", "jobs", "share of jobs", "share of GPU time", "utilisation"),
            rows=tuple(_ending(row) for row in report.endings),
        ),
        WordTable(
            title="Causes of delay",
            note="Jobs that ran for a minute or more. A job counts for each cause that delayed it.",
            columns=("cause", "up to 4 GPUs", "more than 4 GPUs", "hours", "share of waiting"),
            rows=tuple(_delay(row) for row in report.delays),
        ),
        WordTable(
            title="Failures",
            columns=("reason", "trials", "jobs", "owners", "run p50", "run p90", "run p95", "share of lost GPU time"),
            rows=tuple(_failure(row) for row in report.failures[:top]),
        ),
        WordTable(
            title="Trials",
            note="Saved: what gangs would have held until they failed as late as their trial, at least once.",
            columns=("outcome", "jobs", "GPU-hours of trials", "GPU-hours saved"),
            rows=tuple(_trial(row) for row in report.trials),
        ),
        WordTable(
            title="Owners",
            columns=("owner", "jobs", "wait p50", "wait p90", "GPU-hours", "lost by stops", "utilisation"),
            rows=tuple(_owner(row) for row in report.owners[:top]),
        ),
    )
    return tuple(table for table in tables if table.rows)


def drawn(tables: tuple[WordTable, ...]) -> RenderableType:
    """Return the tables for a terminal."""
    parts: list[RenderableType] = []
    for table in tables:
        grid = Table(title=table.title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for number, column in enumerate(table.columns):
            grid.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*(Text(cell) for cell in row))
        parts += [grid, Text(table.note, style="dim"), Text()] if table.note else [grid, Text()]
    return Group(*parts)


def page(title: str, tables: tuple[WordTable, ...]) -> str:
    """Return the tables as one HTML page that needs no other file."""
    return _PAGE.format(title=escape(title), body="\n".join(_section(table) for table in tables))


def _section(table: WordTable) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2>{note}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _size(row: SizeRow) -> tuple[str, ...]:
    times = (row.run_p50_s, row.run_p90_s, row.wait_p50_s, row.wait_p90_s)
    return (row.size, f"{row.jobs:,}", *map(_time, times), _percent(row.long_wait_share), _hours(row.gpu_s))


def _ending(row: EndingRow) -> tuple[str, ...]:
    return (row.ending, f"{row.jobs:,}", _percent(row.share), _percent(row.gpu_share), _use(row.use))


def _delay(row: DelayRow) -> tuple[str, ...]:
    return (row.cause.value, f"{row.small:,}", f"{row.large:,}", _hours(row.wait_s), _percent(row.share))


def _failure(row: FailureRow) -> tuple[str, ...]:
    times = (row.run_p50_s, row.run_p90_s, row.run_p95_s)
    counts = (f"{row.trials:,}", f"{row.jobs:,}", f"{row.owners:,}")
    return (row.reason, *counts, *map(_time, times), _percent(row.gpu_share))


def _trial(row: TrialRow) -> tuple[str, ...]:
    return (row.outcome, f"{row.jobs:,}", f"{row.trial_gpu_s / 3600:,.2f}", f"{row.saved_gpu_s / 3600:,.2f}")


def _owner(row: OwnerRow) -> tuple[str, ...]:
    times = (_time(row.wait_p50_s), _time(row.wait_p90_s))
    return (row.owner, f"{row.jobs:,}", *times, _hours(row.gpu_s), _hours(row.lost_gpu_s), _use(row.use))


def _time(seconds: float) -> str:
    return duration_from_seconds(seconds)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _use(share: float | None) -> str:
    return "-" if share is None else _percent(share)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; }}
</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""
