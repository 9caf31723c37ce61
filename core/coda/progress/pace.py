"""How fast a job goes, and so when it ends: from the moments at which its progress was seen to change.

The first thing seen may be old, so its moment says nothing. Times are of one clock that never jumps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_CHANGES: Final = 20
"""The changes that count, the last ones. Our choice: ten minutes at one look each 30 s."""

LONGEST_S: Final = 10 * 365 * 86400.0
"""An end that is further away is not told."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The last part done that was seen, and the changes: (seconds, part done), oldest first."""

    done_share: float
    changes: tuple[tuple[float, float], ...] = ()


def pace_after(before: Pace | None, done_share: float | None, now_s: float) -> Pace | None:
    """Return the pace after a look. Progress that goes back begins anew; None: there is nothing to go by."""
    if done_share is None:
        return None
    if before is None or done_share < before.done_share:
        return Pace(done_share)
    if done_share == before.done_share:
        return before
    return Pace(done_share, (*before.changes, (now_s, done_share))[-MOST_CHANGES:])


def seconds_left(pace: Pace | None, now_s: float) -> float | None:
    """Return the seconds until the job is done at its pace; None without two changes, or once it is overdue."""
    if pace is None or len(pace.changes) < 2:
        return None
    (first_s, first_share), (last_s, last_share) = pace.changes[0], pace.changes[-1]
    if last_s <= first_s:
        return None
    left_s = (1.0 - last_share) * (last_s - first_s) / (last_share - first_share) - (now_s - last_s)
    return left_s if 0.0 <= left_s <= LONGEST_S else None
