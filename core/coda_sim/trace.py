"""Trace files: CSV (plain or gzip, told by content) in the common schema -> frozen rows.

Each line is one row and stands alone: a bad one is named as FILE:LINE with one sentence and spoils no other.
What a row means for a cluster is not decided here (`rows`), nor which rows are wanted (`selection`).
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar, cast

from coda.errors import InvalidInput
from coda_sim.durations import MAX_S

COLUMNS = (
    "job_id",
    "user",
    "virtual_cluster",
    "submit_s",
    "duration_s",
    "gpus",
    "cpus",
    "memory_gib",
    "nodes_requested",
    "status",
    "kind",
)

MAX_GPUS = MAX_NODES = 1_000_000  # of one row; more is a wrong column, as for the next two
MAX_CPUS = 10_000_000
MAX_MEMORY_GIB = 1_000_000_000
MAX_LINE_CHARACTERS = 65_536  # a longer line is no row, and reading it whole could fill the memory
NAMED = 20  # bad rows that a refusal names one by one

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_GZIP_MAGIC = b"\x1f\x8b"

_Choice = TypeVar("_Choice", bound=Enum)


class OnError(Enum):
    """What to do about bad rows."""

    SKIP = "skip"
    REFUSE = "refuse"


class Status(Enum):
    """How the job ended in the source; OTHER is not recorded."""

    PASSED = "passed"
    KILLED = "killed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OTHER = "other"


class Kind(Enum):
    """Whether the job asked for GPUs."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job of the source; amounts are of the whole job. `None` is unknown."""

    line: int
    job_id: str
    user: str
    virtual_cluster: str
    submit_s: float  # seconds from the start of the window
    duration_s: float  # run time once started, at least 1
    gpus: int
    cpus: float | None
    memory_gib: float | None
    nodes_requested: int | None
    status: Status
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A line that is no row, and why."""

    line: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The rows of one file by (submit_s, line); `bad` are the lines left out; `was_sorted`: so the file had them."""

    path: str
    rows: tuple[Row, ...]
    bad: tuple[BadRow, ...]
    was_sorted: bool


