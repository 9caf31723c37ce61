"""`coda check`: are the invariants kept in this cluster? The options and the words; `coda_lab.checker` judges."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from coda.errors import CodaError, InvalidInput, Outage
from coda_cli.output import ContextOption, SheetOutput, print_for_programs
from coda_kube.api.client import NotServed, Rejected, connect
from coda_kube.api.credentials import users_kubeconfig
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.served_schema import APPLY_DEFINITIONS
from coda_lab.checker import Breach, Checker, Report

BREACHED: Final = 1
COULD_NOT_LOOK: Final = 2
_FOR_PROGRAMS: Final = (SheetOutput.JSON, SheetOutput.YAML)
OBJECTS_SHOWN: Final = 3  # per breach in the table; `--out` has all


def check(
    watch: Annotated[bool, typer.Option("--watch", help="Watch until Ctrl-C instead of checking once.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="The cluster to check [default: your current one].")] = None,
    context: ContextOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the report to this file as JSON.")] = None,
    output: Annotated[SheetOutput, typer.Option("--output", "-o", help="How it is written.")] = SheetOutput.TABLE,
) -> None:
    """Check a cluster for breaches of Coda's invariants.

    It reads the API server only. If all is well it ends at once; a suspicion is watched for up to 16 s, then reported
    or dropped. Exit code 0: no breach; 1: at least one; 2: the check was not possible."""
    console, errors = Console(), Console(stderr=True)
    try:
        _check_writable(out)
        found = errors if output in _FOR_PROGRAMS else console  # breaches as they are found
        looking = _watch(found, errors, kubeconfig, context) if watch else _look(errors, kubeconfig, context)
        report = asyncio.run(looking)
        if not print_for_programs(report.as_json(), output):
            _show(console, report, with_table=not watch)
        _write(report, out)
    except CodaError as error:
        errors.print(f"coda: {_explained(error)}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(COULD_NOT_LOOK) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
    if report.breaches:
        raise typer.Exit(BREACHED)


async def _look(errors: Console, kubeconfig: Path | None, context: str | None) -> Report:
    client = await connect(users_kubeconfig(kubeconfig), context=context)
    try:
        checker = Checker(client)
        with errors.status("Reading nodes, pods and TrainingJobs; suspicions are watched for up to 16 s ..."):
            await checker.look()
        return checker.report()
    finally:
        await client.close()


async def _watch(console: Console, errors: Console, kubeconfig: Path | None, context: str | None) -> Report:
    """Watch until SIGINT or SIGTERM, and print each breach when it is found."""
    client = await connect(users_kubeconfig(kubeconfig), context=context)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        checker = Checker(client)
        async with checker.watching():
            errors.print("Watching for breaches; Ctrl-C ends the watch and shows the summary.", soft_wrap=True)
            printer = asyncio.create_task(_print_as_found(console, checker))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({printer, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in (printer, stopped):
                task.cancel()
            await asyncio.gather(printer, stopped, return_exceptions=True)
        return checker.report()
    finally:
        await client.close()


async def _print_as_found(console: Console, checker: Checker) -> None:
    printed = 0
    while True:
        await checker.news()
        for breach in checker.breaches[printed:]:
            console.print(
                f"{time_from_seconds(breach.time_s)}  ",
                _title(breach),
                f"  {breach.sentence}",
                markup=False,
                soft_wrap=True,
            )
        printed = len(checker.breaches)


def _show(console: Console, report: Report, *, with_table: bool) -> None:
    if report.breaches and with_table:
        table = Table(Column("Time", no_wrap=True), "Invariant", "What", "Objects")
        for breach in report.breaches:
            more = len(breach.objects) - OBJECTS_SHOWN
            objects = "\n".join(breach.objects[:OBJECTS_SHOWN]) + (f"\nand {more} more" if more > 0 else "")
            table.add_row(time_from_seconds(breach.time_s), _title(breach), Text(breach.sentence), Text(objects))
        console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(report.summary(), style="red" if report.breaches else "green", highlight=False, soft_wrap=True)


def _title(breach: Breach) -> Text:
    return Text(f"({breach.invariant.value}) {breach.invariant.title}")


def _check_writable(out: Path | None) -> None:
    if out is not None and not out.absolute().parent.is_dir():
        raise InvalidInput(f"--out {out}: the folder {out.absolute().parent} does not exist")


def _write(report: Report, out: Path | None) -> None:
    if out is None:
        return
    try:
        out.write_bytes(orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise InvalidInput(f"--out {out}: {error.strerror}") from error


def _explained(error: CodaError) -> str:
    if isinstance(error, NotServed):
        return f"this cluster has no TrainingJobs: install Coda's CRDs first ({APPLY_DEFINITIONS})"
    if isinstance(error, Rejected):
        return f"the cluster does not let this user read: {error}"
    if isinstance(error, Outage):
        return f"the cluster does not answer: {error}"
    return str(error)
