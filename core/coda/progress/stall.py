"""Failures that are not counted, and whether the job got further between them: what ends, or slows down, a job whose
failures only look like the infrastructure's.

A job that gets further may fail so for weeks. One that reports how far it is, and does not get further, may do so three
times. Of one that reports nothing only its running time is known: what is allowed grows with the root of that, so there
is no time after which a failure is forgiven for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Final

MOST_UNCOUNTED: Final = 3
"""Failures without a step further that do not count. Our choice: a rule may be wrong."""
ALLOWED_S: Final = 360
"""Of running without a report, the root of this many of its parts is allowed besides. Our choice: whatever the time
between failures, a job may fail 10 times for each hour of it (12 h: 125 times, two months; 11 min: 6 times)."""
FIRST_WAIT_S: Final = 1.0
WAIT_FACTOR: Final = 6.0
LONGEST_WAIT_S: Final = 3600.0
"""From failure to failure the wait is six times as long. Our choice: three tries within a minute, and an outage of an
hour ends no job."""
MOST_IN_A_ROW: Final = 6
"""The longest wait is reached then."""
ROW_S: Final = 3600.0
"""So much running shortens the row by one."""
WAIT_SHARE: Final = 0.25
"""Of the time that an attempt ran: the longest wait after it, if it got further. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far an attempt came by its own reports. None: it said nothing of that."""

    step: int | None = None
    saved_step: int | None = None
    epoch: float | None = None

    @property
    def is_known(self) -> bool:
        """True if it reported anything."""
        return self.step is not None or self.saved_step is not None or self.epoch is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The failures that were not counted at once, since the job last got further.

    `row`: the last ones, less one for each hour of running; it goes on when the job gets further. `ran_s`: of the
    attempts without a report."""

    failures: int = 0
    row: int = 0
    ran_s: int = 0
    reached: Reached = field(default_factory=Reached)  # the furthest of all attempts

    @property
    def is_spent(self) -> bool:
        """True if failures count from now on."""
        return self.failures > MOST_UNCOUNTED + isqrt(self.ran_s // ALLOWED_S)


def is_further(reached: Reached, before: Reached) -> bool:
    """True if more is saved; of jobs that never told of a save, if more is done."""
    if reached.saved_step is not None or before.saved_step is not None:
        return _or_none(reached.saved_step) > _or_none(before.saved_step)
    if reached.step is not None or before.step is not None:
        return _or_none(reached.step) > _or_none(before.step)
    return (-1.0 if reached.epoch is None else reached.epoch) > (-1.0 if before.epoch is None else before.epoch)


def stall_after(before: Stall | None, reached: Reached, ran_s: float, served_s: float, *, adds: bool) -> Stall | None:
    """Return the row after an attempt that failed. `adds`: by what is not counted at once; else None stays None.

    `ran_s`: how long it ran. `served_s`: those before it, in all."""
    if before is None and not adds:
        return None
    known = before or Stall()
    passed = int((served_s + ran_s) // ROW_S) - int(served_s // ROW_S)
    row = max(0, known.row - passed)
    further = is_further(reached, known.reached)
    failures = 0 if further else known.failures
    silent_s = 0 if reached.is_known else int(ran_s)
    return replace(
        known,
        failures=failures + int(adds),
        row=min(MOST_IN_A_ROW, row + int(adds)),
        ran_s=0 if further else known.ran_s + silent_s,
        reached=_furthest(reached, known.reached),
    )


def stall_wait_s(stall: Stall, ran_s: float) -> float:
    """Return how long to wait after a failure that it has counted. `ran_s`: of the attempt."""
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * WAIT_FACTOR ** max(0, stall.row - 1))
    got_further = stall.failures <= 1 and stall.reached.is_known
    return min(wait_s, max(FIRST_WAIT_S, ran_s * WAIT_SHARE)) if got_further else wait_s


def _or_none(step: int | None) -> int:
    return -1 if step is None else step


def _furthest(one: Reached, other: Reached) -> Reached:
    step = max(_or_none(one.step), _or_none(other.step))
    saved_step = max(_or_none(one.saved_step), _or_none(other.saved_step))
    epochs = [epoch for epoch in (one.epoch, other.epoch) if epoch is not None]
    return Reached(
        step=None if step < 0 else step,
        saved_step=None if saved_step < 0 else saved_step,
        epoch=max(epochs) if epochs else None,
    )
