"""A suspicion: what looks like a breach at one moment, how long it may look so, and whose duty it is to end it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda_kube.objects import names
from coda_lab.checker.report import Invariant

SETTLE_S: Final = 0.3  # watches of different kinds lag each other by less, mostly; the fresh list decides anyway


class Part(Enum):
    """Who must act; the value is the Lease that shows somebody is at work."""

    OPERATOR = names.OPERATOR_LEASE
    PLANNER = names.PLANNER_LEASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A breach if it lasts `allowance_s` after `not_before_s` while `duty` (None: nobody in particular) is at work.

    `subject` tells suspicions of one invariant apart; `objects` and `sentence` may change while it lasts."""

    invariant: Invariant
    subject: tuple[str, ...]
    objects: tuple[str, ...]
    sentence: str
    allowance_s: float = SETTLE_S
    duty: Part | None = None
    not_before_s: float = 0.0

    @property
    def key(self) -> tuple[Invariant, tuple[str, ...]]:
        """The same for the same trouble."""
        return self.invariant, self.subject
