"""The fields of a trace row: from text to value, or to a sentence with the column, its content and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import TypeVar

from coda_sim.durations import MAX_S

MAX_GPUS = MAX_NODES = 1_000_000  # of one row; more is a wrong column, as for the next two
MAX_CPUS = 10_000_000
MAX_MEMORY_GIB = 1_000_000_000

Fields = Mapping[str, str]
"""Column -> text, as it stands in the file."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Choice = TypeVar("_Choice", bound=Enum)


class Bad(Exception):
    """What is wrong with a row: the sentence after FILE:LINE. `is_benign` as in `BadRow`.

    gpu_s: GPU-seconds of the row, 0 if it does not say them
    """

    def __init__(self, sentence: str, *, is_benign: bool = False) -> None:
        super().__init__(sentence)
        self.is_benign = is_benign
        self.gpu_s = 0.0


def text(fields: Fields, column: str) -> str:
    """Return the field without blanks around it."""
    return fields[column].strip()


def name(fields: Fields, column: str = "job_id") -> str:
    """Return the name of a job: 1 to 253 printable characters."""
    found = text(fields, column)
    if not found or len(found) > 253 or not found.isprintable():
        raise Bad(f"{column} {found[:40]!r} is not 1 to 253 printable characters")
    return found


def amount(fields: Fields, column: str, low: float, high: float) -> float:
    """Return a finite number from `low` to `high`, in ASCII digits."""
    found = text(fields, column)
    if not found:
        raise Bad(f"{column} is empty")
    number = float(found) if _NUMBER.fullmatch(found) else math.nan
    if not low <= number <= high:  # false for NaN too
        raise Bad(f"{column} is {found[:40]!r}, must be a number from {low:g} to {high:g}")
    return number


def whole(fields: Fields, column: str, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`."""
    number = amount(fields, column, low, high)
    if number != int(number):
        raise Bad(f"{column} is {text(fields, column)!r}, must be a whole number")
    return int(number)


def one_of(fields: Fields, column: str, choices: type[_Choice]) -> _Choice:
    """Return the member of `choices` whose value is in the field."""
    found = text(fields, column)
    try:
        return choices(found)
    except ValueError:
        allowed = ", ".join(str(choice.value) for choice in choices)
        raise Bad(f"{column} is {found[:40]!r}, must be one of {allowed}") from None


def moment_s(found: str, column: str) -> float:
    """Return `2020-06-09 18:41:01` as seconds since 1970 on the same wall clock; the time zone does not count."""
    try:
        if _MOMENT.fullmatch(found):
            return _within_a_century((datetime.fromisoformat(f"{found}+00:00") - _EPOCH).total_seconds())
    except ValueError:
        pass  # the 31st of a short month
    raise Bad(f"{column} is {found[:40]!r}, must be a time from 1970 on, written as 2020-06-09 18:41:01")


def _within_a_century(seconds: float) -> float:
    if not 0 <= seconds <= MAX_S:
        raise ValueError(seconds)
    return seconds
