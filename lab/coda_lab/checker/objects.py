"""The objects of a cluster as the referee sees them: small records read from JSON, nothing judged.

Coda's own reading and decisions are not used here: a mistake shared with the planner would stay unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda.errors import InvalidInput
from coda.model import Phase
from coda.model.job import StopCause
from coda_kube.objects import names
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_lab.checker.pod_request import POD_SLOT, Amounts, amounts_from_quantities, pod_request


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node; `ready_since_s` is when its Ready condition last changed."""

    name: str
    allocatable: Amounts
    ready: bool = True
    ready_since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The labels of a pod: it is rank `rank` of attempt `attempt` of the job `job_uid`; None where unreadable."""

    job_uid: str
    attempt: int | None
    rank: int | None
    plan_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod. `pinned_to`: the one node name that every required affinity term demands, else None."""

    uid: str
    name: str  # namespace/name
    node: str | None = None
    request: Amounts = field(default_factory=dict)
    terminal: bool = False
    created_s: float = 0.0  # by the API server's clock, like all times of a pod
    deleted_s: float | None = None  # when its deletion began
    member: Member | None = None
    is_controlled: bool = True  # False: nobody owns it, as after `kubectl delete --cascade=orphan`
    pinned_to: str | None = None
    started: bool = False  # one of its containers has started at some time
    outsider_since_s: float | None = None  # bound then, and not by Coda's scheduler

    @property
    def live(self) -> bool:
        """True if it has neither ended nor is being deleted."""
        return not self.terminal and self.deleted_s is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSeen:
    """A job's `status.placement`; `nodes[rank]` is a node name."""

    attempt: int
    plan_id: str
    generation: int  # of the spec it was made for
    released: bool
    nodes: tuple[str, ...]
    committed_s: float
    bind_deadline_s: float
    gpus: tuple[int, ...] = ()  # of each rank, the GPU on which it has a seat; empty: GPUs of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSeen:
    """A job's `status.pending`; two with equal `answer` say the same."""

    code: str
    answer: tuple[str, str, tuple[tuple[str, int], ...], tuple[str, ...]]  # code, message, numbers, holders
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A TrainingJob; `phase` is None until the operator accepted it."""

    uid: str
    name: str  # namespace/name
    version: str = ""
    generation: int = 1
    deleting: bool = False
    suspended: bool = False
    phase: Phase | None = None
    attempt: int = 0
    plan: PlanSeen | None = None
    pending: PendingSeen | None = None
    rank_request: Amounts = field(default_factory=dict)
    stop_cause: StopCause | None = None  # its attempt was told to stop
    stopped_by: str = ""  # namespace/name of the job that it stops for, or namespace/*

    @property
    def current_plan(self) -> PlanSeen | None:
        """The placement of the current attempt."""
        return self.plan if self.plan is not None and self.plan.attempt == self.attempt else None

    @property
    def waiting(self) -> bool:
        """True if it is queued, wanted, and has no placement that is still valid: somebody owes it a reason."""
        return self.phase is Phase.QUEUED and not self.has_plan_that_holds and not self.deleting and not self.suspended

    @property
    def withholding(self) -> bool:
        """True while a released placement withholds capacity for ranks without a node."""
        return (
            self.plan is not None
            and self.has_plan_that_holds
            and self.plan.released
            and self.phase in (Phase.QUEUED, Phase.LAUNCHED)
            and not self.deleting
            and not self.suspended
        )

    @property
    def has_plan_that_holds(self) -> bool:
        """An edit of a queued job voids the placement at once, before the operator accepts it. Later edits never change
        the shape.
        """
        plan = self.current_plan
        return plan is not None and (self.phase is not Phase.QUEUED or plan.generation == self.generation)


def full_name(thing: Json) -> str:
    """`namespace/name`, or the name alone where there is no namespace."""
    metadata = thing["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def read_node(node: Json) -> NodeSeen:
    """A node. Raises InvalidInput."""
    status = node.get("status") or {}
    ready: Json = next((each for each in status.get("conditions") or () if each["type"] == "Ready"), {})
    return NodeSeen(
        name=node["metadata"]["name"],
        allocatable=amounts_from_quantities(status.get("allocatable")),
        ready=ready.get("status") == "True",
        ready_since_s=seconds_from_time(ready.get("lastTransitionTime")),
    )


def read_pod(pod: Json) -> PodSeen:
    """A pod. Raises InvalidInput."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    member = _member(metadata)
    deleted_s = None
    if metadata.get("deletionTimestamp"):
        grace_s = metadata.get("deletionGracePeriodSeconds") or 0
        deleted_s = seconds_from_time(metadata["deletionTimestamp"]) - grace_s
    foreign = member is None and spec.get("schedulerName") != names.SCHEDULER
    return PodSeen(
        uid=metadata["uid"],
        name=full_name(pod),
        node=spec.get("nodeName"),
        request=pod_request(pod),
        terminal=status.get("phase") in ("Succeeded", "Failed"),
        created_s=seconds_from_time(metadata.get("creationTimestamp")),
        deleted_s=deleted_s,
        member=member,
        is_controlled=any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()),
        pinned_to=_pin(spec),
        started=_has_started(status),
        outsider_since_s=_bound_s(metadata, status) if foreign and spec.get("nodeName") else None,
    )


