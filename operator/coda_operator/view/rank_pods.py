"""Pod JSON -> `RankPod`: how far a rank came, and whether it was ended from outside.

The first container is the main one: the rank starts and ends with it. Source: Kubernetes'
`pkg/kubelet/kubelet_pods.go`. Each case that was seen is a row of a table in
`tests/operator_tests/view/test_rank_pods.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coda.lifecycle import PodState, RankPod
from coda_kube.objects.names import ANNOTATION_PLAN, LABEL_ATTEMPT, LABEL_RANK
from coda_kube.objects.quantities import seconds_from_time
from coda_operator.view.rank_sizes import rank_size_from_json

Item = Mapping[str, Any]

_ORDINARY_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})
_OWN_ENDS = frozenset({"DeadlineExceeded"})  # reasons on the pod that the template causes
_LOST = "ContainerStatusUnknown"  # the kubelet no longer found the container: its node was restarted


def rank_pod_from_json(pod: Item, *, now_s: float, before: RankPod | None = None) -> RankPod:
    """Return a pod of a gang. `before`: as it was known; since when it is unschedulable is by our own clock."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    main = _main_container(spec, status)
    state, disrupted = _outcome(metadata, status, main)
    reason, message = _trouble(main, status)
    labels = metadata["labels"]
    return RankPod(
        name=metadata["name"],
        uid=metadata["uid"],
        attempt=_number(labels.get(LABEL_ATTEMPT)),
        rank=_number(labels.get(LABEL_RANK)),
        plan_id=(metadata.get("annotations") or {}).get(ANNOTATION_PLAN, ""),
        node=spec.get("nodeName") or None,
        state=state,
        ended=status.get("phase") in ("Failed", "Succeeded"),
        terminating="deletionTimestamp" in metadata,
        gone_by_s=seconds_from_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        unschedulable_since_s=_unschedulable_since(status, metadata["uid"], now_s, before),
        exit_code=_terminated(main).get("exitCode"),
        disrupted=disrupted,
        reason=reason,
        message=message,
        size=rank_size_from_json(pod, main) if state is PodState.STARTED else None,
    )


def _number(label: str | None) -> int:
    return int(label) if label and label.isdecimal() else -1


def _main_container(spec: Item, status: Item) -> Item:
    name = spec["containers"][0]["name"]
    return next((entry for entry in status.get("containerStatuses") or () if entry["name"] == name), {})


def _terminated(container: Item) -> Item:
    return (container.get("state") or {}).get("terminated") or {}


def _outcome(metadata: Item, status: Item, main: Item) -> tuple[PodState, bool]:
    """Return how far the rank came, and whether it was ended from outside."""
    phase, ended = status.get("phase"), _terminated(main)
    stopped = _is_marked(status, ended) or _ended_by_deletion(metadata, ended)
    done = ended.get("exitCode") == 0 or phase == "Succeeded"
    if done and not stopped and not (phase == "Failed" and status.get("reason")):
        return PodState.SUCCEEDED, False  # its sidecars do not matter
    if not ended and phase not in ("Failed", "Succeeded"):
        return PodState.STARTED if "running" in (main.get("state") or {}) else PodState.WAITING, False
    if status.get("reason") in _OWN_ENDS:
        return PodState.FAILED, False
    refused = not ended and _failed_container(status) is None
    return PodState.FAILED, stopped or refused or ended.get("reason") == _LOST


def _is_marked(status: Item, ended: Item) -> bool:
    """True if Kubernetes says that it was evicted, preempted or shut down with its node before it had ended."""
    ended_s = seconds_from_time(ended.get("finishedAt"))
    return any(
        not ended_s or ended_s >= seconds_from_time(condition.get("lastTransitionTime"))
        for condition in status.get("conditions") or ()
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True"
    )


def _ended_by_deletion(metadata: Item, ended: Item) -> bool:
    """True if the main container ended after the pod's deletion was requested.

    An exit code of 0 is then only its answer to SIGTERM."""
    deletion_s = seconds_from_time(metadata.get("deletionTimestamp"))
    if not deletion_s or not ended:
        return False
    asked_s = deletion_s - (metadata.get("deletionGracePeriodSeconds") or 0)
    return seconds_from_time(ended.get("finishedAt")) >= asked_s


def _failed_container(status: Item) -> Item | None:
    """Return a failed container other than the main one, which never starts after a failed init container."""
    return next((entry for entry in _others(status) if _terminated(entry).get("exitCode", 0) != 0), None)


def _others(status: Item) -> Iterator[Item]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _unschedulable_since(status: Item, uid: str, now_s: float, before: RankPod | None) -> float | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            known = before is not None and before.uid == uid and before.unschedulable_since_s is not None
            return before.unschedulable_since_s if known and before is not None else now_s
    return None


def _trouble(main: Item, status: Item) -> tuple[str, str]:
    """Return why the pod failed, cannot start or is not scheduled: reason and message; empty if nothing is wrong."""
    if ended := _terminated(main):
        return ended.get("reason") or "", ended.get("message") or ""
    if status.get("phase") == "Failed":
        return _failure(status)
    for entry in (main, *_others(status)):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if (waiting.get("reason") or "") not in _ORDINARY_WAITS:
            return waiting["reason"], waiting.get("message") or ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", condition.get("message") or ""
    return "", ""


def _failure(status: Item) -> tuple[str, str]:
    """Return reason and message of a pod that failed before its main container started."""
    failed = _failed_container(status)
    if failed is None or status.get("reason"):
        return status.get("reason") or "", status.get("message") or ""
    ended = _terminated(failed)
    return f"its container {failed['name']} ended with exit code {ended['exitCode']}", ended.get("message") or ""
