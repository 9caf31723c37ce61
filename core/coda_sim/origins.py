"""Where a number comes from: nothing that was assumed may look as if it had been read in a paper."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class Tag(Enum):
    """How far a number can be trusted."""

    TEXT = "T"  # in a paper's text or a table
    FIGURE = "F-assumed"  # in a figure only, which cannot be read exactly: the value is assumed
    DERIVED = "D"  # calculated from what the text says
    MEASURED = "M"
    ASSUMED = "A"
    GENERAL = "G"  # general knowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The tag and, in words, the source."""

    tag: Tag
    source: str


def known(value: _Value, tag: Tag, source: str) -> _Value:
    """The default of a dataclass field, with its origin kept beside it (`origins_of`)."""
    return field(default=value, metadata={"origin": Origin(tag=tag, source=source)})


def origins_of(config: Any) -> dict[str, Origin]:
    """Origin by field name of a dataclass made with `known`. Raises KeyError for a field that was not."""
    return {one.name: one.metadata["origin"] for one in fields(config)}
