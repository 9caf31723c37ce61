"""Frozen dataclasses as plain data and back, so that a decision's state survives a restart.

Plain data is dict, list, str, int, float, bool and None, with the CRD's spelling of names (`gpu_count` -> `gpuCount`).
The types of the fields are the schema; no particular type is known here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from coda.errors import InvalidInput

T = TypeVar("T")


def plain_from_value(value: object) -> Any:
    """Return `value` as plain data. Dataclasses become mappings, tuples lists, enums their values. Cost: O(size)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_spelled(f.name): plain_from_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain_from_value(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def value_from_plain(kind: type[T], plain: object) -> T:
    """Return the dataclass `kind` that `plain` describes. An absent name takes the field's default.

    Raises InvalidInput, with the place, for unknown or missing names, wrong types, numbers that are not finite, and
    values that the dataclass refuses."""
    value: T = _value(kind, plain, kind.__name__)
    return value


def _spelled(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(kind: Any, plain: object, place: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (option for option in get_args(kind) if option is not types.NoneType)
        return None if plain is None else _value(inner, plain, place)
    if get_origin(kind) is tuple:
        return _items(get_args(kind)[0], plain, place)
    if dataclasses.is_dataclass(kind):
        return _fields(kind, plain, place)
    if issubclass(kind, Enum):
        return _member(kind, plain, place)
    return _scalar(kind, plain, place)


def _items(kind: Any, plain: object, place: str) -> tuple[Any, ...]:
    if not isinstance(plain, list | tuple):
        raise InvalidInput(f"{place} must be a list, got {plain!r:.60}")
    return tuple(_value(kind, item, f"{place}[{index}]") for index, item in enumerate(plain))


def _fields(kind: Any, plain: object, place: str) -> Any:
    if not isinstance(plain, Mapping):
        raise InvalidInput(f"{place} must be a mapping, got {plain!r:.60}")
    schema = _schema(kind)
    unknown = sorted(str(key) for key in plain if key not in schema)
    if unknown:
        raise InvalidInput(f"{place} has no {unknown[0]}")
    found = {name: _value(hint, plain[key], f"{place}.{key}") for key, (name, hint) in schema.items() if key in plain}
    try:
        return kind(**found)
    except TypeError as missing:  # a field without default is absent
        raise InvalidInput(f"{place} is incomplete: {missing}") from None


@functools.cache
def _schema(kind: type) -> Mapping[str, tuple[str, Any]]:
    """Name and type of each field by its spelling. Cached: to find the types costs five times a read of the value."""
    hints = get_type_hints(kind)
    return {_spelled(field.name): (field.name, hints[field.name]) for field in dataclasses.fields(kind)}


def _member(kind: type[Enum], plain: object, place: str) -> Enum:
    try:
        return kind(plain)
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        raise InvalidInput(f"{place} must be one of {choices}, got {plain!r:.60}") from None


def _scalar(kind: Any, plain: object, place: str) -> Any:
    if kind is float and isinstance(plain, int | float) and not isinstance(plain, bool) and math.isfinite(plain):
        return float(plain)
    if kind is not float and isinstance(plain, kind) and isinstance(plain, bool) == (kind is bool):
        return plain
    raise InvalidInput(f"{place} must be {kind.__name__}, got {plain!r:.60}")
