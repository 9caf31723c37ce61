"""Where a number comes from: nothing that was assumed may look as if it had been read in a paper."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, get_type_hints


class Provenance(Enum):
    """How far a number can be trusted."""

    TEXT = "T"  # in a paper's text or a table
    FIGURE = "F-assumed"  # in a figure only, which cannot be read exactly: the value is assumed
    DERIVED = "D"  # calculated from what the text says
    MEASURED = "M"
    ASSUMED = "A"
    GENERAL = "G"  # general knowledge


class Origin(NamedTuple):
    """The tag and, in words, the source. Stands in the annotation of the field whose default it explains."""

    tag: Provenance
    source: str


def origins_of(config: type[Any]) -> dict[str, Origin]:
    """Origin by field name of a class; a field annotated without one is not there."""
    hints = get_type_hints(config, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Origin)}
