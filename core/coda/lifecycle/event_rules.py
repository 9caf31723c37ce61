"""Which changes of progress deserve an event, and which events may wait because better news may follow soon."""

from __future__ import annotations

from typing import Final

from coda.lifecycle.state import TEMPLATE_REFUSED, Progress
from coda.lifecycle.transitions import LAUNCHED, STARTING
from coda.model.job import Phase

EVENT_DELAY_S: Final = 2.0
"""Seconds that an event waits while its gang is starting. Our choice: with its images present, it runs by then."""

_ON_ITS_WAY: Final = frozenset({LAUNCHED, STARTING})  # reasons


def is_passing(before: Progress, after: Progress) -> bool:
    """True for a change that is soon out of date: all pods are bound, and nothing keeps them from starting."""
    return before.phase is Phase.LAUNCHED and after.phase is Phase.STARTING and after.reason == STARTING


def is_news(before: Progress, after: Progress) -> bool:
    """True if a change deserves an event: another phase, reason or attempt, or an edit that was accepted or refused.

    Not for a new job that waits, nor for launched pods that are bound: every job does this, and its status says so."""
    if (before.phase is None and after.phase is Phase.QUEUED) or is_passing(before, after):
        return False
    judged = after.phase is Phase.QUEUED or after.reason == TEMPLATE_REFUSED
    edited = judged and before.generation != after.generation
    return edited or (before.phase, before.reason, before.attempt) != (after.phase, after.reason, after.attempt)


def may_wait(after: Progress) -> bool:
    """True if the event for `after` need be posted only if the gang does not run within `EVENT_DELAY_S`."""
    return after.reason in _ON_ITS_WAY


def makes_waiting_old(after: Progress) -> bool:
    """True if a waiting event need not be posted any more: the gang runs."""
    return after.phase is Phase.RUNNING
