"""CPU jobs as their pods say: a pod of a namespace that opted in is a job of one rank, and its own object.

At its creation it gets a gate. The planner takes the gate away and pins the pod in one patch, which also says how it
was released. So a CPU job needs no status, and the pod alone says everything after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from coda.model import Job, JobId, Placement
from coda.model.constraints import NodeConstraints
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import (
    ANNOTATION_BORROWS,
    ANNOTATION_PLAN,
    ANNOTATION_PLANNED,
    ANNOTATION_QUEUED,
    ANNOTATION_RECLAIMED,
    ANNOTATION_WAITS,
    GATE,
    SERVICE,
)
from coda_kube.objects.pods.node_terms import constraints_from_json, pinned, required_terms
from coda_kube.objects.pods.users import user_from_json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds

Item = Mapping[str, Any]

_KIND: Final = "/pod/"
_RECREATING: Final = frozenset({"apps/ReplicaSet", "v1/ReplicationController", "apps/StatefulSet"})
_BATCH_JOB: Final = "batch/Job"

LONGEST_GRACE_S: Final = 120.0
"""A pod that may take longer to end has no cores that a training job would have to wait for. Our choice: most pods say
nothing, which is 30 s."""


MOST_RECLAIMED: Final = 1000
"""More are not counted: long before that, one more makes no difference."""


MOST_WAITS: Final = 8
"""Codes of waits that a released pod says. Our choice: hardly one has waited for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuJob:
    """What a pod says of itself as a CPU job, beside what every pod says.

    `version`: of the object that was read. Of a released pod nothing is left to be chosen, so it has no constraints."""

    is_waiting: bool = False  # Coda's gate is the only one that it still has
    constraints: NodeConstraints = field(default_factory=NodeConstraints)
    priority: int = 0
    user: str = ""
    created_s: float = 0.0  # by the API server's clock
    queued_s: float = 0.0  # as `created_s`, or earlier: since when a pod that it replaces was queued
    controller: tuple[str, str] = ("", "")  # its group and kind, as `apps/ReplicaSet`, and its uid
    grace_s: float = 30.0  # how long it may take to end
    is_service: bool = False
    plan_id: str = ""  # empty while it is gated
    planned_s: float = 0.0
    borrows: bool = False
    reclaimed: int = 0  # how often in a row whoever it replaces gave borrowed cores back
    version: int = field(default=0, compare=False)


def cpu_job_id(namespace: str, pod: str) -> JobId:
    """`namespace/pod/name`. No TrainingJob has such an id."""
    return JobId(f"{namespace}{_KIND}{pod}")


def pod_id_of(job: JobId) -> str | None:
    """`namespace/name` of the pod that is this CPU job; None for a TrainingJob."""
    namespace, kind, name = job.partition(_KIND)
    return f"{namespace}/{name}" if kind else None


def cpu_job_from_json(metadata: Item, spec: Item) -> CpuJob | None:
    """Return what the pod says of itself as a CPU job; None if it is none.

    Nobody but the planner may write these annotations, or take the gate away."""
    gates = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    notes = metadata.get("annotations") or {}
    is_gated = GATE in gates
    if not is_gated and not (ANNOTATION_PLAN in notes and ANNOTATION_PLANNED in notes):
        return None
    created_s = seconds_from_time(metadata.get("creationTimestamp"))
    return CpuJob(
        is_waiting=gates == [GATE],
        constraints=constraints_from_json(spec, required_terms(spec)) if is_gated else NodeConstraints(),
        priority=int(spec.get("priority") or 0),
        user=user_from_json(metadata),
        created_s=created_s,
        queued_s=created_s if is_gated else seconds_from_time(notes.get(ANNOTATION_QUEUED)) or created_s,
        controller=_controller(metadata),
        grace_s=float(spec.get("terminationGracePeriodSeconds") or 0),
        is_service=(metadata.get("labels") or {}).get(SERVICE) == "true",
        plan_id="" if is_gated else str(notes[ANNOTATION_PLAN]),
        planned_s=0.0 if is_gated else seconds_from_time(notes[ANNOTATION_PLANNED]),
        borrows=not is_gated and notes.get(ANNOTATION_BORROWS) == "true",
        reclaimed=0 if is_gated else _count(notes.get(ANNOTATION_RECLAIMED)),
        version=int(metadata.get("resourceVersion") or 0),
    )


