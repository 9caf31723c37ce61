"""Kubernetes objects -> model: the only place that knows the JSON of the objects that the planner reads.

An object that cannot be read raises an error; the caches log it with the object's name and go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from coda.model import FINISHED, Job, JobId, Node, Phase, Placement, PlacementState, Resources
from coda.model.constraints import Taint
from coda.model.job import LocalityStep, SharingWish, StopCause, StopOrder
from coda_kube.objects.names import (
    ANNOTATION_PLAN,
    GROUP,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    pod_name,
)
from coda_kube.objects.pod_requests import (
    pod_amounts,
    resources_from_amounts,
    resources_from_quantities,
    resources_reported,
)
from coda_kube.objects.pods.cpu_job import (
    LONGEST_GRACE_S,
    CpuJob,
    cpu_job_from_json,
    cpu_job_id,
    ends_in_time,
    is_recreated,
)
from coda_kube.objects.pods.main_container import keeps_to_itself
from coda_kube.objects.pods.node_terms import constraints_from_request, has_preferences, pin_of
from coda_kube.objects.pods.stops import lost_s_from_json, saved_s_from_json, stop_from_json
from coda_kube.objects.pods.trial_spec import brings_volumes, runs_trial, spec_of_attempt
from coda_kube.objects.pods.users import user_from_json
from coda_kube.objects.quantities import milli_from_quantity, seconds_from_time, whole_from_quantity
from coda_kube.objects.quota_scopes import scopes_from_request
from coda_kube.objects.resize_obstacles import asked_anyway_m
from coda_kube.objects.tuning_status import (
    answer_from_json,
    held_cores_from_json,
    is_searching_now,
    is_tuned_now,
    resize_from_json,
    wish_from_json,
)
from coda_kube.words import phase_from_word, word_or

Item = Mapping[str, Any]

AUTO: Final = "auto"
"""`spec.cpusPerReplica` of a job whose core count Coda finds."""

ENDED: Final = ("Succeeded", "Failed")
"""The phases of pods that use no capacity any more."""

_FINISHED: Final = frozenset(phase.value for phase in FINISHED)
_STARTED: Final = frozenset({Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING, Phase.SUSPENDED})

Owner = tuple[JobId, str]  # a TrainingJob and its uid: a later job of the same name has another one


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """The job, attempt, rank and placement of a pod of Coda's, from its labels and annotation.

    A CPU job is a gang of one rank; its pod is its only attempt."""

    job: JobId
    job_uid: str
    attempt: int
    rank: int
    plan_id: str

    @property
    def owner(self) -> Owner:
        """The job that the pod belongs to. Labels may claim any uid, but only of a job in the pod's namespace."""
        return self.job, self.job_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the planner and the guard see it."""

    id: str  # namespace/name
    uid: str
    node: str | None  # where it is bound
    pinned_to: str | None  # the only node that its required affinity allows
    request: Resources
    ended: bool  # Succeeded or Failed: uses no capacity any more
    terminating: bool
    gated: bool
    given_up: bool  # by kube-scheduler, for the time being: no node fits, or an error occurred
    scheduler: str
    member: GangMember | None
    nominated_to: str | None = None  # where kube-scheduler expects to bind it: it waits there, for a volume perhaps
    has_wishes: bool = False  # has affinity or spreading of its own
    has_preferences: bool = False  # some of it only says which nodes are better: kube-scheduler scores them by it
    grace_s: float = 0.0  # of a terminating pod: how long it may take to end
    cpu_job: CpuJob | None = None  # None: the pod is no CPU job
    user: str = ""  # who asked for it, or for the job that it is a rank of
    asked_anyway_m: int = 0  # of a job's rank: that it asks for however few millicores its main container has


def id_of(item: Item) -> JobId:
    """`namespace/name` of a namespaced object."""
    return JobId(f"{item['metadata']['namespace']}/{item['metadata']['name']}")


def node_from_json(item: Item) -> Node:
    """Read a Node object. It is schedulable if it is Ready, not cordoned, and not being deleted."""
    spec, status, metadata = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
    taints = [Taint(key=t["key"], value=t.get("value") or "", effect=t["effect"]) for t in spec.get("taints") or ()]
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    return Node(
        name=metadata["name"],
        allocatable=resources_reported(status.get("allocatable") or {}),
        labels=metadata.get("labels") or {},
        taints=tuple(taints),
        schedulable=ready and not spec.get("unschedulable") and not metadata.get("deletionTimestamp"),
    )


def pod_from_json(item: Item) -> Pod:
    """Read a Pod object."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    scheduled: Item = next((c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {})
    cpu_job = cpu_job_from_json(metadata, spec)
    return Pod(
        id=f"{metadata['namespace']}/{metadata['name']}",
        uid=metadata["uid"],
        node=spec.get("nodeName") or None,
        pinned_to=pin_of(spec),
        request=resources_from_amounts(pod_amounts(item), pods=1),
        ended=status.get("phase") in ENDED,
        terminating="deletionTimestamp" in metadata,
        gated=bool(spec.get("schedulingGates")),
        given_up=scheduled.get("status") == "False" and scheduled.get("reason") != "SchedulingGated",
        scheduler=spec.get("schedulerName") or "default-scheduler",
        member=_member(metadata) if cpu_job is None else _only_rank(metadata, cpu_job),
        nominated_to=status.get("nominatedNodeName") or None,
        has_wishes=bool(spec.get("affinity") or spec.get("topologySpreadConstraints")),
        has_preferences=has_preferences(spec),
        grace_s=float(metadata.get("deletionGracePeriodSeconds") or 0),
        cpu_job=cpu_job,
        user=user_from_json(metadata),
        asked_anyway_m=asked_anyway_m(item) if cpu_job is None and _member(metadata) is not None else 0,
    )


