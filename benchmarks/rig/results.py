"""What a benchmark answers: rows for the table, detail for those who want to know why.

A value is measured and written down, never asserted: how it stands to its bounds is for the table only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson

_BOUND = re.compile(r"(<=|>=)?\s*([0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured value. `budget` and `aim` are bounds as text (">= 0.9", "<= 5"), "" where there is none."""

    name: str
    value: float
    unit: str
    budget: str = ""
    aim: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one benchmark found out."""

    question: str
    rows: tuple[Row, ...]
    detail: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(self.as_json() + b"\n")

    def as_json(self) -> bytes:
        """For `answer_from_json`, and for people."""
        return orjson.dumps(self, option=orjson.OPT_INDENT_2)


def answer_from_json(text: bytes) -> Answer:
    """An answer as a benchmark wrote it; bounds may be text, numbers or missing."""
    found = orjson.loads(text)
    rows = tuple(_row_from_json(row) for row in found["rows"])
    return Answer(question=found["question"], rows=rows, detail=found.get("detail") or {})


def keeps(value: float, bound: str) -> bool | None:
    """True when `value` keeps to `bound`; a bound without a sign is a most. None where there is no bound."""
    match = _BOUND.match(bound)
    if match is None:
        return None
    limit = float(match[2])
    return value >= limit if match[1] == ">=" else value <= limit


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of the values do not exceed. Raises ValueError without values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The median of first / second over the pairs: only what was measured side by side is compared."""
    return median(first / second for first, second in pairs)


def _row_from_json(row: Mapping[str, Any]) -> Row:
    budget, aim = ("" if row.get(name) is None else str(row[name]) for name in ("budget", "aim"))
    return Row(name=row["name"], value=float(row["value"]), unit=row["unit"], budget=budget, aim=aim)
