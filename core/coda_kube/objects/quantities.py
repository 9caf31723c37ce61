"""Kubernetes quantities as exact integers, and times as seconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Final

from coda.errors import InvalidInput, InvalidQuantity

_QUANTITY = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?\d{1,3}))?$")
_SCALE: dict[str | None, Fraction] = {
    None: Fraction(1),
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Fraction(1, 1000) ** power for power, suffix in enumerate(("m", "u", "n"), 1)},
}

_SPELLINGS: Final = 4096  # cached: pods use few spellings again and again, and an exact fraction takes 4 us


def fraction_from_quantity(text: str | int | float) -> Fraction:
    """Return the exact value of a quantity. Raises InvalidQuantity.

    Source: apimachinery `resource.Quantity`: sign, decimal number, binary or decimal suffix or exponent."""
    if isinstance(text, int):
        return Fraction(text)
    match = _QUANTITY.match(str(text))
    if match is None:
        raise InvalidQuantity(text)
    number, suffix, exponent = match.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _SCALE[suffix])


def milli_from_quantity(text: str | int | float) -> int:
    """Return a quantity in thousandths, rounded up as the API server does: "1.5" -> 1500."""
    return _milli_from_text(text) if isinstance(text, str) else math.ceil(fraction_from_quantity(text) * 1000)


def whole_from_quantity(text: str | int | float) -> int:
    """Return a quantity in whole units, rounded up: "1500m" -> 2, "1Ki" -> 1024."""
    return _whole_from_text(text) if isinstance(text, str) else math.ceil(fraction_from_quantity(text))


@lru_cache(_SPELLINGS)
def _milli_from_text(text: str) -> int:
    return math.ceil(fraction_from_quantity(text) * 1000)


@lru_cache(_SPELLINGS)
def _whole_from_text(text: str) -> int:
    return math.ceil(fraction_from_quantity(text))


def quantity_from_milli(milli: int) -> str:
    """Return the shortest canonical spelling: 1500 -> "1500m", 2000 -> "2"."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def seconds_from_time(text: str | None) -> float:
    """Return an RFC 3339 time as seconds since 1970; 0.0 for no text. Raises InvalidInput."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not an RFC 3339 time") from error


def time_from_seconds(seconds: float) -> str:
    """Return seconds since 1970 as an RFC 3339 time in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def micro_time_from_seconds(seconds: float) -> str:
    """Return seconds since 1970 as a Kubernetes MicroTime: Leases and Events require six digits."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
