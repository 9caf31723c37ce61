"""What must be read from the API server before a step, because no cache can prove it.

A watch may be late, so a pod that is missing from a cache may still exist. A needless read costs one request; a missing
read lets two attempts overlap.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from coda.lifecycle.failures import RANK_FAILED, attempt_failure
from coda.lifecycle.state import (
    LifecycleConfig,
    PodState,
    RankPod,
    Situation,
    deletable,
    is_alone,
    lacks_its_record,
    lost_ranks,
    missing_ranks,
    of_attempt,
    pods_left,
    released_placement,
)
from coda.lifecycle.stops import stop_order
from coda.model.job import FINISHED, Phase

OOM_KILLED: Final = "OOMKilled"
"""A kubelet's reason for a container that was killed for memory."""
_WITH_RANKS = frozenset({Phase.QUEUED, Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})


class Evidence(Enum):
    """A read whose answer is not older than the question."""

    PODS = auto()  # a consistent list of the job's pods
    EPOCH = auto()  # of the planner's Lease: a placement with an older epoch must not be launched


def evidence_needed(now: Situation, now_s: float, config: LifecycleConfig) -> Evidence | None:
    """Return what the next step must read besides the caches; None while every pod that it needs is there.

    PODS if their absence ends an attempt, begins the next or ends the job. Also before the pods of a deleted job are
    deleted: without an owner they are to stay. A job that waits for its record reads after it. EPOCH if pods are
    created. O(pods)."""
    phase = now.progress.phase
    if not now.deleting and (phase is None or phase in FINISHED or now.terms.suspend):
        return None
    if now.deleting:
        return _evidence_to_delete(now, now_s, config)
    if phase in (Phase.RESTARTING, Phase.SUSPENDED):
        return None if pods_left(now, now_s, config) else Evidence.PODS
    if phase is Phase.QUEUED and (released_placement(now) is None or now.progress.generation != now.generation):
        return None
    if lost_ranks(now) - now.seen_succeeded:
        return Evidence.PODS
    if not missing_ranks(now):
        return None
    if phase is not Phase.QUEUED:
        return Evidence.PODS
    return Evidence.EPOCH if now.room and is_alone(now, now_s, config) else None


def logs_needed(now: Situation, now_s: float, config: LifecycleConfig) -> bool:
    """True if the next step decides on a rank that failed by the job's own fault, and nobody has read why. O(pods)."""
    if now.diagnosis is not None or now.deleting or now.terms.suspend or now.progress.phase not in _WITH_RANKS:
        return False
    if stop_order(now) is not None:  # how it ends does not matter any more
        return False
    failure = attempt_failure(now, now_s, config)
    return failure is not None and failure.own and failure.reason == RANK_FAILED


def killed_for_memory(now: Situation) -> RankPod | None:
    """Return the rank that its kubelet killed for memory, the first by its end; None if there is none, or no use.

    The kubelet's reason alone counts: an exit code of 137 has many causes. O(pods)."""
    if not now.terms.grow_memory_to_bytes or now.progress.failures >= now.terms.retries:
        return None
    killed = [pod for pod in of_attempt(now) if pod.state is PodState.FAILED and pod.reason == OOM_KILLED]
    return min(killed, key=lambda pod: (pod.ended_s or 0.0, pod.rank), default=None)


def _evidence_to_delete(now: Situation, now_s: float, config: LifecycleConfig) -> Evidence | None:
    left = [pod for pod in pods_left(now, now_s, config) if pod.owned]
    waits = any(pod.terminating for pod in left) and not deletable(tuple(left))
    waits_for_record = not left and lacks_its_record(now)
    return None if waits or waits_for_record or now.orphaning or not now.held else Evidence.PODS
