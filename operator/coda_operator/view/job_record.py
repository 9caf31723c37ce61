"""A TrainingJob as one step looks at it, read from its JSON once; pods are read by `rank_pods`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from coda.allocator import Category, Hints
from coda.allocator.memory_growth import RankMemory
from coda.errors import InvalidInput
from coda.lifecycle import Progress, Terms
from coda.lifecycle.state import FailureRecord, StopAnswer, StopRecord
from coda.model import FINISHED, Phase, Placement
from coda.model.job import StopCause
from coda.progress import TrainingProgress
from coda.progress.stall import Reached, Stall
from coda_kube.job_progress import progress_from_json as training_progress_from_json
from coda_kube.job_progress import stop_text
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import FINALIZER
from coda_kube.objects.pods.main_container import images_of
from coda_kube.objects.pods.trial_spec import runs_trial, spec_of_attempt, trial_from_json, trial_terms_from_json
from coda_kube.objects.quantities import seconds_from_time, whole_from_quantity
from coda_kube.objects.read import AUTO, placement_from_json
from coda_kube.objects.tuning_status import category_from_json, hints_from_json, is_searching_now, resize_from_json
from coda_kube.objects.write import job_path
from coda_kube.words import phase_from_word
from coda_operator.view.time_ledger import readable_account

Item = Mapping[str, Any]

_CAUSES: Final = frozenset(cause.value for cause in StopCause)
_ANSWERS: Final = frozenset(answer.value for answer in StopAnswer)
_ORPHAN: Final = "orphan"  # the garbage collector's finalizer
_LABELS_OF_TOOLS: Final = frozenset(
    {
        "app.kubernetes.io/instance",  # Argo CD's by default
        "argocd.argoproj.io/instance",
        "helm.toolkit.fluxcd.io/name",
        "kustomize.toolkit.fluxcd.io/name",
    }
)
ANNOTATIONS_OF_TOOLS: Final = frozenset({"argocd.argoproj.io/tracking-id", "meta.helm.sh/release-name"})
"""By these a tool knows what it has applied, and applies again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One version of a TrainingJob: what the life cycle looks at, and where requests for it go."""

    json: Json  # as the API server has it
    key: str  # namespace/name
    uid: str
    path: str
    pods_path: str  # of the pods of its namespace
    is_held: bool  # our finalizer keeps the job from going before its pods
    is_deleted: bool
    deleted_s: float  # by the API server's clock; 0: it is not deleted
    is_orphaning: bool  # it is deleted with --cascade=orphan: its pods are to stay
    generation: int
    terms: Terms
    category: Category | None
    hints: Hints
    progress: Progress
    placement: Placement | None

    @property
    def version(self) -> str:
        """The resourceVersion: a write that carries it fails once another write came first."""
        return str(self.json["metadata"]["resourceVersion"])

    @property
    def request(self) -> Json | None:
        """The request of one rank, as accepted; None for a job that is not accepted yet."""
        return (self.json.get("status") or {}).get("request")

    @property
    def is_untuned(self) -> bool:
        """True if its cores are to be found, and no agent has begun with that in this attempt."""
        spec, tuning = self.json["spec"], (self.json.get("status") or {}).get("tuning") or {}
        is_auto = spec.get("cpusPerReplica") == AUTO and bool(spec.get("gpusPerReplica"))
        if self.placement is not None and self.placement.gpus:  # its speed is its neighbours' matter
            return False
        return is_auto and not self.progress.is_tried and tuning.get("attempt") != self.progress.attempt

    @property
    def is_searched(self) -> bool:
        """True while an agent looks for its cores: it has some to try."""
        return is_searching_now(self.json.get("status") or {}, attempt=self.progress.attempt)

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang, also while its trial runs."""
        return int(self.json["spec"]["replicas"]) * int(self.json["spec"]["gpusPerReplica"])

    @property
    def ended_s(self) -> float:
        """When its present attempt ended, while its pods are still to go; 0: it has not, or that is not known.

        A condition has it, so it is the same for whoever reads the job: an operator's death makes no attempt longer."""
        if self.progress.phase is not Phase.RESTARTING:
            return 0.0
        conditions = (self.json.get("status") or {}).get("conditions") or ()
        ends = [one for one in conditions if (one.get("type"), one.get("status")) == ("Launched", "False")]
        return seconds_from_time(ends[0].get("lastTransitionTime")) if ends else 0.0

    @property
    def told(self) -> TrainingProgress:
        """What this attempt said of its progress; empty where nothing is known, or it cannot be read."""
        try:
            known = training_progress_from_json(self.json.get("status") or {})
        except InvalidInput:
            known = None
        is_mine = known is not None and known.attempt == self.progress.attempt
        return known if known is not None and is_mine else TrainingProgress(attempt=self.progress.attempt)

    @property
    def converged(self) -> str:
        """Why this attempt is to end by `spec.stopWhen`, in a clause; "" if it is not."""
        return stop_text(spec_of_attempt(self.json), self.json.get("status") or {}, self.progress.attempt)


