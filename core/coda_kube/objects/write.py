"""Model -> patches of TrainingJob status: bodies for server-side apply, safe to send twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.history.delay_causes import delay_cause
from coda.model import JobId, Placement
from coda.model.decision import Refusal, Start, name_for
from coda.sharing.job_classes import SharingClass
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND
from coda_kube.objects.pods.stops import stop_json
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.objects.tuning_status import answer_json

MOST_BESIDE: Final = 16
"""Jobs that `status.sharing` names at most."""


def job_path(job: JobId | str, *, status: bool = False) -> str:
    """Return the API path of a TrainingJob, or of its status."""
    namespace, name = job.split("/", 1)
    return f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs/{name}" + ("/status" if status else "")


def status_patch(job: JobId | str, status: Mapping[str, Any], *, uid: str, version: str | None = None) -> Json:
    """Return an apply body that owns exactly the fields in `status`.

    The API server refuses it for another object of that name (`uid`), and with `version` after any later write."""
    namespace, name = job.split("/", 1)
    metadata: Json = {"name": name, "namespace": namespace, "uid": uid}
    if version is not None:
        metadata["resourceVersion"] = version
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": dict(status)}


def placement_json(placement: Placement) -> Json:
    """Return `status.placement`, as `read.placement_from_json` reads it."""
    more: Json = {} if placement.answer is None else {"grant": answer_json(placement.answer)}
    if placement.borrows:
        more["borrows"] = True
    if placement.gpus:
        more["gpus"] = list(placement.gpus)
    if placement.stop is not None:
        more["stop"] = stop_json(placement.stop)
    return more | {
        "attempt": placement.attempt,
        "planId": placement.plan_id,
        "epoch": placement.epoch,
        "generation": placement.generation,
        "state": placement.state.value,
        "nodes": list(placement.nodes),
        "rank0Node": placement.nodes[0],
        "cpusPerReplica": placement.cpus_per_replica,
        "committedTime": time_from_seconds(placement.committed_s),
        "bindDeadline": time_from_seconds(placement.bind_deadline_s),
    }


def sharing_json(start: Start) -> Json:
    """Return `status.sharing` of a job that starts on seats, or may be joined; empty for others."""
    if start.joinable:
        return {"class": SharingClass.GUARANTEED.value}
    if not start.gpus:
        return {}
    namespace = start.job.split("/", 1)[0]
    beside = list(dict.fromkeys([name_for(namespace, job) for job in start.beside]))[:MOST_BESIDE]
    said: Json = {"class": SharingClass.OPPORTUNISTIC.value, "expectedSpeed": round(start.speed, 3)}
    return said | ({"beside": beside} if beside else {})


def with_sharing(placement: Placement, status: Mapping[str, Any]) -> Json:
    """Return the extender's part of a status with this placement; `status.sharing` stays as long as it shares."""
    body: Json = {"placement": placement_json(placement)}
    if (placement.gpus or placement.joinable) and "sharing" in status:
        body["sharing"] = status["sharing"]
    return body


def pending_json(refusal: Refusal, *, since_s: float) -> Json:
    """Return `status.pending`."""
    reason = refusal.reason
    return {
        "code": reason.code.value,
        "cause": delay_cause(reason).value,
        "message": reason.message,
        "generation": refusal.generation,
        "since": time_from_seconds(since_s),
        "numbers": dict(reason.numbers),
        "holders": list(refusal.holders),
    }
