"""Clusters made up in memory as the objects' JSON, and how they change: the planner reads them as it reads a watch."""

from __future__ import annotations

import random
from typing import Any

from coda.model.decision import Start

Json = dict[str, Any]

GPUS_PER_NODE = 8
RACK = 40
_SHAPES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8), (32, 8)]  # replicas, GPUs of each
_WEIGHTS = [56, 16, 14, 7, 4, 3, 2, 1, 1]


def node_json(number: int, *, version: int = 1, ready: bool = True) -> Json:
    """A node of 8 GPUs and 96 cores, 40 to a rack."""
    name = f"node-{number:05d}"
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/hostname": name, "topology.coda.scheduler/rack": f"rack-{number // RACK}"},
        },
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "768Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def job_json(number: int, replicas: int, gpus: int, cores: int, memory_gib: int) -> Json:
    """An accepted job that waits."""
    return {
        "metadata": {
            "name": f"job-{number}",
            "namespace": f"team-{number % 12}",
            "uid": f"uid-{number}",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {"replicas": replicas, "gpusPerReplica": gpus},
        "status": {
            "phase": "Queued",
            "attempt": 1,
            "observedGeneration": 1,
            "queuedTime": f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
            "request": {
                "resources": {"nvidia.com/gpu": str(gpus), "cpu": str(cores), "memory": f"{memory_gib}Gi"},
                "cpusPerReplica": cores,
                "priority": 0,
            },
        },
    }


def random_job(number: int, rng: random.Random) -> Json:
    """Sizes as clusters publish them: most of one GPU, few gangs, cores by category, one of a few memory sizes."""
    replicas, gpus = rng.choices(_SHAPES, _WEIGHTS)[0]
    return job_json(number, replicas, gpus, gpus * rng.choice((3, 4, 5, 6)), gpus * rng.choice((16, 32, 64)))


def with_status(item: Json, **status: Any) -> Json:
    """The object's next version."""
    metadata = item["metadata"] | {"resourceVersion": str(int(item["metadata"]["resourceVersion"]) + 1)}
    return item | {"metadata": metadata, "status": item["status"] | status}


def released(item: Json, start: Start) -> Json:
    """The job with the plan that starts it, as its status says so."""
    placement = {
        "attempt": start.attempt,
        "planId": f"plan-{item['metadata']['uid']}",
        "epoch": 1,
        "generation": start.generation,
        "state": "Released",
        "nodes": list(start.nodes),
        "cpusPerReplica": start.cpus_per_replica,
        "committedTime": "2026-01-02T00:00:00Z",
        "bindDeadline": "2036-01-01T00:00:00Z",
    }
    return with_status(item, placement=placement)


def rank_pods(item: Json, *, bound: bool) -> list[Json]:
    """The pods of a released job."""
    metadata, placement = item["metadata"], item["status"]["placement"]
    requests = item["status"]["request"]["resources"]
    return [
        {
            "metadata": {
                "name": f"{metadata['name']}-1-{rank}",
                "namespace": metadata["namespace"],
                "uid": f"{metadata['uid']}-{rank}",
                "resourceVersion": "2" if bound else "1",
                "labels": {
                    "coda.scheduler/job": metadata["name"],
                    "coda.scheduler/job-uid": metadata["uid"],
                    "coda.scheduler/attempt": "1",
                    "coda.scheduler/rank": str(rank),
                },
                "annotations": {"coda.scheduler/plan": placement["planId"]},
                "ownerReferences": [
                    {
                        "apiVersion": "coda.scheduler/v1alpha1",
                        "kind": "TrainingJob",
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "schedulerName": "coda",
                "containers": [{"name": "main", "resources": {"requests": requests}}],
                "affinity": _pinned_to(node),
            }
            | ({"nodeName": node} if bound else {}),
            "status": {"phase": "Running" if bound else "Pending"},
        }
        for rank, node in enumerate(placement["nodes"])
    ]


def _pinned_to(node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
