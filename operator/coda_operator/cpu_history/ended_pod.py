"""A pod that is a CPU job -> what is kept of it while it lives, and its record once it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any, Final, NamedTuple

from coda.history.cpu_jobs import CpuEnding, FinishedCpuJob, explained_waits
from coda_kube.objects.names import LABEL_JOB_UID
from coda_kube.objects.pod_requests import pod_amounts, resources_from_amounts
from coda_kube.objects.pods.cpu_job import CpuJob, cpu_job_from_json, waits_from_json
from coda_kube.objects.quantities import seconds_from_time

Item = Mapping[str, Any]

MOST: Final = 2**62
"""A pod may ask for any amount; a database takes 2**63 - 1."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class SeenPod(NamedTuple):
    """A CPU job as it was last seen. Times of nodes are only compared with each other."""

    uid: str
    namespace: str
    owner: str
    kind: str
    name: str
    controller: str
    category: str
    cpu_m: int
    memory_bytes: int
    created_s: float
    released_s: float
    waits: Mapping[str, float]
    borrows: bool
    reclaimed: int
    has_node: bool
    phase: str
    disruption: str  # the reason of its condition DisruptionTarget
    started_s: float  # by its node's clock
    finished_s: float  # by its node's clock; 0: not all containers have
    running_s: float  # when it was first seen with a container started, by our clock; 0: never
    has_restarted: bool  # a container started again in place: the node tells of its last start only

    @property
    def has_ended(self) -> bool:
        """True if it uses no cores any more."""
        return self.phase in _ENDED


def seen_pod(item: Item, now_s: float, before: SeenPod | None) -> SeenPod | None:
    """Return what counts of a pod; None if it is no CPU job. `before`: the same pod as it was last seen."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    if LABEL_JOB_UID in (metadata.get("labels") or {}):
        return None
    job = cpu_job_from_json(metadata, spec)
    if job is None:
        return None
    request = resources_from_amounts(pod_amounts(item), pods=1)
    kind, name, controller = _controller(metadata)
    started_s, finished_s = _times(status)
    is_same = before is not None and before.uid == metadata["uid"]
    running_s = before.running_s if is_same and before is not None and before.running_s else now_s if started_s else 0.0
    return SeenPod(
        uid=metadata["uid"],
        namespace=intern(metadata["namespace"]),
        owner=intern(_text(job.user, 256)),
        kind=intern(kind),
        name=intern(name),
        controller=intern(controller),
        category="Service" if job.is_service else "Batch",
        cpu_m=min(request.cpu_m, MOST),
        memory_bytes=min(request.memory_bytes, MOST),
        created_s=job.created_s,
        released_s=job.planned_s,
        waits=_waits(metadata, job),
        borrows=job.borrows,
        reclaimed=job.reclaimed,
        has_node=bool(spec.get("nodeName")),
        phase=intern(status.get("phase") or ""),
        disruption=_disruption(status),
        started_s=started_s,
        finished_s=finished_s,
        running_s=running_s,
        has_restarted=any(container.get("restartCount") for container in status.get("containerStatuses") or ()),
    )


def finished_cpu_job(pod: SeenPod, ended_s: float) -> FinishedCpuJob:
    """Return the record of a pod that has ended, or is gone.

    `ended_s`: by the API server's clock. A pod queues from its creation, also one that took another one's place."""
    ended_s = max(ended_s, pod.created_s, pod.released_s)
    wait_s = (pod.released_s or ended_s) - pod.created_s
    held_s = ended_s - pod.released_s if pod.released_s else 0.0
    run_s = pod.finished_s - pod.started_s if pod.finished_s and pod.started_s else 0.0
    if pod.running_s and (not pod.finished_s or pod.has_restarted):
        run_s = max(run_s, ended_s - pod.running_s)
    return FinishedCpuJob(
        uid=pod.uid,
        namespace=pod.namespace,
        owner=pod.owner,
        kind=pod.kind,
        name=pod.name,
        controller=pod.controller,
        category=pod.category,
        cpu_m=pod.cpu_m,
        memory_bytes=pod.memory_bytes,
        ending=_ending(pod),
        queued_s=min(pod.created_s, pod.released_s or ended_s),
        released_s=pod.released_s,
        ended_s=ended_s,
        waits=explained_waits(max(0.0, wait_s), pod.waits),
        run_s=min(max(0.0, run_s), held_s),
        borrows=pod.borrows,
        reclaimed=pod.reclaimed,
    )


def _ending(pod: SeenPod) -> CpuEnding:
    """A pod that ended by itself while it was to go has ended as it says."""
    if pod.phase == "Succeeded":
        return CpuEnding.SUCCEEDED
    if pod.disruption:
        is_reclaimed = pod.disruption == "EvictionByEvictionAPI" and pod.borrows and pod.has_node
        return CpuEnding.RECLAIMED if is_reclaimed else CpuEnding.EVICTED
    return CpuEnding.FAILED if pod.phase == "Failed" else CpuEnding.DELETED


def _disruption(status: Item) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return intern(str(condition.get("reason") or "Unknown"))
    return ""


def _times(status: Item) -> tuple[float, float]:
    """When its first container started, and when its last one ended if all have; 0 for not yet."""
    starts: list[float] = []
    ends: list[float] = []
    statuses = status.get("containerStatuses") or ()
    for container in statuses:
        state = container.get("state") or {}
        running, ended = state.get("running") or {}, state.get("terminated") or {}
        if started := (running or ended).get("startedAt"):
            starts.append(seconds_from_time(started))
        if finished := ended.get("finishedAt"):
            ends.append(seconds_from_time(finished))
    return min(starts, default=0.0), max(ends) if ends and len(ends) == len(statuses) else 0.0


def _waits(metadata: Item, job: CpuJob) -> Mapping[str, float]:
    return waits_from_json(metadata) if job.plan_id else {}


def _controller(metadata: Item) -> tuple[str, str, str]:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            group = str(owner.get("apiVersion")).partition("/")[0]
            kind = _text(f"{group}/{owner.get('kind')}", 128)
            return kind, _text(str(owner.get("name")), 253), _text(str(owner.get("uid")), 64)
    return "v1/Pod", "", ""


def _text(words: str, most: int) -> str:
    """PostgreSQL stores no NUL, and the columns have a limit."""
    return words.replace("\0", "")[:most]
