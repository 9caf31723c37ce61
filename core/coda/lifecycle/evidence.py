"""What must be read from the API server before a step, because no cache can prove it.

A watch may be late, so a pod that is missing from a cache may still exist. A needless read costs one request; a missing
read lets two attempts overlap.
"""

from __future__ import annotations

from enum import Enum, auto

from coda.lifecycle.state import LifecycleConfig, Situation, is_alone, missing_ranks, pods_left, released_placement
from coda.model.job import FINISHED, Phase


class Evidence(Enum):
    """A read whose answer is not older than the question."""

    PODS = auto()  # a consistent list of the job's pods
    EPOCH = auto()  # of the planner's Lease: a placement with an older epoch must not be launched


def evidence_needed(now: Situation, now_s: float, config: LifecycleConfig) -> Evidence | None:
    """Return what the next step must read besides the caches; None while every pod that it needs is there.

    PODS if their absence ends an attempt, begins the next or ends the job; EPOCH if pods are created. O(pods)."""
    phase = now.progress.phase
    if not now.deleting and (phase is None or phase in FINISHED or now.terms.suspend):
        return None
    if now.deleting or phase in (Phase.RESTARTING, Phase.SUSPENDED):
        return None if pods_left(now, now_s, config) else Evidence.PODS
    if phase is Phase.QUEUED and (released_placement(now) is None or now.progress.generation != now.generation):
        return None
    if now.vanished:
        return Evidence.PODS
    if not missing_ranks(now):
        return None
    if phase is not Phase.QUEUED:
        return Evidence.PODS
    return Evidence.EPOCH if is_alone(now, now_s, config) else None
