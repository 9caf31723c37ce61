"""One user's jobs that fail the same way: what is said of them, and when the next one is not tried again.

The rule ends by itself. Only jobs that were tried as their class allows count as stops, and only for a day. A job that
fails so, is tried again and succeeds shows that trying again helps: stops before that no longer count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from coda.diagnosis import Diagnosis, Reason, Retry

WINDOW_S: Final = 86_400.0
"""How long a failure is remembered. Source: the issue's day."""
STOPS: Final = 3
"""Jobs that stopped with one signature, before others stop at their first failure. Source: the issue."""
ONE_ACCIDENT_S: Final = 600.0
"""Failures of the infrastructure, or that may pass, are one accident within this time. Our choice."""
_INFRASTRUCTURE: Final = "IF"


class Outcome(Enum):
    """What became of a job after the failure that is compared."""

    TRIED = auto()  # it goes on, or ended for another reason
    STOPPED = auto()  # it failed with this, after all the attempts that its class allows
    CUT_SHORT = auto()  # it failed with this, because others had: that proves nothing new
    RECOVERED = auto()  # another attempt succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob:
    """A job that failed. `time_s`: of its failure, or of its success if it recovered."""

    uid: str
    name: str  # namespace/name
    signature: str
    time_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """The user's other jobs with one signature within a day, newest first. `stops_s`: when those stopped that count."""

    names: tuple[str, ...] = ()
    stops_s: tuple[float, ...] = ()


def alike_among(jobs: Iterable[FailedJob], signature: str, own_uid: str, now_s: float) -> Alike:
    """Return the other jobs with this signature. Ties go by name. O(jobs log jobs)."""
    if not signature:
        return Alike()
    alike = [
        job
        for job in jobs
        if job.signature == signature and job.uid != own_uid and abs(now_s - job.time_s) < WINDOW_S  # clocks may be off
    ]
    alike.sort(key=lambda job: (-job.time_s, job.name))
    helped_s = max((job.time_s for job in alike if job.outcome is Outcome.RECOVERED), default=float("-inf"))
    stops_s = [job.time_s for job in alike if job.outcome is Outcome.STOPPED and job.time_s > helped_s]
    return Alike(names=tuple(job.name for job in alike), stops_s=tuple(stops_s))


def is_stopped_by(alike: Alike, found: Diagnosis) -> bool:
    """True if enough of the user's other jobs stopped so that one more attempt is a waste.

    Never for what is the node's fault, nor for a preempted job. What may be an accident of the infrastructure, or may
    pass, counts once in ten minutes: an outage stops many jobs of one user together."""
    if found.retry is Retry.OTHER_NODE or found.reason is Reason.PREEMPTED:
        return False
    if found.category != _INFRASTRUCTURE and found.retry is not Retry.YES:
        return len(alike.stops_s) >= STOPS
    accidents, last_s = 0, 0.0
    for stop_s in sorted(alike.stops_s):
        if not accidents or stop_s - last_s >= ONE_ACCIDENT_S:
            accidents, last_s = accidents + 1, stop_s
    return accidents >= STOPS
