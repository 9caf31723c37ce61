"""Kubernetes objects as JSON, valid in one line."""

from __future__ import annotations

from typing import Any

from coda_kube.objects.names import (
    ANNOTATION_PLAN,
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
)
from coda_kube.objects.quantities import time_from_seconds

JOBS = f"/apis/{API_VERSION}/namespaces/default/trainingjobs"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/coda-system/leases"

Item = dict[str, Any]


def node_json(name: str, *, gpus: int = 8, cpu: int = 48, rack: str = "rack-0", ready: bool = True) -> Item:
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "topology.coda.scheduler/rack": rack},
        },
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus), "cpu": str(cpu), "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def job_json(
    name: str, *, replicas: int = 1, gpus: int = 8, phase: str = "Queued", attempt: int = 1, **status: Any
) -> Item:
    resources = {"nvidia.com/gpu": str(gpus), "cpu": "4", "memory": "8Gi"}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1},
        "spec": {"replicas": replicas, "gpusPerReplica": gpus},
        "status": {
            "phase": phase,
            "attempt": attempt,
            "observedGeneration": 1,
            "queuedTime": time_from_seconds(1_700_000_000),
            "request": {"resources": resources, "cpusPerReplica": 4},
            **status,
        },
    }


def placement(
    *nodes: str, state: str = "Released", attempt: int = 1, epoch: int = 1, plan: str = "plan", deadline_s: float = 4e9
) -> Item:
    return {
        "attempt": attempt,
        "planId": plan,
        "epoch": epoch,
        "generation": 1,
        "state": state,
        "nodes": list(nodes),
        "rank0Node": nodes[0],
        "cpusPerReplica": 4,
        "committedTime": time_from_seconds(1_700_000_000),
        "bindDeadline": time_from_seconds(deadline_s),
    }


def pod_json(
    name: str, *, gpus: int = 0, cpu: str = "1", node: str | None = None, scheduler: str = "coda", **more: Any
) -> Item:
    requests = {"cpu": cpu} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"} | more.get("metadata", {}),
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}],
        }
        | ({"nodeName": node} if node else {})
        | more.get("spec", {}),
        "status": {"phase": "Pending"} | more.get("status", {}),
    }


def rank_json(
    job: str, rank: int, pin: str, *, plan: str = "plan", attempt: int = 1, node: str | None = None, gpus: int = 8
) -> Item:
    """A gang's pod, as the operator creates it for `job_json(job, gpus=gpus)`."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pin]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    labels = {LABEL_JOB: job, LABEL_JOB_UID: f"uid-{job}", LABEL_ATTEMPT: str(attempt), LABEL_RANK: str(rank)}
    return pod_json(
        f"{job}-{attempt}-{rank}",
        gpus=gpus,
        cpu="4",
        node=node,
        metadata={"labels": labels, "annotations": {ANNOTATION_PLAN: plan}, "ownerReferences": [owner_of(job)]},
        spec={"affinity": {"nodeAffinity": required}},
    )


def owner_of(job: str) -> Item:
    """The owner reference to `job_json(job)` in a pod of its."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": job, "uid": f"uid-{job}", "controller": True}


def given_up(reason: str = "Unschedulable", message: str = "no") -> Item:
    """A pod's status once the scheduler gave up on it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition]}
