"""A trace file as lines of text, decompressed if its content is gzip; never more than one limited line in memory.

Every failure to read the file is one `InvalidInput` with the path.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from coda.errors import InvalidInput
from coda_sim.traces.fields import Bad, Fields

MAX_LINE_CHARACTERS = 65_536  # a longer line is no row, and reading it whole could fill the memory

_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open the text of the file, decompressed if its content is gzip. Every failure to read it becomes InvalidInput."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(2)
            if magic in _UTF16_MARKS:
                raise InvalidInput(f"{path}: the text is UTF-16: save it as UTF-8")
            raw.seek(0)
            binary = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if magic == _GZIP_MAGIC else raw
            with TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline=None) as text:
                yield text
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: the gzip file is damaged or cut short ({error}): fetch it again") from error
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from error


def numbered_lines(path: Path, text: TextIO, *, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield line number, from `first`, and line. Raises InvalidInput at a line that is too long."""
    number = first
    while line := text.readline(MAX_LINE_CHARACTERS):
        check_length(path, number, line)
        yield number, line
        number += 1


def first_line(text: TextIO) -> tuple[int, str]:
    """Return number and text of the first line that is not blank, cut at the limit; empty if there is none."""
    number = 1
    while (line := text.readline(MAX_LINE_CHARACTERS)) and not line.strip():
        number += line.endswith("\n")
    return number, line


def check_length(path: Path, number: int, line: str) -> None:
    """Raise InvalidInput if the line was cut at the limit."""
    if len(line) == MAX_LINE_CHARACTERS and not line.endswith("\n"):
        raise InvalidInput(f"{path}:{number}: longer than {MAX_LINE_CHARACTERS} characters: this is no trace")


def csv_columns(path: Path, line: str, wanted: tuple[str, ...], *, number: int = 1, page: str = "") -> list[str]:
    """Return the columns of a header line. Raises InvalidInput unless it has every `wanted` column once.

    `page`: where these columns are explained, for the error."""
    header = split(line)
    if not header:
        raise InvalidInput(f"{path}: the file is empty: a trace starts with the header {','.join(wanted)}")
    columns = [] if isinstance(header, Bad) else [column.strip() for column in header]
    missing = [column for column in wanted if column not in columns]
    if len(missing) == len(wanted):
        raise InvalidInput(f"{path}: not a CSV file with the header {','.join(wanted)}{page and f' ({page})'}")
    if missing:
        raise InvalidInput(f"{path}:{number}: the header lacks {', '.join(missing)}{page and f' ({page})'}")
    twice = sorted({column for column in wanted if columns.count(column) > 1})
    if twice:
        raise InvalidInput(f"{path}:{number}: the header has {', '.join(twice)} twice")
    return columns


def csv_records(columns: list[str], lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Fields | Bad]]:
    """Yield line number and fields by column of each line that is not blank, or why it could not be split."""
    for number, line in lines:
        if not line.strip():
            continue
        fields = split(line)
        if isinstance(fields, Bad):
            yield number, fields
        elif len(fields) != len(columns):
            yield number, Bad(f"has {len(fields)} fields, the header has {len(columns)}")
        elif "\ufffd" in line:
            yield number, Bad("is not UTF-8 text")
        else:
            yield number, dict(zip(columns, fields, strict=True))


def split(line: str) -> list[str] | Bad:
    """Return the fields of one line of CSV."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        return Bad(f"is not CSV: {error}")
