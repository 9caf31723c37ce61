"""TrainingJob and pod JSON -> what the life cycle looks at. Reads only, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coda.allocator import Category, Hints
from coda.gang import PodState, Progress, RankPod, Situation, Terms
from coda.model import Phase
from coda_kube.naming import LABEL_ATTEMPT, LABEL_RANK
from coda_kube.quantities import seconds_from_time
from coda_kube.reading import placement_from_json

Item = Mapping[str, Any]

_ORDINARY_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})


def situation_from_json(
    job: Item, pods: Iterable[Item], unready_since_s: Mapping[str, float], *, epoch: int | None = None
) -> Situation:
    """Everything `coda.lifecycle.next_step` wants to know of one job."""
    status = job.get("status") or {}
    return Situation(
        terms=terms_from_json(job["spec"]),
        generation=job["metadata"]["generation"],
        progress=progress_from_json(status),
        deleting="deletionTimestamp" in job["metadata"],
        placement=placement_from_json(status),
        epoch=epoch,
        pods=tuple(sorted((rank_pod_from_json(pod) for pod in pods), key=lambda pod: (pod.attempt, pod.rank, pod.uid))),
        unready_since_s=unready_since_s,
    )


def terms_from_json(spec: Item) -> Terms:
    """`spec` of a TrainingJob; the CRD's defaults are in it."""
    return Terms(
        replicas=spec["replicas"],
        retries=spec["retries"],
        rank_zero_decides=spec["successPolicy"] == "RankZero",
        active_deadline_s=spec.get("activeDeadlineSeconds"),
        start_deadline_s=spec["startDeadlineSeconds"],
        ttl_s=spec.get("ttlSecondsAfterFinished"),
        suspend=spec["suspend"],
    )


def tuning_from_json(spec: Item) -> tuple[Category | None, Hints]:
    """What the user said that guides the first guess of cores."""
    hints = spec.get("hints") or {}
    category = spec.get("category")
    return Category(category) if category else None, Hints(
        pipelined=bool(hints.get("pipelined")),
        many_weights=bool(hints.get("manyWeights")),
        complex_processing=bool(hints.get("complexProcessing")),
    )


def progress_from_json(status: Item) -> Progress:
    """The operator's part of the status, as `reporting.status_json` wrote it."""
    phase = status.get("phase")
    return Progress(
        phase=Phase(phase) if phase else None,
        attempt=status.get("attempt") or 1,
        failures=status.get("failures") or 0,
        disruptions=status.get("disruptions") or 0,
        generation=status.get("observedGeneration") or 0,
        queued_s=seconds_from_time(status.get("queuedTime")),
        not_before_s=seconds_from_time(status.get("notBefore")),
        launch_s=seconds_from_time(status.get("launchTime")),
        start_s=seconds_from_time(status.get("startTime")),
        completion_s=seconds_from_time(status.get("completionTime")),
        avoid={entry["name"]: seconds_from_time(entry["until"]) for entry in status.get("avoidNodes") or ()},
        reason=status.get("reason") or "",
        message=status.get("message") or "",
    )


def rank_pod_from_json(pod: Item) -> RankPod:
    """A pod of a gang. Its first container is the main one: the rank starts and ends with it."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    main = _main_container(spec, status)
    failed = status.get("phase") == "Failed"
    terminated = (main.get("state") or {}).get("terminated")
    reason, message = _trouble(main, status, terminated, failed=failed)
    labels = metadata["labels"]
    return RankPod(
        name=metadata["name"],
        uid=metadata["uid"],
        attempt=_number(labels.get(LABEL_ATTEMPT)),
        rank=_number(labels.get(LABEL_RANK)),
        node=spec.get("nodeName") or None,
        state=_state(main, terminated, failed=failed),
        ended=failed or status.get("phase") == "Succeeded",
        terminating="deletionTimestamp" in metadata,
        unschedulable_since_s=_unschedulable_since(status),
        exit_code=terminated.get("exitCode") if terminated else None,
        disrupted=failed and _disrupted(status, terminated),
        reason=reason,
        message=message,
    )


def _number(label: str | None) -> int:
    return int(label) if label and label.isdigit() else -1


def _main_container(spec: Item, status: Item) -> Item:
    name = spec["containers"][0]["name"]
    return next((entry for entry in status.get("containerStatuses") or () if entry["name"] == name), {})


def _state(main: Item, terminated: Item | None, *, failed: bool) -> PodState:
    if terminated is not None and terminated.get("exitCode") == 0 and not failed:
        return PodState.SUCCEEDED
    if failed or terminated is not None:
        return PodState.FAILED
    return PodState.STARTED if "running" in (main.get("state") or {}) else PodState.WAITING


def _disrupted(status: Item, terminated: Item | None) -> bool:
    """Ended from outside: marked as a disruption, or refused by its kubelet (its main container never ended)."""
    if status.get("reason") == "DeadlineExceeded":
        return False
    marked = any(c["type"] == "DisruptionTarget" and c["status"] == "True" for c in status.get("conditions") or ())
    return marked or terminated is None


def _unschedulable_since(status: Item) -> float | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return seconds_from_time(condition.get("lastTransitionTime"))
    return None


def _trouble(main: Item, status: Item, terminated: Item | None, *, failed: bool) -> tuple[str, str]:
    """Why the pod failed, cannot start or is not scheduled: reason and message; empty when nothing is wrong."""
    if failed and terminated is None:
        return status.get("reason") or "", status.get("message") or ""
    if terminated is not None:
        return terminated.get("reason") or "", terminated.get("message") or ""
    for entry in [main, *(status.get("initContainerStatuses") or ())]:
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if (waiting.get("reason") or "") not in _ORDINARY_WAITS:
            return waiting["reason"], waiting.get("message") or ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", condition.get("message") or ""
    return "", ""