def read_job(job: Json) -> JobSeen:
    """A TrainingJob. Raises InvalidInput."""
    metadata, status = job["metadata"], job.get("status") or {}
    request = status.get("request") or {}
    return JobSeen(
        uid=metadata["uid"],
        name=full_name(job),
        version=metadata.get("resourceVersion", ""),
        generation=metadata.get("generation", 1),
        deleting=bool(metadata.get("deletionTimestamp")) and "orphan" not in (metadata.get("finalizers") or ()),
        suspended=bool(job["spec"].get("suspend")),
        phase=_phase(status.get("phase")),
        attempt=status.get("attempt") or 0,
        plan=_plan(status.get("placement")),
        pending=_pending(status.get("pending")),
        rank_request=amounts_from_quantities(request.get("resources")) | POD_SLOT,
        stop_cause=_stop_cause((status.get("placement") or {}).get("stop")),
        stopped_by=((status.get("placement") or {}).get("stop") or {}).get("by") or "",
    )


def _stop_cause(stop: Json | None) -> StopCause | None:
    try:
        return StopCause(stop["cause"]) if stop else None
    except ValueError:
        raise InvalidInput(f"{(stop or {}).get('cause')!r} is not a cause of stops this checker knows") from None


def _phase(word: str | None) -> Phase | None:
    try:
        return Phase(word) if word else None
    except ValueError:
        raise InvalidInput(f"{word!r} is not a phase this checker knows") from None


def _plan(placement: Json | None) -> PlanSeen | None:
    if not placement:
        return None
    return PlanSeen(
        attempt=placement["attempt"],
        plan_id=placement["planId"],
        generation=placement["generation"],
        released=placement["state"] == "Released",
        nodes=tuple(placement["nodes"]),
        committed_s=seconds_from_time(placement["committedTime"]),
        bind_deadline_s=seconds_from_time(placement["bindDeadline"]),
        gpus=tuple(placement.get("gpus") or ()),
    )


def _pending(pending: Json | None) -> PendingSeen | None:
    if not pending:
        return None
    numbers = tuple(sorted((pending.get("numbers") or {}).items()))
    holders = tuple(pending.get("holders") or ())
    answer = (pending["code"], pending["message"], numbers, holders)
    return PendingSeen(code=pending["code"], answer=answer, since=pending["since"])


def _member(metadata: Json) -> Member | None:
    labels: Mapping[str, str] = metadata.get("labels") or {}
    job_uid = labels.get(names.LABEL_JOB_UID)
    if job_uid is None:
        return None
    return Member(
        job_uid=job_uid,
        attempt=_number(labels.get(names.LABEL_ATTEMPT)),
        rank=_number(labels.get(names.LABEL_RANK)),
        plan_id=(metadata.get("annotations") or {}).get(names.ANNOTATION_PLAN),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _pin(spec: Json) -> str | None:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = [term for term in required.get("nodeSelectorTerms") or () if term]  # an empty one selects nothing
    names = [_names_in_term(term) for term in terms]
    allowed = {name for each in names if each is not None for name in each}
    return allowed.pop() if len(allowed) == 1 and None not in names else None


def _names_in_term(term: Json) -> set[str] | None:
    """The nodes that the term names, where all of its fields agree; None: it names none."""
    fields = [each for each in term.get("matchFields") or () if each.get("key") == "metadata.name"]
    named = [set(each.get("values") or ()) for each in fields if each.get("operator") == "In"]
    return set.intersection(*named) if named else None


def _has_started(status: Json) -> bool:
    statuses = (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
    return any(_container_has_started(each) for each in statuses)


def _container_has_started(status: Json) -> bool:
    state, before = status.get("state") or {}, status.get("lastState") or {}
    ends = [each["terminated"] for each in (state, before) if each.get("terminated")]
    return bool(status.get("started")) or "running" in state or any(end.get("startedAt") for end in ends)


def _bound_s(metadata: Json, status: Json) -> float:
    for condition in status.get("conditions") or ():
        if (
            condition["type"] == "PodScheduled"
            and condition["status"] == "True"
            and condition.get("lastTransitionTime")
        ):
            return seconds_from_time(condition["lastTransitionTime"])
    return seconds_from_time(metadata.get("creationTimestamp"))
