"""`coda history import`: the GPU jobs of a public trace, as if they had run here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.wording import counted
from coda_cli.exit_codes import one_sentence
from coda_cli.history.store_option import StoreOption, opened_store
from coda_cli.history.trace_records import records, wait_of, waits_from_file
from coda_sim.traces import JobKind, OnError, Row, read_trace

BATCH: Final = 500


def import_command(
    trace: Annotated[Path, typer.Argument(help="Common schema, Philly, Helios or openb; plain or gzip.")],
    history: StoreOption = None,
    waits: Annotated[
        Path | None, typer.Option(help="CSV with job_id and observed_wait_s, before what the trace itself says.")
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
        console.print(_known_waits(found.rows, waits, waits_s), highlight=False, markup=False, soft_wrap=True)
        last_s = max(row.submit_s + (wait_of(row, waits_s) or 0.0) + row.duration_s for row in found.rows)
        begins_s = time.time() - last_s
        with opened_store(history, may_create=True) as store:
            store.migrate()
            left = records(found.rows, trace.name, begins_s, waits_s)
            stored = 0
            while batch := list(islice(left, BATCH)):
                stored += store.write(batch)
        console.print(f"{counted(stored, 'new record')} stored", highlight=False)


def _known_waits(rows: tuple[Row, ...], waits: Path | None, waits_s: Mapping[str, float]) -> str:
    """Return how many GPU jobs have a wait. Raises InvalidInput if the file of waits is about none of them."""
    jobs = [row for row in rows if row.kind is JobKind.GPU]
    if waits is not None and jobs and not any(row.job_id in waits_s for row in jobs):
        raise InvalidInput(f"--waits {waits}: none of its job ids is a GPU job of the trace")
    known = sum(wait_of(row, waits_s) is not None for row in jobs)
    return f"{known} of {counted(len(jobs), 'job')} have a wait"
