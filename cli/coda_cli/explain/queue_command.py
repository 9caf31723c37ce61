"""`coda queue`: everything that waits in a cluster, in one table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coda.errors import InvalidInput
from coda.wording import counted
from coda_cli.exit_codes import one_sentence, result_console
from coda_cli.explain.waiting import Waiting, queue_of
from coda_kube.api.client import Client, NotFound, connect
from coda_kube.objects.names import API_VERSION, EXTENDER
from coda_sim.durations import duration_from_seconds

FORMATS: Final = ("table", "json")


def queue_command(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace [default: all].")] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    kubeconfig: Annotated[Path | None, typer.Option(help="The cluster to ask [default: your current one].")] = None,
) -> None:
    """Show the TrainingJobs and CPU jobs that wait, and why.

    Pods of one owner are one line. Higher priority comes first, then who has waited longest. The planner may try them
    in another order: shares of users count too."""
    with one_sentence(Console(stderr=True)):
        if output not in FORMATS:
            raise InvalidInput(f"--output {output}: there are {' and '.join(FORMATS)}")
        lines = asyncio.run(_read(kubeconfig, namespace))
    if output == "json":
        print(orjson.dumps([line.as_json() for line in lines], option=orjson.OPT_INDENT_2).decode())
        return
    show(result_console(), lines, time.time())


async def _read(kubeconfig: Path | None, namespace: str) -> list[Waiting]:
    client = await connect(str(kubeconfig) if kubeconfig else None, timeout_s=30.0)
    try:
        return await read_queue(client, namespace)
    finally:
        await client.close()


async def read_queue(client: Client, namespace: str = "") -> list[Waiting]:
    """Return the queue of a namespace, or of the cluster. Raises InvalidInput where Coda is not installed."""
    within = f"/namespaces/{namespace}" if namespace else ""
    try:
        jobs = await client.list_pages(f"/apis/{API_VERSION}{within}/trainingjobs")
    except NotFound as error:
        raise InvalidInput("this cluster has no TrainingJobs: install Coda first (docs/installing.md)") from error
    waiting = {"fieldSelector": "status.phase=Pending,spec.schedulerName=coda"}
    pods = await client.list_pages(f"/api/v1{within}/pods", waiting)
    said = {"fieldSelector": f"reportingComponent={EXTENDER}"}
    events = await client.list_pages(f"/api/v1{within}/events", said)
    return queue_of(jobs["items"], pods["items"], events["items"])


def show(console: Console, lines: Sequence[Waiting], now_s: float) -> None:
    """Print the table, and how many lines it has."""
    if not lines:
        console.print("Nothing waits.", highlight=False)
        return
    table = Table()
    for column in ("name", "user", "wants", "waits", "priority", "why"):
        table.add_column(column, overflow="fold", justify="right" if column in ("waits", "priority") else "left")
    for line in lines:
        why = ": ".join(part for part in (line.code, line.message) if part)
        amounts = (Text(line.wants), waited(line, now_s), str(line.priority))
        table.add_row(Text(line.name), Text(line.user), *amounts, Text(why))
    console.print(table)
    console.print(f"{counted(len(lines), 'line')}. One of them in full: coda explain NAME", highlight=False)


def waited(line: Waiting, now_s: float) -> str:
    """How long it has waited, in words; clocks may differ."""
    return duration_from_seconds(float(round(max(0.0, now_s - line.since_s)))) if line.since_s else ""