def _member(metadata: Item) -> GangMember | None:
    """The rank that the pod is; None unless labels, name and owner agree. Names are unique, so a rank has one pod.

    Anybody may write labels; the API server lets only the operator make pods that a TrainingJob controls."""
    labels = metadata.get("labels") or {}
    job, attempt, rank = labels.get(LABEL_JOB) or "", labels.get(LABEL_ATTEMPT) or "", labels.get(LABEL_RANK) or ""
    if not labels.get(LABEL_JOB_UID) or not (_is_number(attempt) and _is_number(rank)):
        return None
    if metadata["name"] != pod_name(job, int(attempt), int(rank)) or _owning_job(metadata) != labels[LABEL_JOB_UID]:
        return None
    return GangMember(
        job=JobId(f"{metadata['namespace']}/{job}"),
        job_uid=labels[LABEL_JOB_UID],
        attempt=int(attempt),
        rank=int(rank),
        plan_id=(metadata.get("annotations") or {}).get(ANNOTATION_PLAN) or "",
    )


def _only_rank(metadata: Item, job: CpuJob) -> GangMember | None:
    """A released CPU job as a rank of itself; None while it is gated, as no placement counts it."""
    if not job.plan_id:
        return None
    name = cpu_job_id(metadata["namespace"], metadata["name"])
    return GangMember(job=name, job_uid=metadata["uid"], attempt=1, rank=0, plan_id=job.plan_id)


