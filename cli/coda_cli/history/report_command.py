"""`coda report`: what the finished jobs of a span waited for, used and failed of."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from enum import Enum
from io import StringIO
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import orjson
import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.history.cpu_report import CpuReport, cpu_report
from coda.history.report import HistoryReport, report
from coda.wording import counted
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.history.store_option import StoreOption, opened_store
from coda_cli.history.tables import WordTable, cpu_word_tables, drawn, page, word_tables
from coda_cli.out_files import check_writable, write_whole
from coda_sim.durations import seconds_from_duration

FORMATS: Final = ("table", "json", "yaml", "html")


def report_command(
    since: Annotated[str, typer.Option(help="How far back, as 30d or 12h; all: everything.")] = "30d",
    history: StoreOption = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json, yaml or html.")] = "table",
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Reasons of failure and owners to list.")] = 10,
) -> None:
    """Report on finished jobs: waits and run times by size, endings, causes of delay, failures, owners.

    GPU-hours are those that jobs which ended in the span held within it; jobs that still run are in none of them.

    The tables are those of Philly's study (Jeon et al., ATC 2019), over the records in the history store; CPU jobs have
    tables of their own. Exit code 0:
    reported; 1: the store is away; 2: wrong usage."""
    with one_sentence(Console(stderr=True)):
        if output not in FORMATS:
            raise InvalidInput(f"--output {output}: there are {', '.join(FORMATS)}")
        if out is not None:
            check_writable(out)
        now_s = time.time()
        from_s = 0.0 if since == "all" else now_s - seconds_from_duration(since)
        with opened_store(history) as store:
            found = report(store.jobs(from_s, now_s + 1), from_s or -inf, now_s + 1)
            cpu = cpu_report(store.cpu_jobs.lines(from_s, now_s + 1))
        if not (found.jobs or cpu.use.jobs):
            raise InvalidInput(f"--since {since}: no job has ended since then; all takes everything")
        title = f"{counted(found.jobs, 'job')}, {found.gpu_s / 3600:,.0f} GPU-hours"
        if cpu.use.jobs:
            title += f"; {counted(cpu.use.jobs, 'CPU job')}, {cpu.use.core_s / 3600:,.0f} core-hours"
        _WRITERS[output](_Found(found, cpu), title, top, out)


class _Found(NamedTuple):
    jobs: HistoryReport
    cpu: CpuReport

    def tables(self, top: int) -> tuple[WordTable, ...]:
        return (*(word_tables(self.jobs, top) if self.jobs.jobs else ()), *cpu_word_tables(self.cpu, top))


def _table(found: _Found, title: str, top: int, out: Path | None) -> None:
    if out is None:
        console = result_console()
        console.print(title, style="bold", highlight=False)
        console.print()
        console.print(drawn(found.tables(top)))
        return
    written = StringIO()
    Console(file=written, width=140).print(title, "\n", drawn(found.tables(top)))
    write_whole(out, written.getvalue().encode())


def _json(found: _Found, title: str, top: int, out: Path | None) -> None:
    _put(orjson.dumps(_fields(found), option=orjson.OPT_INDENT_2).decode(), out)


def _yaml(found: _Found, title: str, top: int, out: Path | None) -> None:
    import yaml  # takes time that no other command should wait for

    _put(yaml.safe_dump(_fields(found), sort_keys=False, allow_unicode=True).rstrip(), out)


def _fields(found: _Found) -> Any:
    return _plain(dataclasses.asdict(found.jobs) | {"cpu": dataclasses.asdict(found.cpu)})


def _html(found: _Found, title: str, top: int, out: Path | None) -> None:
    _put(page(title, found.tables(top)), out)


def _put(text: str, out: Path | None) -> None:
    if out is None:
        print(text)
    else:
        write_whole(out, f"{text}\n".encode())


def _plain(value: Any) -> Any:
    """Enums as their values, so that everything is JSON."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


_WRITERS: Final[dict[str, Callable[[_Found, str, int, Path | None], None]]] = {
    "table": _table,
    "json": _json,
    "yaml": _yaml,
    "html": _html,
}