def is_recreated(job: CpuJob, *, ignored_disruptions: Collection[str]) -> bool:
    """True if whoever made the pod makes another one when it is evicted, and counts that as no failure.

    `ignored_disruptions`: uids of the Jobs whose podFailurePolicy ignores evictions."""
    kind, uid = job.controller
    return kind in _RECREATING or (kind == _BATCH_JOB and uid in ignored_disruptions)


def ends_in_time(job: CpuJob) -> bool:
    """True if an eviction frees what the pod has within `LONGEST_GRACE_S`."""
    return job.grace_s <= LONGEST_GRACE_S


def heir_of(job: CpuJob) -> str:
    """The uid of the owner whose evicted pods leave their places to this one; empty for none.

    The API server lets only the controllers of these kinds make pods that they own."""
    kind, uid = job.controller
    return uid if kind in _RECREATING or kind == _BATCH_JOB else ""


def ignores_disruptions(job: Item) -> bool:
    """True for a Job whose evicted pods count as no failure of its, and are made again.

    The first rule that matches a failed pod decides. Source: podFailurePolicy, KEP-3329."""
    spec = job.get("spec") or {}
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            if pattern.get("type") == "DisruptionTarget" and (pattern.get("status") or "True") == "True":
                return bool(rule.get("action") == "Ignore")
        if rule.get("onExitCodes") and rule.get("action") in ("FailJob", "Count", "FailIndex"):
            return False  # an evicted pod's exit code may match first
    return False


def release_patch(
    affinity: Item, job: Job, placement: Placement, *, version: int, waits: Mapping[str, float] | None = None
) -> Json:
    """Return the merge patch that takes the gate away and pins the pod. Another version of the pod refuses it.

    `waits`: seconds that it waited, by the code of the reason, as far as this leader saw it."""
    notes = {
        ANNOTATION_PLAN: placement.plan_id,
        ANNOTATION_PLANNED: time_from_seconds(placement.committed_s),
        ANNOTATION_QUEUED: time_from_seconds(job.queued_s),
    }
    if placement.borrows:
        notes[ANNOTATION_BORROWS] = "true"
    if job.reclaimed:
        notes[ANNOTATION_RECLAIMED] = str(job.reclaimed)
    if said := _waits_text(waits or {}):
        notes[ANNOTATION_WAITS] = said
    (node,) = placement.nodes
    return {
        "metadata": {"uid": job.uid, "resourceVersion": str(version), "annotations": notes},
        "spec": {"schedulingGates": [], "affinity": pinned(affinity, node)},
    }


def waits_from_json(metadata: Item) -> dict[str, float]:
    """Return the seconds that a released pod waited, by code. What is no such entry is left out."""
    found: dict[str, float] = {}
    for entry in str((metadata.get("annotations") or {}).get(ANNOTATION_WAITS) or "").split(",")[:MOST_WAITS]:
        code, _, seconds = entry.partition("=")
        if code.isalnum() and len(code) <= 64 and seconds.isascii() and seconds.isdigit() and len(seconds) <= 9:
            found[code] = float(seconds)
    return found


def _waits_text(waits: Mapping[str, float]) -> str:
    """The longest waits first, in whole seconds."""
    longest = sorted(waits.items(), key=lambda item: (-item[1], item[0]))[:MOST_WAITS]
    return ",".join([f"{code}={round(seconds)}" for code, seconds in longest if round(seconds) >= 1])


def _count(note: Any) -> int:
    """A restored or older object may say anything."""
    return min(int(note), MOST_RECLAIMED) if isinstance(note, str) and note.isascii() and note.isdigit() else 0


def _controller(metadata: Item) -> tuple[str, str]:
    """Other groups have kinds of the same names (Volcano a Job): nobody keeps users from making pods that they own."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            group = str(owner.get("apiVersion")).partition("/")[0]  # the core group has none: its version, v1
            return f"{group}/{owner.get('kind')}", str(owner.get("uid"))
    return "", ""