def _owning_job(metadata: Item) -> str | None:
    """The uid of the TrainingJob that controls the pod."""
    owners = [one for one in metadata.get("ownerReferences") or () if one.get("controller") and one.get("kind") == KIND]
    return next((str(one.get("uid")) for one in owners if str(one.get("apiVersion")).startswith(f"{GROUP}/")), None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def placement_from_json(status: Item) -> Placement | None:
    """`status.placement` of a TrainingJob. In a state that is not known it only withholds its capacity."""
    if not (placement := status.get("placement")):
        return None
    return Placement(
        attempt=placement["attempt"],
        plan_id=placement["planId"],
        epoch=placement["epoch"],
        generation=placement["generation"],
        state=word_or(PlacementState.COMMITTED, placement["state"]),
        nodes=tuple(placement["nodes"]),
        cpus_per_replica=placement["cpusPerReplica"],
        committed_s=seconds_from_time(placement["committedTime"]),
        bind_deadline_s=seconds_from_time(placement["bindDeadline"]),
        borrows=bool(placement.get("borrows")),
        gpus=tuple(placement.get("gpus") or ()),
        joinable=(status.get("sharing") or {}).get("class") == SharingWish.GUARANTEED.value,
        answer=answer_from_json(placement),
        stop=stop_from_json(placement.get("stop")),
    )


def job_from_json(item: Item, pods: Mapping[str, Pod]) -> Job | None:
    """Read a TrainingJob as the planner sees it, with those of its `pods` that use capacity or wait for it.

    None until the operator has accepted it. A suspended or deleted job reads as SUSPENDED: only its live pods count. A
    job edited in the queue has its new generation, which voids its placement."""
    metadata, spec, status = item["metadata"], spec_of_attempt(item), item.get("status") or {}
    if not (request := status.get("request")) or not status.get("phase"):
        return None
    phase, attempt = _phase(metadata, spec, status), int(status.get("attempt") or 1)
    generation, edited = _generation(metadata, status, phase)
    (asked, cores, resized), is_auto = _sizes(status, request, attempt), spec.get("cpusPerReplica") == AUTO
    job = Job(
        id=id_of(item),
        uid=metadata["uid"],
        phase=phase,
        attempt=attempt,
        generation=generation,
        edited=edited,
        replicas=int(spec["replicas"]),
        request=asked,
        cpus_per_replica=cores,
        constraints=constraints_from_request(request),
        priority=int(request.get("priority") or 0),
        queued_s=seconds_from_time(status.get("queuedTime")),
        waiting_s=seconds_from_time(status.get("waitingSince")),
        not_before_s=seconds_from_time(status.get("notBefore")),
        avoid=frozenset(entry["name"] for entry in status.get("avoidNodes") or ()),
        within=(locality := spec.get("locality") or {}).get("required"),
        prefers=tuple([LocalityStep(one["level"], one["forSeconds"]) for one in locality.get("preferred") or ()]),
        quota={key: milli_from_quantity(text) for key, text in (request.get("quota") or {}).items()},
        scopes=scopes_from_request(request),
        placement=placement_from_json(status),
        wish=wish_from_json(status, attempt=attempt) if is_auto else None,
        tunable=is_auto and is_tuned_now(status, attempt=attempt),
        searching=is_auto and is_searching_now(status, attempt=attempt),
        held_cores=held_cores_from_json(status, attempt=attempt) if is_auto else 0,
        resized=resized,
        user=user_from_json(metadata),
        returned=bool(status.get("returned")),
        served_s=float(status.get("servedSeconds") or 0),
        category=str(spec.get("category") or ""),
        resumable=bool(spec.get("resumable")),
        stop_notice_s=float(spec.get("stopNoticeSeconds") or 0),
        saved_s=saved_s_from_json(status, attempt=attempt),
        lost_s=lost_s_from_json(status),
        run_limit_s=None if (limit_s := spec.get("activeDeadlineSeconds")) is None else float(limit_s),
        run_from_s=seconds_from_time(status.get("startTime" if runs_trial(status) else "launchTime")),
        sharing=word_or(SharingWish.GUARANTEED, spec.get("serviceClass")),
        keeps_to_itself=keeps_to_itself(spec),
        brings_volumes=brings_volumes(spec),
        late_binds=int(status.get("disruptionsInARow") or 0) if status.get("reason") == "BindDeadlineExceeded" else 0,
        gpu_bytes=whole_from_quantity(spec.get("gpuMemory") or 0),
    )
    return with_ranks(job, pods)


def job_from_pod(
    pod: Pod, *, is_evicted: bool = False, ignored_disruptions: Collection[str] = frozenset()
) -> Job | None:
    """Return the CPU job that the pod is; None if it is none, has ended, or waits for the gate of somebody else.

    A bound pod that is being deleted, or `is_evicted`, was stopped, by whomever: what it holds counts as leaving. One
    that may take longer than an evicted pod runs on: whoever deletes a pod chooses its grace period."""
    cpu, is_stopped = pod.cpu_job, is_evicted or (pod.terminating and pod.grace_s <= LONGEST_GRACE_S)
    if cpu is None or pod.ended or (pod.node is None and (pod.terminating or pod.gated != cpu.is_waiting)):
        return None
    node = pod.node or pod.pinned_to
    placement = None
    if not cpu.is_waiting and node is not None:
        placement = Placement(
            attempt=1,
            plan_id=cpu.plan_id,
            epoch=0,
            generation=1,
            state=PlacementState.RELEASED,
            nodes=(node,),
            cpus_per_replica=0,
            committed_s=cpu.planned_s,
            bind_deadline_s=cpu.planned_s,
            borrows=cpu.borrows,
            stop=StopOrder(cause=StopCause.RECLAIM, by=JobId(""), since_s=0.0) if is_stopped else None,
        )
    comes_back = ends_in_time(cpu) and is_recreated(cpu, ignored_disruptions=ignored_disruptions)
    job = Job(
        id=cpu_job_id(*pod.id.split("/", 1)),
        uid=pod.uid,
        phase=Phase.QUEUED if cpu.is_waiting else Phase.RUNNING if pod.node else Phase.STARTING,
        attempt=1,
        generation=1,
        replicas=1,
        request=pod.request,
        constraints=cpu.constraints,
        priority=cpu.priority,
        queued_s=cpu.queued_s,
        reclaimed=cpu.reclaimed,
        placement=placement,
        user=cpu.user,
        may_borrow=not cpu.is_service and comes_back,
    )
    return with_ranks(job, {pod.id: pod})


def unreadable_job(item: Item, error: Exception) -> Job | None:
    """Return, for a job that `job_from_json` cannot read, one that only says so; None if it does not wait."""
    metadata = item["metadata"]
    if (item.get("status") or {}).get("phase") != Phase.QUEUED.value or metadata.get("deletionTimestamp"):
        return None
    said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return Job(
        id=id_of(item),
        uid=metadata["uid"],
        phase=Phase.QUEUED,
        attempt=1,
        generation=int(metadata.get("generation") or 0),
        replicas=1,
        request=Resources(pods=1),
        unreadable=f"Coda cannot read the job ({said}): submit it again; the other jobs are not affected",
    )


def is_settled(job: Item) -> bool:
    """True for a finished TrainingJob of which nothing is to be written any more: jobs stay for weeks."""
    return (status := job.get("status") or {}).get("phase") in _FINISHED and not status.get("pending")


def _phase(metadata: Item, spec: Item, status: Item) -> Phase:
    phase = phase_from_word(status["phase"], is_deleted=bool(metadata.get("deletionTimestamp")))
    is_over = spec.get("suspend") or metadata.get("deletionTimestamp")
    return Phase.SUSPENDED if is_over and phase not in FINISHED else phase


def _generation(metadata: Item, status: Item, phase: Phase) -> tuple[int, bool]:
    """The generation that counts, and whether it is an edit in the queue that is not accepted yet."""
    accepted = int(status.get("observedGeneration") or 0)
    edited = phase is Phase.QUEUED and accepted != metadata["generation"]
    return metadata["generation"] if edited else accepted, edited


def _sizes(status: Item, request: Item, attempt: int) -> tuple[Resources, int, int]:
    """The request of one rank now, the cores of its main container, and the last wish whose resize has ended."""
    asked, cores = resources_from_quantities(request["resources"], pods=1), int(request["cpusPerReplica"])
    if (resize := resize_from_json(status)) is None or resize.attempt != attempt:
        return asked, cores, 0
    asked = replace(asked, cpu_m=asked.cpu_m + (resize.cores - cores) * 1000)
    return asked, resize.cores, resize.sequence if resize.has_ended else resize.sequence - 1


def with_ranks(job: Job, pods: Mapping[str, Pod]) -> Job:
    """Return the job with those of its `pods` that are ranks of its placement, where it says. O(pods).

    Others are no ranks, whatever their labels say: they are `ending`. Those of the attempt, of a dropped placement
    perhaps, keep the job from starting until the operator has deleted them."""
    members = [(pod.member, pod) for pod in pods.values() if pod.member and pod.member.attempt == job.attempt]
    placement = _placement_of_pods(job)
    ranks = [(member.rank, pod) for member, pod in members if placement is not None and is_rank_of(pod, placement)]
    waiting = [(rank, pod) for rank, pod in ranks if not pod.node and not pod.ended and not pod.terminating]
    may_differ = job.wish is not None or job.tunable or job.resized
    cpu_m = {rank: pod.request.cpu_m for rank, pod in ranks if pod.node} if may_differ else {}
    others = [pods[one] for one in pods.keys() - {pod.id for _, pod in ranks}]
    return replace(
        job,
        bound=frozenset([rank for rank, pod in ranks if pod.node]),
        unbound={rank: pod.pinned_to for rank, pod in waiting if pod.pinned_to is not None},
        gone=frozenset([rank for rank, pod in ranks if pod.ended]) if job.phase in _STARTED else frozenset(),
        leftovers=job.phase is Phase.QUEUED and len(ranks) < len(members),
        ending=tuple(sorted([pod.node for pod in others if pod.member and pod.node and not pod.ended])),
        asked_anyway=max([-(-pod.asked_anyway_m // 1000) for _, pod in ranks], default=0) if job.tunable else 0,
        pod_cpu_m={rank: amount_m for rank, amount_m in cpu_m.items() if amount_m != job.request.cpu_m},
    )


def is_rank_of(pod: Pod, placement: Placement) -> bool:
    """True for a rank of this placement, on the node or pinned to the node that it names."""
    if (member := pod.member) is None or (member.attempt, member.plan_id) != (placement.attempt, placement.plan_id):
        return False
    return member.rank < len(placement.nodes) and placement.nodes[member.rank] == (pod.node or pod.pinned_to)


def _placement_of_pods(job: Job) -> Placement | None:
    """The placement whose pods count. That of a finished job is over: the filter refuses its pods."""
    if (placement := job.placement) is None or placement.attempt != job.attempt or job.phase in FINISHED:
        return None
    return placement if job.phase is not Phase.QUEUED or placement.generation == job.generation else None
