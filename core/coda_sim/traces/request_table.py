"""Request tables: how many jobs of a cluster asked for how many cores. They give cores to traces without any."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coda.errors import InvalidInput
from coda_sim.traces.fields import MAX_CPUS, MAX_GPUS, Bad, Fields, amount, whole
from coda_sim.traces.text_lines import csv_columns, csv_records, numbered_lines, opened

MAX_JOBS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTable:
    """One line of a request table: `jobs` jobs of `gpus` GPUs asked for `cpus` cores in total."""

    gpus: int
    cpus: float
    jobs: float  # a count, or any other weight


def read_request_table(path: Path) -> tuple[RequestTable, ...]:
    """Return the lines with GPUs of a table gpus, cpus, nodes_requested, jobs. Raises InvalidInput for any bad line."""
    table: list[RequestTable] = []
    with opened(path) as text:
        lines = numbered_lines(path, text)
        columns = csv_columns(path, next(lines, (0, ""))[1], ("gpus", "cpus", "jobs"))
        for line, fields in csv_records(columns, lines):
            try:
                table.append(_requests(fields))
            except Bad as problem:
                raise InvalidInput(f"{path}:{line}: {problem}") from None
    with_gpus = [entry for entry in table if entry.gpus]
    if not with_gpus:
        raise InvalidInput(f"{path}: no line with GPUs: cores of GPU jobs cannot be drawn from it")
    return tuple(sorted(with_gpus, key=lambda entry: (entry.gpus, entry.cpus, entry.jobs)))


def _requests(fields: Fields | Bad) -> RequestTable:
    if isinstance(fields, Bad):
        raise fields
    return RequestTable(
        gpus=whole(fields, "gpus", 0, MAX_GPUS),
        cpus=amount(fields, "cpus", 0, MAX_CPUS),
        jobs=whole(fields, "jobs", 1, MAX_JOBS),
    )
