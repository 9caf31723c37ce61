"""Pods of CPU jobs as the API server has them."""

from __future__ import annotations

from typing import Any

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import (
    ANNOTATION_BORROWS,
    ANNOTATION_PLAN,
    ANNOTATION_PLANNED,
    ANNOTATION_USER,
    ANNOTATION_WAITS,
    GATE,
)
from coda_kube.objects.quantities import time_from_seconds

CREATED_S = 1_700_000_000.0
PODS = "/api/v1/namespaces/default/pods"


def phase(name: str, *, started_s: float = 0.0, finished_s: float = 0.0) -> Json:
    """A pod's status."""
    state: Json = {}
    if finished_s:
        state = {"terminated": {"startedAt": time_from_seconds(started_s), "finishedAt": time_from_seconds(finished_s)}}
    elif started_s:
        state = {"running": {"startedAt": time_from_seconds(started_s)}}
    return {"phase": name, "containerStatuses": [{"name": "main", "state": state}]}


def evicted(name: str, reason: str = "EvictionByEvictionAPI") -> Json:
    """The status of a pod that has to go."""
    return phase(name) | {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


def cpu_pod(
    status: Json,
    *,
    name: str = "work",
    gated: bool = False,
    borrows: bool = False,
    waits: str = "",
    node: str | None = "n1",
    owner: str | None = "sweep",
    cpu: str = "2",
    created_s: float = CREATED_S,
    uid: str = "",
) -> Json:
    """A pod of the Job `owner` that waited ten seconds and was released."""
    notes: dict[str, Any] = {ANNOTATION_USER: "ann"}
    if not gated:
        notes |= {ANNOTATION_PLAN: "p1", ANNOTATION_PLANNED: time_from_seconds(created_s + 10.0)}
        notes |= {ANNOTATION_BORROWS: "true"} if borrows else {}
        notes |= {ANNOTATION_WAITS: waits} if waits else {}
    owners = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}
    ] * bool(owner)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "creationTimestamp": time_from_seconds(created_s),
            "annotations": notes,
            "ownerReferences": owners,
        },
        "spec": {
            "schedulerName": "coda",
            "schedulingGates": [{"name": GATE}] if gated else [],
            **({"nodeName": node} if node and not gated else {}),
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}],
        },
        "status": status,
    }
