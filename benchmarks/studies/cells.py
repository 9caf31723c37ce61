"""One cell of a table: a simulation, the key under which its measures are kept, and how it is performed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

from coda_sim.runs import OnProgress, RunOrder, run_with_log
from studies.pool import pool_measures

Measures = Mapping[str, float | None]

CODE: Final = ("core/coda", "core/coda_sim", "benchmarks/studies/pool.py")
"""What a cell's measures depend on, besides its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation. `name`: for people, and for the time it took last. `pool`: also measure one pool of GPUs."""

    name: str
    order: RunOrder
    pool: bool = False


def measured(cell: Cell, on_progress: OnProgress | None = None) -> dict[str, float | None]:
    """Perform the cell: the measures of `summary.json`, and those of `pool`. Raises what the run raises."""
    outcome, log, window = run_with_log(cell.order, on_progress)
    return {**outcome.result.metrics, **(pool_measures(log, window) if cell.pool else {})}


def key_of(cell: Cell, code: str) -> str:
    """Return the key of what the cell measures: of its whole order, of its trace's bytes, and of the code."""
    order = asdict(cell.order)
    tables = (cell.order.source.trace, cell.order.source.request_table)
    order["source"] |= {"trace": None, "request_table": None, "bytes": [path and digest_of(path) for path in tables]}
    values = json.dumps([order, cell.pool, code], sort_keys=True, default=_plain)
    return hashlib.blake2b(values.encode(), digest_size=12).hexdigest()


def code_version(repository: Path) -> str:
    """Return the digest of all that is simulated by: another version of the code gives other cells."""
    found = hashlib.blake2b(digest_size=8)
    for place in CODE:
        path = repository / place
        files = [path] if path.is_file() else [one for end in ("py", "toml") for one in path.rglob(f"*.{end}")]
        for file in sorted(files):
            found.update(file.relative_to(repository).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


@cache
def digest_of(path: Path) -> str:
    """Return the digest of a file, read once. Raises OSError."""
    return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)
