"""Spans of time as people write them: `6h`, `90m`, `1h30m`, `250ms`."""

from __future__ import annotations

import re

from coda.errors import InvalidInput

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)

MAX_S = 3.2e9
"""About a hundred years: a longer time is a mistake in the unit."""


def seconds_from_duration(text: str, *, may_be_zero: bool = False) -> float:
    """Return `1h30m` as 5400.0. Raises InvalidInput for other texts, for zero and for more than a hundred years.

    may_be_zero: `0` and `0s` are 0.0"""
    if may_be_zero and text.strip() in ("0", "0s"):
        return 0.0
    if _WHOLE.fullmatch(text.strip()) is None:
        raise InvalidInput(f"{text!r} is not a duration: write 30s, 90m, 6h, 2d or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if not 0 < seconds <= MAX_S:
        raise InvalidInput(f"{text!r} is no usable duration: it must be more than nothing and at most a hundred years")
    return seconds


def duration_from_seconds(seconds: float) -> str:
    """Write a time in at most two units: 5400.0 as `1h 30m`, 0.25 as `0.25s`, 93784.0 as `1d 2h`."""
    if seconds < 59.995:
        return f"{round(seconds, 2):g}s"
    whole = round(seconds)
    for large, unit, small, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large}{unit} {rest}{part}" if rest else f"{whole // large}{unit}"
    raise AssertionError(seconds)
