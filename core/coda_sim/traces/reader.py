"""Reads trace files, gzip or plain; the content decides the format.

A bad job is named by FILE:LINE with one sentence and does not affect other jobs. No row is left out or changed
silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from coda.errors import InvalidInput
from coda_sim.traces.csv_formats import CSV_FORMATS, CsvFormat, RowReading
from coda_sim.traces.fields import Bad, Fields
from coda_sim.traces.philly import philly_readings
from coda_sim.traces.text_lines import check_length, csv_columns, csv_records, first_line, numbered_lines, opened, split
from coda_sim.traces.trace import Amendment, BadRow, BadRows, Format, OnError, Row, Trace

DAY_S = 86_400
PAGE = "docs/own-traces.md says what each column holds"
MAX_BAD = 200_000  # lines left out and named; a file with more is no trace, and naming them all could fill the memory

_Readings = Iterator[tuple[int, RowReading | Bad]]


def read_trace(path: Path, *, on_error: OnError) -> Trace:
    """Return every row of the file at `path`, in order of submission (ties: line).

    Second 0 is the source's own if it counts seconds, else midnight before the first submission. Raises InvalidInput
    if the file is not a trace, BadRows if `on_error` refuses and a row is bad. A job that never ran or had not ended is
    left out and counted; that is no reason to refuse."""
    with opened(path) as text:
        number, first = first_line(text)
        if first.lstrip()[:1] in ("[", "{"):
            format_, has_dates, readings = Format.PHILLY, True, philly_readings(path, text, first, number)
        else:
            check_length(path, number, first)
            csv_format = _recognised(first)
            format_, has_dates = csv_format.format, csv_format.has_dates
            columns = csv_columns(path, first, csv_format.columns, number=number, page=PAGE)
            lines = csv_records(columns, numbered_lines(path, text, first=number + 1))
            readings = _csv_readings(csv_format, lines)
        rows, found_bad, amended, bad_gpu_s = _sorted_out(path, readings)
    bad = tuple(found_bad)
    wrong = tuple(row for row in bad if not row.is_benign)
    if wrong and on_error is OnError.REFUSE:
        raise BadRows(str(path), wrong)
    if not rows:
        first = f"; the first: {path}:{bad[0].line}: {bad[0].sentence}" if bad else ""
        raise InvalidInput(f"{path}: no usable row ({len(bad)} bad ones): there is nothing to run{first}")
    ordered = sorted(rows, key=lambda row: (row.submit_s, row.line))
    was_sorted = ordered == rows
    began_s = ordered[0].submit_s // DAY_S * DAY_S if has_dates else 0.0
    return Trace(
        path=str(path),
        rows=tuple(replace(row, submit_s=row.submit_s - began_s) for row in ordered) if began_s else tuple(ordered),
        bad=bad,
        was_sorted=was_sorted,
        format=format_,
        amended=tuple(amended),
        bad_gpu_s=bad_gpu_s,
        began=datetime.fromtimestamp(began_s, UTC).date().isoformat() if has_dates else "",
    )


def _recognised(header: str) -> CsvFormat:
    """The CSV format with the largest share of its columns in the header; the common schema if there are none."""
    fields = split(header)
    columns = set() if isinstance(fields, Bad) else {column.strip() for column in fields}
    return max(CSV_FORMATS, key=lambda known: len(columns.intersection(known.columns)) / len(known.columns))


def _csv_readings(csv_format: CsvFormat, lines: Iterator[tuple[int, Fields | Bad]]) -> _Readings:
    for line, fields in lines:
        if isinstance(fields, Bad):
            yield line, fields
            continue
        try:
            yield line, csv_format.reading_from_fields(line, fields)
        except Bad as problem:
            problem.gpu_s = _gpu_s(csv_format, fields)
            yield line, problem


def _gpu_s(csv_format: CsvFormat, fields: Fields) -> float:
    try:
        return csv_format.gpu_s_from_fields(fields)
    except Bad:
        return 0.0


class _Sorted(NamedTuple):
    rows: list[Row]
    bad: list[BadRow]
    amended: list[Amendment]
    bad_gpu_s: float


def _sorted_out(path: Path, readings: _Readings) -> _Sorted:
    """Rows, lines left out, lines amended. The first use of a job id counts; later ones are bad."""
    rows: list[Row] = []
    bad: list[BadRow] = []
    amended: list[Amendment] = []
    bad_gpu_s = 0.0
    line_by_id: dict[str, int] = {}
    for line, reading in readings:
        if isinstance(reading, RowReading) and reading.row.job_id in line_by_id:
            row = reading.row
            reading = Bad(f"job_id {row.job_id!r} was used before, in line {line_by_id[row.job_id]}")
            reading.gpu_s = row.gpus * row.duration_s
        if isinstance(reading, Bad):
            bad.append(BadRow(line=line, sentence=str(reading), is_benign=reading.is_benign))
            bad_gpu_s += reading.gpu_s
            if len(bad) > MAX_BAD:
                one = f"{path}:{bad[0].line}: {bad[0].sentence}"
                raise InvalidInput(f"{path}: more than {MAX_BAD} bad rows, this is no trace; the first is {one}")
            continue
        line_by_id[reading.row.job_id] = line
        rows.append(reading.row)
        if reading.amendment:
            amended.append(Amendment(line=line, sentence=reading.amendment))
    return _Sorted(rows, bad, amended, bad_gpu_s)
