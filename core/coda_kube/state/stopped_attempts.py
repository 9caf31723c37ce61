"""Attempts that were ordered to stop or to give cores back, and what their pods will free."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from coda.model import NOTHING, Job, JobId, Placement, Resources
from coda.model.live_placement import is_giving_back, returning_by_node
from coda.placements.lingering_use import is_leaving
from coda_kube.objects.read import Owner, Pod, is_rank_of
from coda_kube.state.gang_pods import GangPods


class _Stopped(NamedTuple):
    placement: Placement
    ordered_s: float  # when the order was seen


class StoppedAttempts:
    """The last attempt of each job that was ordered to stop, while pods of it are seen."""

    def __init__(self, pods: GangPods, clock: Callable[[], float], now_s: Callable[[], float]) -> None:
        """`pods`: those of every job, which know of a change before it is noted here."""
        self._pods = pods
        self._clock = clock
        self._now_s = now_s
        self._giving_by_id: dict[JobId, Job] = {}  # jobs that are giving cores back
        self._stopped_by_owner: dict[Owner, _Stopped] = {}
        self._deleted_s: dict[str, float] = {}  # since when pods are seen being deleted, by uid

    def note_placement(self, owner: Owner, placement: Placement) -> None:
        """Note an order to stop, or that there is none any more: its write was overtaken, or a backup was restored."""
        known = self._stopped_by_owner.get(owner)
        is_known = known is not None and known.placement.plan_id == placement.plan_id
        if placement.stop is not None:
            ordered_s = known.ordered_s if known is not None and is_known else self._clock()
            self._stopped_by_owner[owner] = _Stopped(placement, ordered_s)
        elif is_known:
            del self._stopped_by_owner[owner]

    def note_job(self, job: JobId, after: Job | None) -> None:
        """A job came, changed or went."""
        self._giving_by_id.pop(job, None)
        if after is not None and after.placement is not None:
            self.note_placement((job, after.uid), after.placement)
        if after is not None and is_giving_back(after):
            self._giving_by_id[job] = after

    def note_pod(self, before: Pod | None, after: Pod | None) -> None:
        """A pod came, changed, went, or is kept no more since it has ended."""
        if after is not None and after.terminating:
            self._deleted_s.setdefault(after.uid, self._clock())
        elif after is not None:
            self._deleted_s.pop(after.uid, None)  # a restored backup took the deletion back
        if before is not None and (after is None or after.uid != before.uid):
            self._deleted_s.pop(before.uid, None)
        if before is not None and before.member is not None:
            self.forget_if_gone(before.member.owner)

    def forget_if_gone(self, owner: Owner) -> None:
        """Forget an attempt of which no pod is left."""
        if owner not in self._pods:
            self.forget(owner)

    def forget(self, owner: Owner) -> None:
        """Nothing of it is left, or the order was not stored."""
        self._stopped_by_owner.pop(owner, None)

    def is_stopped(self, owner: Owner, attempt: int) -> bool:
        """True for an attempt that was ordered to stop."""
        stopped = self._stopped_by_owner.get(owner)
        return stopped is not None and attempt <= stopped.placement.attempt

    def leaving(self) -> dict[str, Resources]:
        """Per node, the part of its use that ordered stops and returns of cores will free. O(pods of these jobs).

        Only the pods are asked: the job may end, be deleted or start its next attempt before they are seen to go. And
        only ranks of the placement that was stopped: whoever forges labels frees nothing."""
        leaving: dict[str, Resources] = {}
        now_s = self._clock()
        for owner, (placement, ordered_s) in [*self._stopped_by_owner.items()]:
            left = [pod for pod in self._pods.of(owner).values() if not pod.ended and is_rank_of(pod, placement)]
            notice_s = placement.stop.notice_s if placement.stop is not None else 0.0
            for pod in left:
                if pod.node and is_leaving(
                    now_s,
                    ordered_s=ordered_s,
                    deleted_s=self._deleted_s.get(pod.uid),
                    grace_s=pod.grace_s,
                    notice_s=notice_s,
                ):
                    leaving[pod.node] = leaving.get(pod.node, NOTHING) + pod.request
            if not left:
                del self._stopped_by_owner[owner]
        now_s = self._now_s()
        for job in self._giving_by_id.values():
            for node, cpu_m in returning_by_node(job, now_s).items():
                leaving[node] = leaving.get(node, NOTHING) + Resources(cpu_m=cpu_m)
        return leaving
