"""Where a number comes from: an assumed number must not look like one from a paper."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Provenance(Enum):
    """How far a number can be trusted."""

    TEXT = "T"  # in a paper's text or a table
    FIGURE = "F-assumed"  # in a figure only, which cannot be read exactly: the value is assumed
    DERIVED = "D"  # calculated from what the text says
    MEASURED = "M"
    ASSUMED = "A"
    GENERAL = "G"  # general knowledge


class Origin(NamedTuple):
    """A tag and, in words, the source. It is in the annotation of the field whose default it explains."""

    tag: Provenance
    source: str