def record_from_json(key: str, job: Json) -> JobRecord:
    """Return the record of the TrainingJob `key` (namespace/name)."""
    metadata = job["metadata"]
    spec = job["spec"]
    status = job.get("status") or {}
    terms = replace(terms_from_json(spec_of_attempt(job)), is_applied=is_applied(metadata))
    progress = progress_from_json(status, is_deleted="deletionTimestamp" in metadata)
    if progress.phase not in FINISHED:
        terms = replace(terms, images=images_of((spec.get("template") or {}).get("spec") or {}))
    if runs_trial(status):  # its deadlines are those of the trial
        start_s = min(terms.start_deadline_s, terms.trial.wait_s)
        terms = replace(terms, active_deadline_s=None, start_deadline_s=start_s)
    return JobRecord(
        json=job,
        key=key,
        uid=metadata["uid"],
        path=job_path(key),
        pods_path=f"/api/v1/namespaces/{metadata['namespace']}/pods",
        is_held=FINALIZER in (metadata.get("finalizers") or ()),
        is_deleted="deletionTimestamp" in metadata,
        deleted_s=seconds_from_time(metadata.get("deletionTimestamp")),
        is_orphaning="deletionTimestamp" in metadata and _ORPHAN in (metadata.get("finalizers") or ()),
        generation=metadata["generation"],
        terms=terms,
        category=category_from_json(spec),
        hints=hints_from_json(spec),
        progress=progress,
        placement=placement_from_json(status),
    )


def terms_from_json(spec: Item) -> Terms:
    """Return what a TrainingJob's `spec`, with the CRD's defaults filled in, says of its life."""
    return Terms(
        replicas=spec["replicas"],
        gpus_per_replica=spec["gpusPerReplica"],
        retries=spec["retries"],
        rank_zero_decides=spec["successPolicy"] == "RankZero",
        active_deadline_s=spec.get("activeDeadlineSeconds"),
        start_deadline_s=spec["startDeadlineSeconds"],
        ttl_s=spec.get("ttlSecondsAfterFinished"),
        suspend=spec["suspend"],
        grow_memory_to_bytes=whole_from_quantity(spec.get("growMemoryTo") or 0),
        finds_cores=spec.get("cpusPerReplica") == AUTO,
        waits_for_nodes=spec.get("onNodeLoss") == "Wait",
        resumable=bool(spec.get("resumable")),
        trial=trial_terms_from_json(spec),
    )


