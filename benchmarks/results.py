"""`make results`: runs every simulation of docs/results.md that is not kept from before, and writes tables and plots.

Each cell of a table is one simulation, kept under a key of its options, of its trace's bytes and of the code. So a run
that was killed goes on where it was, and a changed simulator runs everything again.

Exit code 0: all written, 1: some simulations failed (the tables say which), 2: bad options, 130: interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from coda.errors import CodaError, InvalidInput
from rig.asking import positive
from studies import ablations, eliminator, month, samples, sensitivity, traces
from studies.cells import Cell, code_version, key_of
from studies.page import check_page, with_sections
from studies.performing import perform
from studies.scope import Found, Scope, Table
from studies.store import Store
from studies.workloads import TRACES

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGE: Final = REPOSITORY / "docs" / "results.md"
KEPT: Final = REPOSITORY / ".coda" / "results"
TABLES: Final = (traces.TABLE, samples.TABLE, month.TABLE, sensitivity.TABLE, ablations.TABLE, eliminator.TABLE)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing and write the page."""
    options = _options(words)
    try:
        return _results(options)
    except CodaError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("results: interrupted; what is done is kept, the same command goes on", file=sys.stderr)
        return 130


def _results(options: argparse.Namespace) -> int:
    page: Path = options.page or (KEPT / "quick" / PAGE.name if options.quick else PAGE)
    frame = _frame(page)
    check_page(frame)
    code = code_version(REPOSITORY)
    scope = Scope(
        traces=_folder(options.traces),
        quick=options.quick,
        seeds=options.seeds,
        plots=page.with_suffix(""),
        version=f"coda {version('coda')}, code {code[:8]}{', short slices' if options.quick else ''}",
    )
    tables = [table for table in TABLES if table.name in options.only]
    left_out = [table.name for table in tables if table.needs_traces and scope.traces is None]
    for name in left_out:
        _tell(f"{name}: left out, since no folder of traces is given (TRACES=folder)")
    tables = [table for table in tables if table.name not in left_out]
    cells_by_table = {table.name: table.cells(scope) for table in tables}
    keyed = [(key_of(cell, code), cell) for cell in _different(cells_by_table.values())]
    store = Store(folder=options.kept)
    failures = perform(dict(keyed), store, options.jobs, _tell)  # cells with the same order are one simulation
    measures_by_name = {cell.name: store.get(key) for key, cell in keyed}
    found = Found(measures_by_name={name: one for name, one in measures_by_name.items() if one is not None})
    _write(page, frame, scope, tables, found)
    for sentence in failures.values():
        _tell(f"failed: {sentence}")
    return 1 if failures else 0


def _write(page: Path, frame: str, scope: Scope, tables: Sequence[Table], found: Found) -> None:
    texts = {table.name: table.text(scope, found) for table in tables}
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(with_sections(frame, texts, [table.name for table in TABLES]), encoding="utf-8")
    _tell(f"written: {os.path.relpath(page)}, plots in {os.path.relpath(scope.plots)}")


def _frame(page: Path) -> str:
    """The page as it is; a page that is not there yet begins as docs/results.md."""
    try:
        return (page if page.exists() else PAGE).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{page} cannot be read: {error.strerror or error}") from error


def _folder(folder: Path | None) -> Path | None:
    if folder is not None and not any((folder / one.file).exists() for one in TRACES):
        raise InvalidInput(f"TRACES={folder}: there is none of {', '.join(one.file for one in TRACES)}")
    return folder


def _different(groups: Iterable[Sequence[Cell]]) -> list[Cell]:
    """All cells; names must be different, since tables find what was measured by them."""
    cells = [cell for group in groups for cell in group]
    assert len({cell.name for cell in cells}) == len(cells), "two cells have the same name"
    return cells


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    names = tuple(table.name for table in TABLES)
    parser = argparse.ArgumentParser(prog="make results", description="Run every study of docs/results.md.")
    parser.add_argument("--traces", type=Path, help="folder with the traces; without it tables of traces are left out")
    parser.add_argument("--jobs", type=positive, default=2, help="simulations at the same time (default 2)")
    parser.add_argument("--seeds", type=positive, default=5, help="seeds of tables with intervals; the month: twice")
    parser.add_argument("--only", type=_tables, default=names, help=f"some of {','.join(names)}")
    parser.add_argument("--quick", action="store_true", help="short slices, on a page of its own: does it work at all")
    parser.add_argument("--page", type=Path, help="the page to write into; plots go to a folder beside it")
    parser.add_argument("--kept", type=Path, default=KEPT / "cells", help="folder of what was measured before")
    return parser.parse_args(words)


def _tables(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    for name in asked:
        if name not in {table.name for table in TABLES}:
            raise argparse.ArgumentTypeError(f"{name!r}: there are {', '.join(table.name for table in TABLES)}")
    return asked


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
