"""A suspicion: a state that looks like a breach at one moment, how long it may last, and which part must end it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda_kube.objects import names
from coda_lab.checker.report import Invariant

SETTLE_S: Final = 0.3  # watches of different kinds usually differ by less; the fresh list decides anyway


class Part(Enum):
    """The part that must act; the value is the Lease that shows it at work."""

    OPERATOR = names.OPERATOR_LEASE
    PLANNER = names.PLANNER_LEASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A breach if it lasts `allowance_s` after `not_before_s` while `duty` (None: no particular part) is at work.

    `subject` tells suspicions of one invariant apart; `objects` and `sentence` may change while it lasts.
    """

    invariant: Invariant
    subject: tuple[str, ...]
    objects: tuple[str, ...]
    sentence: str
    allowance_s: float = SETTLE_S
    duty: Part | None = None
    not_before_s: float = 0.0

    @property
    def key(self) -> tuple[Invariant, tuple[str, ...]]:
        """Equal for the same trouble."""
        return self.invariant, self.subject