def is_applied(metadata: Item) -> bool:
    """True if a tool would make the job again if it were deleted. Nothing makes a generated name again."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if metadata.get("generateName"):
        return False
    is_marked = not (_LABELS_OF_TOOLS.isdisjoint(labels) and ANNOTATIONS_OF_TOOLS.isdisjoint(annotations))
    return is_marked or labels.get("app.kubernetes.io/managed-by") == "Helm"


def ranks_from_text(text: str) -> frozenset[int]:
    """Return the ranks of a text as `reconcile.status.text_from_ranks` makes it: "0-2,5"."""
    ranks: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ranks.update(range(int(first), int(last or first) + 1))
    return frozenset(ranks)


def progress_from_json(status: Item, *, is_deleted: bool = False) -> Progress:
    """Return the operator's part of the status, as `reconcile.status.status_json` wrote it.

    Raises InvalidInput for a phase that is not known, unless the job is deleted."""
    phase = status.get("phase")
    return Progress(
        phase=phase_from_word(phase, is_deleted=is_deleted) if phase else None,
        attempt=status.get("attempt") or 1,
        failures=status.get("failures") or 0,
        disruptions=status.get("disruptions") or 0,
        in_a_row=status.get("disruptionsInARow") or 0,
        generation=status.get("observedGeneration") or 0,
        queued_s=seconds_from_time(status.get("queuedTime")),
        waiting_s=seconds_from_time(status.get("waitingSince")),
        returned=bool(status.get("returned")),
        not_before_s=seconds_from_time(status.get("notBefore")),
        served_s=float(status.get("servedSeconds") or 0),
        launch_s=seconds_from_time(status.get("launchTime")),
        start_s=seconds_from_time(status.get("startTime")),
        completion_s=seconds_from_time(status.get("completionTime")),
        avoid={entry["name"]: seconds_from_time(entry["until"]) for entry in status.get("avoidNodes") or ()},
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        resize=resize_from_json(status),
        succeeded=ranks_from_text(status.get("succeededRanks") or ""),
        failure=failure_from_json(status.get("failure")),
        stall=stall_from_json(status.get("stall")),
        memory=memory_from_json(status.get("grownMemory")),
        cores_multiple=status.get("coresMultipleOf") or 1,
        stop_due_s=seconds_from_time(status.get("stopDeadline")),
        stopped=stop_record_from_json(status.get("lastStop")),
        lost_s=float(status.get("lostSeconds") or 0),
        lost_gpu_s=float(status.get("lostGPUSeconds") or 0),
        spent=readable_account(status),
        trial=trial_from_json(status),
    )


def stop_record_from_json(stop: Item | None) -> StopRecord | None:
    """Return the last stop for another job, as `reconcile.status.stop_record_json` wrote it.

    None for one with a word of a newer version, too: it only informs."""
    if not stop or stop["cause"] not in _CAUSES or stop["answer"] not in _ANSWERS:
        return None
    return StopRecord(
        attempt=stop["attempt"],
        cause=StopCause(stop["cause"]),
        by=stop["by"],
        answer=StopAnswer(stop["answer"]),
        lost_s=float(stop.get("lostSeconds") or 0),
    )


def memory_from_json(memory: Item | None) -> RankMemory | None:
    """Return what ranks ask for since one was killed for memory."""
    if not memory:
        return None
    request, limit = (whole_from_quantity(memory.get(name) or 0) for name in ("request", "limit"))
    return RankMemory(request_bytes=request, limit_bytes=limit)


def stall_from_json(stall: Item | None) -> Stall | None:
    """Return the failures that were not counted at once, as `reconcile.status.stall_json` wrote them."""
    if not stall:
        return None
    epoch = stall.get("epoch")
    reached = Reached(
        step=stall.get("step"), saved_step=stall.get("savedStep"), epoch=None if epoch is None else float(epoch)
    )
    return Stall(
        failures=stall.get("failures") or 0,
        counted=stall.get("counted") or 0,
        row=stall.get("row") or 0,
        ran_s=stall.get("ranSeconds") or 0,
        reached=reached,
    )


def failure_from_json(failure: Item | None) -> FailureRecord | None:
    """Return why the last failed attempt failed, as `reconcile.status.failure_json` wrote it."""
    if not failure:
        return None
    return FailureRecord(
        attempt=failure.get("attempt") or 1,
        reason=failure.get("reason") or "",
        sub_reason=failure.get("subReason") or "",
        category=failure.get("category") or "",
        explicit=bool(failure.get("explicit")),
        rank=failure.get("rank"),
        node=failure.get("node") or "",
        evidence=failure.get("evidence") or "",
        advice=failure.get("advice") or "",
        retry=failure.get("retry") or "",
        decision=failure.get("decision") or "",
        repeats=failure.get("repeats") or 1,
        unread=failure.get("unread") or "",
        time_s=seconds_from_time(failure.get("time")),
        signature=failure.get("signature") or "",
        alike=(failure.get("alike") or {}).get("jobs") or 0,
        alike_names=tuple((failure.get("alike") or {}).get("names") or ()),
        cut_short=bool(failure.get("cutShort")),
        xid=failure.get("xid"),
    )
