"""Kubernetes quantities as exact integers, and times as seconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeGuard

from coda.errors import InvalidInput, InvalidQuantity

_QUANTITY = re.compile(
    r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?\d+))?$", re.ASCII
)
_SCALE: dict[str | None, Fraction] = {
    None: Fraction(1),
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Fraction(1, 1000) ** power for power, suffix in enumerate(("m", "u", "n"), 1)},
}

MOST: Final = 2**63 - 1
"""No quantity is more than this many units. Source: apimachinery `resource.ParseQuantity`, which caps there too."""
_LEAST: Final = Fraction(1, 10**9)  # apimachinery rounds up to it
_SPELLINGS: Final = 4096  # cached: pods use few spellings again and again, and an exact fraction takes 4 us
_LONGEST: Final = 64  # characters of a spelling that is cached, and digits that are read exactly
_EXPONENTS: Final = 100  # beyond this, any number of at most `_LONGEST` digits is capped or rounded up


def quantity_from_bytes(count: int) -> str:
    """Return bytes in mebibytes where they are whole ones, else as a plain number."""
    return f"{count >> 20}Mi" if count and count % (1 << 20) == 0 else str(count)


def fraction_from_quantity(text: str | int | float) -> Fraction:
    """Return the exact value of a quantity, at most `MOST` and in size at least a billionth. Raises InvalidQuantity.

    Source: apimachinery `resource.Quantity`: sign, decimal number, binary or decimal suffix or exponent."""
    if isinstance(text, int) and not isinstance(text, bool):
        return _capped(Fraction(text))
    match = _QUANTITY.match(str(text))
    if match is None or isinstance(text, bool):
        raise InvalidQuantity(text)
    number, suffix, exponent = match.groups()
    digits = number.strip("+-0.")
    if not digits:
        return Fraction(0)
    if len(number) > _LONGEST:
        number, shift = _shortened(number)
        exponent = str(shift + (int(exponent[:_LONGEST]) if exponent else 0))
        return _capped(_power(number, exponent) * _SCALE[suffix])
    return _capped(_power(number, exponent) if exponent else Fraction(number) * _SCALE[suffix])


def _shortened(number: str) -> tuple[str, int]:
    """A number of many digits as one of few, rounded towards zero, and a power of ten."""
    sign = "-" if number.startswith("-") else ""
    whole, _, rest = number.lstrip("+-").partition(".")
    significant = (whole + rest).lstrip("0")
    left = len(whole + rest) - len(significant)  # zeros that were dropped
    kept = significant[:_LONGEST]
    return f"{sign}{kept}", len(whole) - left - len(kept)


def _power(number: str, exponent: str) -> Fraction:
    """`number` x 10^`exponent`, where an exponent far beyond any limit counts as one just beyond it."""
    sign = -1 if exponent.startswith("-") else 1
    digits = exponent.lstrip("+-").lstrip("0")
    power = min(_EXPONENTS, int(digits or 0)) if len(digits) < _LONGEST else _EXPONENTS
    return Fraction(number) * Fraction(10) ** (sign * power)


def _capped(value: Fraction) -> Fraction:
    if abs(value) > MOST:
        return Fraction(MOST if value > 0 else -MOST)
    return value if not value or abs(value) >= _LEAST else _LEAST * (1 if value > 0 else -1)


def milli_from_quantity(text: str | int | float) -> int:
    """Return a quantity in thousandths, rounded up as the API server does: "1.5" -> 1500."""
    return _milli_from_text(text) if _is_short(text) else math.ceil(fraction_from_quantity(text) * 1000)


def whole_from_quantity(text: str | int | float) -> int:
    """Return a quantity in whole units, rounded up: "1500m" -> 2, "1Ki" -> 1024."""
    return _whole_from_text(text) if _is_short(text) else math.ceil(fraction_from_quantity(text))


def _is_short(text: str | int | float) -> TypeGuard[str]:
    """True if it is worth a place in the cache: a long spelling would fill memory."""
    return isinstance(text, str) and len(text) <= _LONGEST


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
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidInput(f"{text!r} is not an RFC 3339 time") from error


def time_from_seconds(seconds: float) -> str:
    """Return seconds since 1970 as an RFC 3339 time in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def micro_time_from_seconds(seconds: float) -> str:
    """Return seconds since 1970 as a Kubernetes MicroTime: Leases and Events require six digits."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
