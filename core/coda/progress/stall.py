"""Failures that are not counted, and whether the job got further between them: what ends, or slows down, a job whose
failures only look like the infrastructure's.

The law: such a failure counts if more than 3 + sqrt(10 h) of them have passed since the job last got further. h is the
hours that it ran since the first of all. Once it gets further, none has passed, and what had counted is given back.

So reports only help: whoever never reports has the same h, and never fewer failures. No time forgives a failure, so a
job that gets no further ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from typing import Final

MOST_UNCOUNTED: Final = 3
"""Failures without a step further that do not count. Our choice: a rule may be wrong."""
ALLOWED_S: Final = 360
"""Of running, the root of this many of its parts is allowed besides. Our choice: whatever the time between failures, a
job may fail 10 times for each hour of it (12 h: 125 times, two months; 11 min: 6 times)."""
FIRST_WAIT_S: Final = 1.0
WAIT_FACTOR: Final = 6.0
LONGEST_WAIT_S: Final = 3600.0
"""From failure to failure the wait is six times as long. Our choice: three tries within a minute; with three retries
an outage of an hour ends no job."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The failures that were not counted at once, since the job last got further, and all that it takes to judge them.

    `counted`: how many of them count. `row`: the last ones, less one for each hour of running; it goes on when the job
    gets further. `ran_s`: how long the job ran since the first of all; it goes on, too."""

    failures: int = 0
    counted: int = 0
    row: int = 0
    ran_s: int = 0
    reached: Reached = field(default_factory=Reached)  # the furthest of all attempts

    @property
    def is_spent(self) -> bool:
        """True if failures count from now on."""
        return self.failures > MOST_UNCOUNTED + isqrt(self.ran_s // ALLOWED_S)


def is_further(reached: Reached, before: Reached) -> bool:
    """True if the attempt saved more than all before it; if it told of no save, if its step is beyond theirs.

    Of jobs that report no steps, if its epoch is."""
    if reached.saved_step is not None:
        return reached.saved_step > _or_none(before.saved_step)
    if reached.step is not None or before.step is not None or before.saved_step is not None:
        return _or_none(reached.step) > _or_none(before.step)
    return (-1.0 if reached.epoch is None else reached.epoch) > (-1.0 if before.epoch is None else before.epoch)


def stall_after(before: Stall | None, reached: Reached, ran_s: float, *, adds: bool) -> Stall | None:
    """Return what is known after an attempt that came so far and ran for `ran_s`, however it ended.

    `adds`: it failed by what is not counted at once; else None stays None."""
    if before is None and not adds:
        return None
    known = before or Stall()
    further = is_further(reached, known.reached)
    all_ran_s = known.ran_s + int(ran_s)
    row = max(0, known.row - int(all_ran_s // ROW_S - known.ran_s // ROW_S))
    return Stall(
        failures=(0 if further else known.failures) + int(adds),
        counted=0 if further else known.counted,
        row=min(MOST_IN_A_ROW, row + int(adds)),
        ran_s=all_ran_s,
        reached=_furthest(reached, known.reached),
    )


def stall_wait_s(stall: Stall, ran_s: float) -> float:
    """Return how long to wait after a failure that it has. `ran_s`: of the attempt."""
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * WAIT_FACTOR ** max(0, stall.row - 1))
    got_further = stall.failures <= 1
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
