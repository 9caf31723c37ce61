"""`coda history import`: the GPU jobs of a public trace, as if they had run here."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from coda.wording import counted
from coda_cli.exit_codes import one_sentence
from coda_cli.history.store_option import StoreOption, opened_store
from coda_cli.history.trace_records import records, waits_from_file
from coda_sim.traces import OnError, read_trace

BATCH: Final = 500

app = typer.Typer(help="Look after the store of finished jobs.", no_args_is_help=True)


@app.callback()
def _history() -> None:
    """Look after the store of finished jobs."""


@app.command("import")
def import_command(
    trace: Annotated[Path, typer.Argument(help="Common schema, Philly, Helios or openb; plain or gzip.")],
    history: StoreOption = None,
    waits: Annotated[
        Path | None, typer.Option(help="CSV with job_id and observed_wait_s, where the trace has no waits.")
    ] = None,
) -> None:
    """Load the GPU jobs of a trace into a history store; a file is made where there is none.

    The last job ends now. Jobs that are there already stay as they are. Use a store of its own: in the store of
    a cluster, the trace's run times would count for the users of the same names. Exit code 0: stored; 1: the store is
    away; 2: wrong usage."""
    console = Console(stderr=True)
    with one_sentence(console):
        found = read_trace(trace, on_error=OnError.SKIP)
        console.print(found.account(), highlight=False, markup=False, soft_wrap=True)
        waits_s = {} if waits is None else waits_from_file(waits)
        last_s = max(row.submit_s + waits_s.get(row.job_id, 0.0) + row.duration_s for row in found.rows)
        begins_s = time.time() - last_s
        with opened_store(history, may_create=True) as store:
            store.migrate()
            left = records(found.rows, trace.name, begins_s, waits_s)
            stored = 0
            while batch := list(islice(left, BATCH)):
                stored += store.write(batch)
        console.print(f"{counted(stored, 'new record')} stored", highlight=False)
