"""What must be read from the API server before a step is decided, because no cache can prove it.

A watch may be late, so the absence of a pod in a cache proves nothing. Asked for too often, a read costs one request;
left out, it lets two attempts overlap.
"""

from __future__ import annotations

from enum import Enum, auto

from coda.lifecycle.state import LifecycleConfig, Situation, is_alone, missing_ranks, pods_left, released_placement
from coda.model.job import FINISHED, Phase


class Evidence(Enum):
    """A read whose answer is as new as the question."""

    PODS = auto()  # a consistent list of the job's pods
    EPOCH = auto()  # the planner Lease's: a placement of an older one must not be launched


def evidence_needed(now: Situation, now_s: float, config: LifecycleConfig) -> Evidence | None:
    """Return what the next step rests on beside the caches: nothing while all pods that it looks for are there.

    The pods, where their absence ends an attempt, begins the next or lets the job go; the epoch, where pods are
    created. Cost: O(pods)."""
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
