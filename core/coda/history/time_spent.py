"""How a job's time goes: what it waits for, and how long it has its GPUs. The end of each job closes its account.

An account is kept in memory while a job lives. Who begins in the middle of a job knows only the times in its status:
what is missing then is a wait of its own cause, `UNSEEN`, so the sum is always the whole time of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

UNSEEN: Final = "Unseen"
"""The cause of time that nobody saw: no operator ran, or it began in the middle."""
CAUSES: Final = 12
"""Causes that one account tells apart; further ones count as `OTHER`."""
OTHER: Final = "Other"


class Doing(Enum):
    """What a job does with its time."""

    WAITING = "waiting"
    HOLDING = "holding"  # it has its GPUs, and not all ranks have started
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """The account of one live job. `cause` matters only while it waits."""

    began_s: float  # the account; the job may be older
    since_s: float  # it does the present thing
    doing: Doing
    cause: str = ""
    waits: tuple[tuple[str, float], ...] = ()
    held_s: float = 0.0
    run_s: float = 0.0


def begun(doing: Doing, cause: str, now_s: float) -> TimeSpent:
    """Return the account of a job that is seen for the first time."""
    return TimeSpent(began_s=now_s, since_s=now_s, doing=doing, cause=cause)


def moved_on(spent: TimeSpent, doing: Doing, cause: str, now_s: float) -> TimeSpent:
    """Return the account of a job that does this from now on. The same account if nothing changed. O(causes)."""
    if doing is spent.doing and (doing is not Doing.WAITING or cause == spent.cause):
        return spent
    return replace(_counted(spent, now_s), since_s=now_s, doing=doing, cause=cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTimes:
    """The times in a job's status: 0 for none. `started_s` is of its first attempt that ran, the launch of its last."""

    queued_s: float
    launched_s: float
    started_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The whole time of a finished job. `waits` and `held_s` sum up to it; `run_s` is part of `held_s`."""

    waits: tuple[tuple[str, float], ...]
    held_s: float
    run_s: float


def split_of(spent: TimeSpent | None, times: StatusTimes) -> Split:
    """Return how the job's time went, from its account and the times in its status.

    An account that saw the last launch is believed; else the status says how long the last attempt had its GPUs.
    Where the two leave a gap it is `UNSEEN`; where they are too long, waits are cut in proportion. O(causes)."""
    total_s = max(0.0, times.ended_s - times.queued_s) if times.queued_s else 0.0
    closed = _counted(spent, times.ended_s) if spent is not None else None
    held_s = closed.held_s if closed is not None else 0.0
    run_s = closed.run_s if closed is not None else 0.0
    if times.launched_s and (closed is None or closed.began_s > times.launched_s):
        held_s = max(held_s, times.ended_s - times.launched_s)
        if times.started_s:
            run_s = max(run_s, times.ended_s - max(times.launched_s, times.started_s))
    held_s = min(max(0.0, held_s), total_s)
    run_s = min(max(0.0, run_s), held_s)
    waits = closed.waits if closed is not None else ()
    seen_s, left_s = sum(seconds for _, seconds in waits), total_s - held_s
    if seen_s > left_s:
        waits = tuple((cause, seconds * left_s / seen_s) for cause, seconds in waits)
    elif seen_s < left_s:
        waits = _with(waits, UNSEEN, left_s - seen_s)
    return Split(waits=tuple(sorted(wait for wait in waits if wait[1] > 0)), held_s=held_s, run_s=run_s)


def _counted(spent: TimeSpent, now_s: float) -> TimeSpent:
    """A clock that was put back adds nothing."""
    passed_s = max(0.0, now_s - spent.since_s)
    if spent.doing is Doing.WAITING:
        return replace(spent, waits=_with(spent.waits, spent.cause, passed_s))
    ran_s = passed_s if spent.doing is Doing.RUNNING else 0.0
    return replace(spent, held_s=spent.held_s + passed_s, run_s=spent.run_s + ran_s)


def _with(waits: tuple[tuple[str, float], ...], cause: str, seconds: float) -> tuple[tuple[str, float], ...]:
    known = dict(waits)
    if cause not in known and cause != UNSEEN and len(known) >= CAUSES:
        cause = OTHER
    known[cause] = known.get(cause, 0.0) + seconds
    return tuple(sorted(known.items()))
