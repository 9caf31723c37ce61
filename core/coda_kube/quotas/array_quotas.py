"""ArrayQuota objects: how the nodes that each selects are divided, and what their arrays hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.history.division import EVERY_S, PastUse, Shares, next_shares
from coda.model.world import ArrayQuota
from coda.nodes.array_use import QuotaUse, Share
from coda.policy import ArraysConfig
from coda.policy.division import shares_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import quantity_from_milli, seconds_from_time, time_from_seconds

AUTO: Final = "Auto"

_FROM_THE_PAST: Final = frozenset({"History", "TooFewJobs"})
"""Sources of a division of Auto."""


def array_quota_from_json(item: Json) -> ArrayQuota:
    """Return what the object says. What it leaves open is as the installation says.

    With Auto, what its status has counts: the last step."""
    metadata, spec = item["metadata"], item.get("spec") or {}
    array: Mapping[str, Any] = spec.get("gpuArray") or {}
    cores, large = array.get("coresPerGPU"), array.get("largeGPUs")
    is_auto = spec.get("division") == AUTO
    known: Mapping[str, Any] = (item.get("status") or {}).get("division") or {}
    if is_auto and known.get("source") in _FROM_THE_PAST:
        cores, large = known["coresPerGPU"], known["largeShare"]
    return ArrayQuota(
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        selector=dict(spec.get("nodeSelector") or {}),
        reserve_cores_per_gpu=None if cores is None else float(cores),
        large_gpus=large if isinstance(large, int) else None,
        large_share=int(large.removesuffix("%")) / 100 if isinstance(large, str) else None,
        is_auto=is_auto,
    )


def division_status(
    quota: ArrayQuota, gpus: int, arrays: ArraysConfig, past: PastUse, told: Json, now_s: float
) -> Json:
    """Return `status.division`. `gpus`: of its nodes. `told`: the same as it is now; for Auto it may take a step."""
    shares = shares_of(quota, gpus, arrays)
    if not quota.is_auto:
        return _division("Static", 0, shares)
    knows = past.cores_per_gpu is not None or past.large_share is not None
    since_s = seconds_from_time(told.get("since"))
    if told.get("source") not in _FROM_THE_PAST or now_s - since_s >= EVERY_S or now_s < since_s:
        stepped = next_shares(shares, past)
        if stepped != shares or not since_s:
            since_s = now_s
        shares = stepped
    division = _division("History" if knows else "TooFewJobs", past.jobs, shares)
    return division | {"since": time_from_seconds(since_s)}


def _division(source: str, jobs: int, shares: Shares) -> Json:
    return {
        "source": source,
        "jobs": jobs,
        "coresPerGPU": f"{round(shares.cores_per_gpu, 3):g}",
        "largeShare": f"{round(100 * shares.large_share)}%",
    }


def array_quota_status(item: Json, use: QuotaUse, division: Json, *, policy: str, has_arrays: bool) -> Json:
    """Return the object's `status`, but for the times of its conditions. `policy`: the one in force."""
    return {
        "observedGeneration": int(item["metadata"].get("generation") or 0),
        "nodes": use.nodes,
        "division": division,
        "gpuArray": {
            "largeGPUs": _gpus(use.large_gpus),
            "smallGPUs": _gpus(use.small_gpus),
            "cpus": _cpus(use.gpu_jobs_cpu_m, waits=False),
        },
        "cpuArray": {"cpus": _cpus(use.cpu_jobs_cpu_m, waits=True)},
        "conditions": [_active(policy, use, has_arrays=has_arrays), _overlapping(use), _exceeded(use)],
    }


def _gpus(share: Share) -> Json:
    return {
        "reserved": share.reserved,
        "used": share.used,
        "lent": share.lent,
        "borrowed": share.borrowed,
        "waiting": share.waiting,
    }


def _cpus(share: Share, *, waits: bool) -> Json:
    amounts = _gpus(share)
    if not waits:
        del amounts["waiting"]
    return {key: quantity_from_milli(amount) for key, amount in amounts.items()}


def _active(policy: str, use: QuotaUse, *, has_arrays: bool) -> Json:
    if not has_arrays:
        message = f"the policy {policy} has no arrays: all jobs share all nodes"
        return _condition("Active", "PolicyWithoutArrays", message, is_true=False)
    if not use.nodes:
        return _condition("Active", "NoNodes", "it divides no node: check spec.nodeSelector", is_true=False)
    return _condition("Active", "Divided", "its nodes are divided as it says", is_true=True)


def _overlapping(use: QuotaUse) -> Json:
    if not use.shared_nodes:
        return _condition("Overlapping", "Disjoint", "no other ArrayQuota selects its nodes", is_true=False)
    node = min(use.shared_nodes)
    count = len(use.shared_nodes)
    what = "one of its nodes is" if count == 1 else f"{count} of its nodes are"
    message = f"{what} selected by another ArrayQuota too, such as {node} by {use.shared_nodes[node]}: the older counts"
    return _condition("Overlapping", "SelectedTwice", message, is_true=True)


def _exceeded(use: QuotaUse) -> Json:
    if not use.excess_cpu_m:
        return _condition("Exceeded", "WithinQuota", "CPU jobs hold no more than their array has", is_true=False)
    cores = quantity_from_milli(use.excess_cpu_m)
    message = f"CPU jobs hold {cores} cores that belong to the GPU array now: they come back as these jobs end"
    return _condition("Exceeded", "HeldByJobs", message, is_true=True)


def _condition(kind: str, reason: str, message: str, *, is_true: bool) -> Json:
    return {"type": kind, "status": "True" if is_true else "False", "reason": reason, "message": message}
