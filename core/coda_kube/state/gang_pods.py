"""The pods of every job, by the job that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from coda.model import Job, JobId, Phase
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID
from coda_kube.objects.read import Owner, Pod

_NONE: Final[Mapping[str, Pod]] = MappingProxyType({})


class GangPods:
    """Every pod that belongs to a job, ended ones too until they are forgotten."""

    def __init__(self) -> None:
        self._pods_by_owner: dict[Owner, dict[str, Pod]] = {}  # by id of the pod
        self._uids_by_job: dict[JobId, frozenset[str]] = {}

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._pods_by_owner

    def set(self, pod: Pod | None, entry: Pod | None) -> None:
        """Set a pod among those of its job, or remove it if there is no `entry`."""
        if pod is None or pod.member is None:
            return
        job, uid = owner = pod.member.owner
        pods = self._pods_by_owner.setdefault(owner, {})
        if entry is not None:
            pods[pod.id] = entry
        else:
            pods.pop(pod.id, None)
        if not pods:
            del self._pods_by_owner[owner]
        uids = self.uids(job)
        if bool(pods) != (uid in uids):
            self._uids_by_job[job] = uids ^ {uid}
        if not self._uids_by_job.get(job):
            self._uids_by_job.pop(job, None)

    def uids(self, job: JobId) -> frozenset[str]:
        """The uids of the jobs that had this name, and of which there are pods."""
        return self._uids_by_job.get(job, frozenset())

    def of(self, owner: Owner) -> Mapping[str, Pod]:
        """The pods of a job by id."""
        return self._pods_by_owner.get(owner, _NONE)

    def ended(self, owner: Owner) -> list[str]:
        """The ids of a job's pods that have ended. O(pods of the job)."""
        return [pod.id for pod in self.of(owner).values() if pod.ended]

    def live(self, owner: Owner, attempt: int) -> Iterator[str]:
        """The ids of an attempt's pods that have not ended. O(pods of the job)."""
        for pod in self.of(owner).values():
            if pod.member is not None and pod.member.attempt == attempt and not pod.ended:
                yield pod.id


class LeftRanks:
    """Pods of TrainingJobs that are gone, forgotten or cannot be read: each counts as a job of its own that is ending.

    Somebody deletes a job whose pods take their time to end, or deletes it with `--cascade=orphan`; or a new leader
    finds a finished job whose pods still run. Their tenant holds these GPUs until the pods have ended. Else whoever
    deletes and submits again would get more than the quota. Whoever forges labels only charges its own tenant.
    """

    def __init__(self, pods: GangPods, keep: Callable[[JobId, Job | None], None]) -> None:
        """`keep`: takes such a job as it is now, or None where its pod has ended."""
        self._pods = pods
        self._keep = keep
        self._left_by_job: dict[JobId, dict[JobId, Job]] = {}
        self._orphan_by_pod: dict[str, Job] = {}

    def note_pod(self, key: str, after: Pod | None, item: Json | None) -> None:
        """A pod came, changed or went. One with a rank's label that no job owns is an orphan, of whatever job."""
        orphan = None
        if item is not None and after is not None and after.member is None and after.cpu_job is None:
            is_labelled = bool((item["metadata"].get("labels") or {}).get(LABEL_JOB_UID))
            orphan = _left(after, "orphan") if is_labelled and after.node and not after.ended else None
        before = self._orphan_by_pod.pop(key, None)
        if orphan is not None:
            self._orphan_by_pod[key] = orphan
        if orphan != before and (known := orphan or before) is not None:
            self._keep(known.id, orphan)

    def read(self, job: JobId, uid: str | None) -> bool:
        """Look which pods of jobs of that name are left. True if they are others than before. O(pods of other uids).

        `uid`: of the job that is known by that name, and that accounts for its own pods; empty without one. None: there
        is one that cannot be read, so its pods may still be bound."""
        before = self._left_by_job.pop(job, {})
        pods = [pod for one in self._pods.uids(job) if one != uid for pod in self._pods.of((job, one)).values()]
        after = {left.id: left for left in (_left(pod, "rank") for pod in pods if _holds(pod, may_bind=uid is None))}
        if after:
            self._left_by_job[job] = after
        for one in before.keys() | after.keys():
            if before.get(one) != after.get(one):
                self._keep(one, after.get(one))
        return before != after


def _holds(pod: Pod, *, may_bind: bool) -> bool:
    """True for a pod that has a node, or that may yet be bound to the one that it is pinned to."""
    return not pod.ended and bool(pod.node or (may_bind and pod.pinned_to and not pod.terminating))


def _left(pod: Pod, kind: str) -> Job:
    """A job that has ended but for this pod. No other job has an id of three parts with that kind in the middle."""
    namespace, _, name = pod.id.partition("/")
    return Job(
        id=JobId(f"{namespace}/{kind}/{name}"),
        uid=pod.uid,
        phase=Phase.FAILED,
        attempt=1,
        generation=1,
        replicas=1,
        request=pod.request,
        user=pod.user,
        unbound={0: pod.pinned_to} if not pod.node and pod.pinned_to else {},
        ending=(pod.node,) if pod.node else (),
    )
