"""Pods of gangs that wait for kube-scheduler, and how fast it binds them."""

from __future__ import annotations

from collections.abc import Callable

from coda.lifecycle import RankPod
from coda.lifecycle.pacing import FIRST_RATE_PER_S, next_rate, room_for


class UnboundPods:
    """Counts them by job, as the watch tells of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[str, dict[str, tuple[float, int]]] = {}  # job -> pod uid -> since when, pods before it
        self._count = 0
        self._rate_per_s = FIRST_RATE_PER_S

    def see(self, job_uid: str, pod: RankPod | None, before: RankPod | None) -> None:
        """A pod changed; None: it was not there, or is gone."""
        if before is not None and (pod is None or pod.uid != before.uid or not _waits(pod)):
            is_bound = pod is not None and pod.uid == before.uid and bool(pod.node)
            self._remove(job_uid, before.uid, tells=is_bound and not before.has_claims)
        waiting = self._waiting.get(job_uid, {})
        if pod is not None and _waits(pod) and pod.uid not in waiting:
            self._waiting.setdefault(job_uid, {})[pod.uid] = self._clock(), self._count
            self._count += 1

    def room(self, job_uid: str) -> int:
        """Return how many more pods of the job may be created now."""
        return room_for(len(self._waiting.get(job_uid, ())), self._count, self._rate_per_s)

    def _remove(self, job_uid: str, pod_uid: str, *, tells: bool) -> None:
        """`tells`: it was bound, and its wait was for kube-scheduler alone. Others may have waited for a disk."""
        found = self._waiting.get(job_uid, {}).pop(pod_uid, None)
        if found is None:
            return
        self._count -= 1
        if not self._waiting[job_uid]:
            del self._waiting[job_uid]
        if tells:
            since_s, queued_before = found
            self._rate_per_s = next_rate(self._rate_per_s, queued_before, self._clock() - since_s)


def _waits(pod: RankPod) -> bool:
    """A pod that kube-scheduler gave up for now, or whose volumes it binds, is in nobody's way."""
    is_seen = pod.awaits_volume or pod.unschedulable_since_s is not None
    return not (pod.node or pod.ended or pod.terminating or is_seen)
