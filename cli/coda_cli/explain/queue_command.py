"""`coda queue`: everything that waits in a cluster, in one table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coda.errors import InvalidInput
from coda.wording import counted
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.explain.leaders import leaders_away
from coda_cli.explain.name_completion import complete_namespace
from coda_cli.explain.waiting import Waiting, part_of_event, part_of_job, part_of_waiting_pod, queue_of
from coda_cli.output import ContextOption, KubeconfigOption, TableOutput, print_for_programs
from coda_cli.permitted import PermittedLists, print_notes
from coda_kube.api.client import connect
from coda_kube.api.credentials import current_namespace, users_kubeconfig
from coda_kube.objects.names import EXTENDER
from coda_sim.durations import duration_from_seconds

_ONE_IN_FULL: Final = "One of them in full: coda explain NAME"
_COLUMNS: Final = ("name", "user", "wants", "waits", "priority", "why")
_NARROW_COLUMNS: Final = ("name", "wants", "waits", "why")
_NARROW: Final = 100  # columns of a terminal; below it, a sentence in a table is a tower of words


def queue_command(
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            help="Only this namespace [default: all, or your context's if you may not read all].",
            autocompletion=complete_namespace,
        ),
    ] = "",
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="All namespaces, and never your context's instead.")
    ] = False,
    output: Annotated[
        TableOutput, typer.Option("--output", "-o", help="How it is written; wide folds no line.")
    ] = TableOutput.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the TrainingJobs and CPU jobs that wait, and why.

    Pods of one owner are one line. Higher priority comes first, then who has waited longest. The planner may try them
    in another order: shares of users count too."""
    errors = Console(stderr=True)
    with one_sentence(errors):
        if everywhere and namespace:
            raise InvalidInput(f"--all-namespaces and --namespace {namespace}: give one of them")
        instead = "" if everywhere else current_namespace(kubeconfig, context)
        lines, notes = asyncio.run(_read(kubeconfig, context, namespace, instead))
    print_notes(errors, notes)
    if print_for_programs([line.as_json() for line in lines], output):
        return
    show(result_console(), lines, time.time(), is_wide=output is TableOutput.WIDE)


async def _read(
    kubeconfig: Path | None, context: str | None, namespace: str, instead: str
) -> tuple[list[Waiting], tuple[str, ...]]:
    client = await connect(users_kubeconfig(kubeconfig), timeout_s=30.0, context=context)
    try:
        lists = PermittedLists(client, namespace, instead=instead)
        lines, notes = await read_queue(lists), lists.notes()
        away = await leaders_away(client, lines)
        return lines, (*notes, f"nothing is decided now, and reasons may be old: {away}") if away else notes
    finally:
        await client.close()


async def read_queue(lists: PermittedLists) -> list[Waiting]:
    """Return the queue of a namespace, or of the cluster. Pods and events that are refused count as none.

    Raises InvalidInput where Coda is not installed."""
    jobs = await lists.training_jobs(part_of_job)
    query = {"fieldSelector": "status.phase=Pending,spec.schedulerName=coda"}
    pods = await lists.core("pods", part_of_waiting_pod, query)
    events = await lists.core("events", part_of_event, {"fieldSelector": f"reportingComponent={EXTENDER}"})
    return queue_of(jobs, pods, events)


def show(console: Console, lines: Sequence[Waiting], now_s: float, *, is_wide: bool = False) -> None:
    """Print the table, and how many lines it has. A narrow terminal shows the codes of the reasons alone."""
    if not lines:
        console.print("Nothing waits.", highlight=False)
        return
    if is_wide:
        _show_wide(console, lines, now_s)
        return
    is_narrow = console.width < _NARROW
    shown = _NARROW_COLUMNS if is_narrow else _COLUMNS
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        table.add_column(column, overflow="fold", justify="right" if column in ("waits", "priority") else "left")
    for line in lines:
        cells: dict[str, Text | str] = {
            "name": Text(line.name),
            "user": Text(line.user),
            "wants": Text(line.wants),
            "waits": waited(line, now_s),
            "priority": str(line.priority),
            "why": Text(line.code or line.message if is_narrow else _why(line)),
        }
        table.add_row(*(cells[column] for column in shown))
    console.print(table)
    more = "In full: coda queue -o wide, or one of them: coda explain NAME" if is_narrow else _ONE_IN_FULL
    console.print(f"{counted(len(lines), 'line')}. {more}", highlight=False, soft_wrap=True)


def _show_wide(console: Console, lines: Sequence[Waiting], now_s: float) -> None:
    """Each line is one line, however long, as `kubectl get -o wide` has it."""
    rows = [("NAME", "USER", "WANTS", "WAITS", "PRIORITY", "HELD BY", "WHY")]
    for line in lines:
        amounts = (line.wants, waited(line, now_s), str(line.priority), ",".join(line.holders) or "-")
        rows.append((line.name, line.user, *amounts, _why(line)))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        text = "   ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        console.print(text.rstrip(), highlight=False, markup=False, soft_wrap=True)


def _why(line: Waiting) -> str:
    return ": ".join(part for part in (line.code, line.message) if part)


def waited(line: Waiting, now_s: float) -> str:
    """How long it has waited, in words; clocks may differ."""
    return duration_from_seconds(float(round(max(0.0, now_s - line.since_s)))) if line.since_s else ""
