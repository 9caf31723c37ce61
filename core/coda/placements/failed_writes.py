"""How a job that cannot be written or evicted is kept from holding up the others.

A write may fail for one object alone: it is at the limit of etcd, a webhook refuses it or takes long, or somebody
changes it all the time. After a few tries the job is left out of decisions, for longer and longer. So are, at once, all
pods of an owner whose disruption budget refuses an eviction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

PATIENCE_S: Final = 0.5
"""A cycle waits this long for a write; slower ones go on beside the next cycles. Our choice: ten times a slow write."""

SLOW_PER_NAMESPACE: Final = 4
"""Slow writes of one namespace at a time: a slow webhook of one tenant must not take every connection. Our choice."""

DOUBT_S: Final = 5.0
"""A write without an answer may still be stored for this long: its capacity stays taken. Our choice: the API server
has given its request up by then, unless a webhook holds it."""

_LEFT_OUT: Final = 4  # points
_FAILED: Final = 2
_OVERTAKEN: Final = 1
_NOW_AND_THEN_S: Final = 10.0
FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 300.0

UNPROVEN_PAUSE_S: Final = 30.0
"""The longest pause while it is not known to be this object's own fault: no other write works either, so a right may be
missing; or the API server, under load, was too slow for this one. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailures:
    """The writes of one job that failed since the last one that worked."""

    since_s: float
    last_s: float = 0.0
    points: int = 0
    answered: bool = False  # the last one was refused by an answer about this object

    def with_failure(self, now_s: float, *, answered: bool = False) -> WriteFailures:
        """The API server refused it, which is an answer, or did not answer."""
        return replace(self, points=self.points + _FAILED, last_s=now_s, answered=answered)

    def with_conflict(self, now_s: float) -> WriteFailures:
        """Somebody wrote first. That is ordinary now and then, and an attack all the time."""
        if not self.is_left_out and now_s > self.last_s + _NOW_AND_THEN_S:
            return WriteFailures(since_s=now_s, last_s=now_s, points=_OVERTAKEN, answered=True)
        return replace(self, points=self.points + _OVERTAKEN, last_s=now_s, answered=True)

    @property
    def is_left_out(self) -> bool:
        """True if nothing is decided about the job for a while: after two failures, or four conflicts."""
        return self.points >= _LEFT_OUT

    def pause_s(self, *, others_work: bool) -> float:
        """Return how long the job is left out after its last failure.

        It doubles up to `LONGEST_PAUSE_S` if this one was refused while writes of other jobs work. If it was only not
        answered in time, or all are refused, it doubles up to `UNPROVEN_PAUSE_S`: the API server may be overloaded,
        and nobody shall wait much longer than that lasts. If nothing works at all, it does not double."""
        if not self.is_left_out:
            return 0.0
        if not others_work and not self.answered:
            return FIRST_PAUSE_S
        doublings = min((self.points - _LEFT_OUT) / 2, 30.0)
        limit_s = LONGEST_PAUSE_S if others_work and self.answered else UNPROVEN_PAUSE_S
        return min(limit_s, FIRST_PAUSE_S * math.pow(2.0, doublings))


FIRST_BUDGET_PAUSE_S: Final = 10.0
"""A budget that refuses is asked again after this. Our choice: a new pod is seldom ready sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRefusals:
    """Evictions of one owner's pods that a disruption budget has refused since the last that worked."""

    until_s: float = -math.inf  # none of its pods is asked for until then
    times: int = 0

    def with_refusal(self, now_s: float) -> BudgetRefusals:
        """A budget refused an eviction. Whatever it refuses during a pause counts as one refusal with the first."""
        if now_s < self.until_s:
            return self
        pause_s = min(LONGEST_PAUSE_S, FIRST_BUDGET_PAUSE_S * math.pow(2.0, min(self.times, 30)))
        return BudgetRefusals(until_s=now_s + pause_s, times=self.times + 1)

    def with_eviction(self, now_s: float) -> BudgetRefusals:
        """A pod was evicted: the next pause is short again. One during a pause was of a job that got too little room,
        by a budget that allows some at a time, so it was in vain."""
        return self if now_s < self.until_s else replace(self, times=0)