class BadRows(InvalidInput):
    """A trace was refused because of its bad rows; all are in `bad`, the first 20 in the sentence."""

    def __init__(self, path: str, bad: tuple[BadRow, ...]) -> None:
        named = [f"{path}:{row.line}: {row.sentence}" for row in bad[:NAMED]]
        more = [f"... and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
        super().__init__("\n".join([f"{path}: {len(bad)} bad rows, nothing was used:", *named, *more]))
        self.bad = bad


class _Bad(Exception):
    """What is wrong with the line at hand."""


def read_trace(path: Path, *, on_error: OnError) -> Trace:
    """Every row of the file at `path`, in order of submission (ties: line).

    Raises InvalidInput for a file that is no trace at all, BadRows when `on_error` refuses and a row is bad."""
    rows: list[Row] = []
    bad: list[BadRow] = []
    line_by_id: dict[str, int] = {}
    for line, fields in _records(path, COLUMNS):
        try:
            row = _row(line, fields)
            if row.job_id in line_by_id:
                raise _Bad(f"job_id {row.job_id!r} was used before, in line {line_by_id[row.job_id]}")
        except _Bad as problem:
            bad.append(BadRow(line=line, sentence=str(problem)))
            continue
        line_by_id[row.job_id] = line
        rows.append(row)
    if bad and on_error is OnError.REFUSE:
        raise BadRows(str(path), tuple(bad))
    if not rows:
        raise InvalidInput(f"{path}: no usable row ({len(bad)} bad ones): there is nothing to run")
    ordered = sorted(rows, key=lambda row: (row.submit_s, row.line))
    return Trace(path=str(path), rows=tuple(ordered), bad=tuple(bad), was_sorted=ordered == rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """One line of a request table: `jobs` jobs of `gpus` GPUs asked for `cpus` cores in total."""

    gpus: int
    cpus: float
    jobs: int


def read_request_table(path: Path) -> tuple[Requests, ...]:
    """The GPU lines of a table gpus, cpus, nodes_requested, jobs. Any bad line refuses the file (InvalidInput)."""
    table: list[Requests] = []
    for line, fields in _records(path, ("gpus", "cpus", "jobs")):
        try:
            gpus = _whole(fields, "gpus", 0, MAX_GPUS)
            cpus = _amount(fields, "cpus", 0, MAX_CPUS)
            jobs = _whole(fields, "jobs", 1, 1_000_000_000)
        except _Bad as problem:
            raise InvalidInput(f"{path}:{line}: {problem}") from None
        if gpus:
            table.append(Requests(gpus=gpus, cpus=cpus, jobs=jobs))
    if not table:
        raise InvalidInput(f"{path}: no line with GPUs: cores of GPU jobs cannot be drawn from it")
    return tuple(sorted(table, key=lambda entry: (entry.gpus, entry.cpus, entry.jobs)))


def _row(line: int, fields: Mapping[str, str] | str) -> Row:
    gpus = _whole(fields, "gpus", 0, MAX_GPUS)
    kind = _one_of(fields, "kind", Kind)
    if (gpus > 0) is not (kind is Kind.GPU):
        raise _Bad(f"kind is {kind.value!r} but gpus is {gpus}")
    return Row(
        line=line,
        job_id=_name(fields),
        user=_field(fields, "user"),
        virtual_cluster=_field(fields, "virtual_cluster"),
        submit_s=_amount(fields, "submit_s", 0, MAX_S),
        duration_s=_amount(fields, "duration_s", 1, MAX_S),
        gpus=gpus,
        cpus=_amount(fields, "cpus", 0, MAX_CPUS) if _field(fields, "cpus") else None,
        memory_gib=_amount(fields, "memory_gib", 0, MAX_MEMORY_GIB) if _field(fields, "memory_gib") else None,
        nodes_requested=_whole(fields, "nodes_requested", 1, MAX_NODES) if _field(fields, "nodes_requested") else None,
        status=_one_of(fields, "status", Status) if _field(fields, "status") else Status.OTHER,
        kind=kind,
    )


def _field(fields: Mapping[str, str] | str, column: str) -> str:
    if isinstance(fields, str):  # the line could not be split: `fields` says why
        raise _Bad(fields)
    return fields[column].strip()


def _name(fields: Mapping[str, str] | str) -> str:
    name = _field(fields, "job_id")
    if not name or len(name) > 253 or not name.isprintable():
        raise _Bad(f"job_id {name[:40]!r} is not 1 to 253 printable characters")
    return name


def _amount(fields: Mapping[str, str] | str, column: str, low: float, high: float) -> float:
    text = _field(fields, column)
    if not text:
        raise _Bad(f"{column} is empty")
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not low <= number <= high:  # false for NaN too
        raise _Bad(f"{column} is {text[:40]!r}, must be a number from {low:g} to {high:g}")
    return number


def _whole(fields: Mapping[str, str] | str, column: str, low: int, high: int) -> int:
    number = _amount(fields, column, low, high)
    if number != int(number):
        raise _Bad(f"{column} is {_field(fields, column)!r}, must be a whole number")
    return int(number)


def _one_of(fields: Mapping[str, str] | str, column: str, choices: type[_Choice]) -> _Choice:
    text = _field(fields, column)
    try:
        return choices(text)
    except ValueError:
        allowed = ", ".join(str(choice.value) for choice in choices)
        raise _Bad(f"{column} is {text[:40]!r}, must be one of {allowed}") from None


def _records(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str] | str]]:
    """Line number and fields by column of each line after the header; a sentence instead when it cannot be split."""
    with _opened(path) as text:
        lines = _lines(path, text)
        header = _split(next(lines, (0, ""))[1])
        columns = _checked_header(path, header, wanted)
        for line, content in lines:
            if not content.strip():
                continue
            fields = _split(content)
            if isinstance(fields, str):
                yield line, fields
            elif len(fields) != len(columns):
                yield line, f"has {len(fields)} fields, the header has {len(columns)}"
            elif "\ufffd" in content:
                yield line, "is not UTF-8 text"
            else:
                yield line, dict(zip(columns, fields, strict=True))


def _checked_header(path: Path, header: list[str] | str, wanted: tuple[str, ...]) -> list[str]:
    if not header:
        raise InvalidInput(f"{path}: the file is empty: a trace starts with the header {','.join(wanted)}")
    columns = [] if isinstance(header, str) else [column.strip() for column in header]
    missing = [column for column in wanted if column not in columns]
    if len(missing) == len(wanted):
        raise InvalidInput(f"{path}: not a CSV file with the header {','.join(wanted)}")
    if missing:
        raise InvalidInput(f"{path}:1: the header lacks {', '.join(missing)}")
    twice = sorted({column for column in wanted if columns.count(column) > 1})
    if twice:
        raise InvalidInput(f"{path}:1: the header has {', '.join(twice)} twice")
    return columns


def _split(line: str) -> list[str] | str:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        return f"is not CSV: {error}"


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The text of the file, decompressed when its content is gzip. Every failure to read it becomes InvalidInput."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            binary = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_gzip else raw
            with TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline=None) as text:
                yield text
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: the gzip file is damaged or cut short ({error}): fetch it again") from error
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from error


def _lines(path: Path, text: TextIO) -> Iterator[tuple[int, str]]:
    number = 0
    while line := text.readline(MAX_LINE_CHARACTERS):
        number += 1
        if len(line) == MAX_LINE_CHARACTERS and not line.endswith("\n"):
            raise InvalidInput(f"{path}:{number}: longer than {MAX_LINE_CHARACTERS} characters: this is no trace")
        yield number, line
