"""A report as tables of words, for a terminal and for a page."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coda.diagnosis.reasons import FACTS, Reason
from coda.history.cpu_report import CpuReport, CpuRow, CpuWaitRow
from coda.history.delay_causes import DelayCause
from coda.history.report import (
    DelayRow,
    EndingRow,
    FailureRow,
    HistoryReport,
    OwnerRow,
    PhillyRow,
    SizeRow,
    TrialRow,
    UseRow,
)
from coda_cli.output import printable
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
            note=_WAITS_NOTE if any(row.wait_p50_s is None for row in report.sizes) else "",
            columns=("size", "jobs", "run p50", "run p90", "wait p50", "wait p90", "waited 10 min", "GPU-hours"),
            rows=tuple(_size(row) for row in report.sizes),
        ),
        WordTable(
            title="Endings (Philly's table 5)",
            note="Utilisation is of jobs whose GPUs were measured.",
            columns=("ending", "jobs", "share of jobs", "share of GPU time", "utilisation"),
            rows=tuple(_ending(row) for row in report.endings),
        ),
        WordTable(
            title="Utilisation by size and ending (Philly's table 2)",
            note="Of jobs whose GPUs were measured.",
            columns=("size", "passed", "killed", "unsuccessful", "all"),
            rows=tuple(_use_of(row) for row in report.uses),
        ),
        WordTable(
            title="Philly's causes of delay (table 1)",
            note="Fragmentation: all that jobs within their quota lack on the nodes, a full cluster too.",
            columns=("cause", "up to 4 GPUs", "share", "more than 4 GPUs", "share", "share of waiting"),
            rows=tuple(_philly(row) for row in report.philly),
        ),
        WordTable(
            title="Causes of delay",
            note="Jobs that ran for a minute or more. A job counts for each cause that delayed it.",
            columns=("cause", "up to 4 GPUs", "more than 4 GPUs", "hours", "share of waiting"),
            rows=tuple(_delay(row) for row in report.delays),
        ),
        WordTable(
            title="Failures (Philly's table 6)",
            note="IF infrastructure, AE AI engine, U user.",
            columns=("reason", "category", "trials", "jobs", "owners", "run p50", "run p90", "run p95"),
            rows=tuple(_failure(row) for row in report.failures[:top]),
        ),
        WordTable(
            title="Failures by size, and what they cost (Philly's table 6)",
            note="Shares of the time that failed jobs ran, and of the GPU time that they held.",
            columns=("reason", "on 1 GPU", "on 2-4", "on more", "of run time", "of GPU time"),
            rows=tuple(_cost(row) for row in report.failures[:top]),
        ),
        WordTable(
            title="Trials",
            note="Saved: what gangs would have held until they failed as late as their trial, at least once.",
            columns=("outcome", "jobs", "GPU-hours of trials", "GPU-hours saved"),
            rows=tuple(_trial(row) for row in report.trials),
        ),
        WordTable(
            title="Owners",
            note="GPU-hours held within the span, of jobs that ended in it; jobs that still run are left out.",
            columns=("owner", "jobs", "wait p50", "wait p90", "GPU-hours", "lost by stops", "utilisation"),
            rows=tuple(_owner(row) for row in report.owners[:top]),
        ),
    )
    return tuple(table for table in tables if table.rows)


def cpu_word_tables(report: CpuReport, top: int) -> tuple[WordTable, ...]:
    """Return the tables of CPU jobs that have rows; of causes and owners the first `top`."""
    columns = ("jobs", "mean wait", "longest wait", "mean run", "core-hours", "borrowed", "reclaimed", "failed")
    tables = (
        WordTable(
            title="CPU jobs: endings",
            note="A pod that gave borrowed cores back is Reclaimed; the one that replaces it is another job.",
            columns=("ending", *columns),
            rows=tuple(_cpu(row) for row in report.endings),
        ),
        WordTable(
            title="CPU jobs: causes of waits",
            columns=("cause", "hours", "share of waiting"),
            rows=tuple(_cpu_wait(row) for row in report.waits[:top]),
        ),
        WordTable(
            title="CPU jobs: owners",
            columns=("owner", *columns),
            rows=tuple(_cpu(row) for row in report.owners[:top]),
        ),
    )
    return tuple(table for table in tables if table.rows)


def drawn(tables: tuple[WordTable, ...]) -> RenderableType:
    """Return the tables for a terminal."""
    parts: list[RenderableType] = []
    for table in tables:
        grid = Table(title=table.title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for number, column in enumerate(table.columns):
            names = min(_MOST_NAME, max(len(row[0]) for row in table.rows))  # else amounts would cut them to pieces
            least = 0 if number else names
            grid.add_column(column, justify="right" if number else "left", overflow="fold", min_width=least)
        for row in table.rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        parts += [grid, Text(table.note, style="dim"), Text()] if table.note else [grid, Text()]
    return Group(*parts)


def page(title: str, tables: tuple[WordTable, ...]) -> str:
    """Return the tables as one HTML page that needs no other file."""
    return _PAGE.format(title=escape(title), body="\n".join(_section(table) for table in tables))


def _section(table: WordTable) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return f'<section><h2>{escape(table.title)}</h2>{note}<div class="wide">{grid}</div></section>'


def _size(row: SizeRow) -> tuple[str, ...]:
    runs, waits = (row.run_p50_s, row.run_p90_s), (row.wait_p50_s, row.wait_p90_s)
    times = (*map(_time, runs), *map(_wait, waits))
    return (row.size, f"{row.jobs:,}", *times, _use(row.long_wait_share), _hours(row.gpu_s))


def _ending(row: EndingRow) -> tuple[str, ...]:
    return (row.ending, f"{row.jobs:,}", _percent(row.share), _percent(row.gpu_share), _use(row.use))


def _use_of(row: UseRow) -> tuple[str, ...]:
    return (row.size, *map(_use, (row.passed, row.killed, row.unsuccessful, row.every)))


def _philly(row: PhillyRow) -> tuple[str, ...]:
    small, large = (f"{row.small:,}", _percent(row.small_share)), (f"{row.large:,}", _percent(row.large_share))
    return (row.cause, *small, *large, _percent(row.wait_share))


def _delay(row: DelayRow) -> tuple[str, ...]:
    return (_CAUSE_WORDS[row.cause], f"{row.small:,}", f"{row.large:,}", _hours(row.wait_s), _percent(row.share))


def _failure(row: FailureRow) -> tuple[str, ...]:
    times = (row.run_p50_s, row.run_p90_s, row.run_p95_s)
    counts = (f"{row.trials:,}", f"{row.jobs:,}", f"{row.owners:,}")
    return (row.reason, _CATEGORY_BY_REASON.get(row.reason, "-"), *counts, *map(_time, times))


def _cost(row: FailureRow) -> tuple[str, ...]:
    trials = tuple(f"{count:,}" for count in row.trials_by_size)
    return (row.reason, *trials, _percent(row.run_share), _percent(row.gpu_share))


def _trial(row: TrialRow) -> tuple[str, ...]:
    return (row.outcome, f"{row.jobs:,}", f"{row.trial_gpu_s / 3600:,.2f}", f"{row.saved_gpu_s / 3600:,.2f}")


def _owner(row: OwnerRow) -> tuple[str, ...]:
    times = (_wait(row.wait_p50_s), _wait(row.wait_p90_s))
    return (row.owner, f"{row.jobs:,}", *times, _hours(row.gpu_s), _hours(row.lost_gpu_s), _use(row.use))


def _cpu(row: CpuRow) -> tuple[str, ...]:
    times = tuple(_time(seconds) for seconds in (row.wait_mean_s, row.wait_longest_s, row.run_mean_s))
    ends = (f"{row.reclaimed:,}", f"{row.failed:,}")
    return (row.name, f"{row.jobs:,}", *times, _hours(row.core_s), _percent(row.borrowed_share), *ends)


def _cpu_wait(row: CpuWaitRow) -> tuple[str, ...]:
    return (row.cause, _hours(row.wait_s), _percent(row.share))


def _time(seconds: float) -> str:
    return duration_from_seconds(seconds)


def _wait(seconds: float | None) -> str:
    return "-" if seconds is None else _time(seconds)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _use(share: float | None) -> str:
    return "-" if share is None else _percent(share)


_WAITS_NOTE = "-: imported jobs, of which nobody recorded how long they waited."
_MOST_NAME = 18  # characters of a name that are not wrapped in a terminal

_CAUSE_WORDS = {
    DelayCause.FAIR_SHARE: "fair share",
    DelayCause.CAPACITY: "capacity",
    DelayCause.GPUS: "fragmentation of GPUs",
    DelayCause.CORES: "fragmentation of cores",
    DelayCause.MEMORY: "fragmentation of memory",
    DelayCause.LOCALITY: "fragmentation, locality",
    DelayCause.QUOTA: "quota of the namespace",
    DelayCause.DEPENDENCY: "dependency",
    DelayCause.HOLD: "hold",
    DelayCause.RESTART: "restart",
    DelayCause.CODA: "Coda",
    DelayCause.TRIAL: "trial",
    DelayCause.UNSEEN: "not seen",
}
_CATEGORY_BY_REASON = {reason.value: FACTS[reason].category for reason in Reason}


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .3rem; }}
p {{ margin: 0 0 .4rem; opacity: .7; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .9rem; text-align: right; border-bottom: 1px solid #8883; white-space: nowrap; }}
th {{ font-weight: 600; font-size: .85em; vertical-align: bottom; white-space: normal; min-width: 3.5em; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
td:first-child {{ max-width: 24em; overflow: hidden; text-overflow: ellipsis; }}
tbody tr:hover {{ background: #8881; }}
</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""
