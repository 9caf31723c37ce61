"""One finding of the doctor, and the words that several have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda.wording import listed

MOST_SKEW_S: Final = 5.0
NAMED: Final = 3  # nodes or DaemonSets that a sentence names


class Level(Enum):
    """How good it is."""

    GOOD = "ok"
    NOTE = "note"  # it works; something is left unused
    BAD = "bad"
    UNKNOWN = "?"  # the user may not look


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix`: what to do about it, if anything."""

    level: Level
    about: str
    says: str
    fix: str = ""


def unreadable(about: str) -> Finding:
    """Return the finding for what this user may not read."""
    return Finding(Level.UNKNOWN, about, "you may not look", "ask somebody who manages the cluster")


def few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - NAMED
    return listed([*names[:NAMED], *([f"{more} more"] if more > 0 else [])])
