"""What a job's pods and its Service look like. Pure: TrainingJob JSON in, object JSON out.

Every rank gets what `torchrun` and plain DDP scripts read from the environment; what the user set stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from coda.model import Placement
from coda_kube.client import Json
from coda_kube.naming import (
    ANNOTATION_PLAN,
    API_VERSION,
    GPU,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    POOL_TAINT,
    SCHEDULER,
    pod_name,
    rank_hostname,
)

MASTER_PORT = 29500  # torchrun's default

Job = Mapping[str, Any]


def probe_pod(job: Job, *, attempt: int, cores: int) -> Json:
    """One pod of the gang for the dry run: as it will be created, but not pinned and without a name of its own."""
    pod = _pod(job, attempt=attempt, rank=0, cores=cores)
    pod["metadata"]["generateName"] = f"{job['metadata']['name']}-"
    return pod


def rank_pod(job: Job, placement: Placement, rank: int) -> Json:
    """The pod of `rank`, pinned to its planned node."""
    pod = _pod(job, attempt=placement.attempt, rank=rank, cores=placement.cpus_per_replica)
    pod["metadata"]["name"] = pod_name(job["metadata"]["name"], placement.attempt, rank)
    pod["metadata"].setdefault("annotations", {})[ANNOTATION_PLAN] = placement.plan_id
    _pin(pod["spec"], placement.nodes[rank])
    return pod


def headless_service(job: Job) -> Json:
    """The Service under which all ranks find rank 0, also before it is ready.

    Of rank 0 only: with all ranks, each pod's start is a write of the whole gang's addresses by Kubernetes."""
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": metadata["name"],
            "labels": {LABEL_JOB: metadata["name"]},
            "ownerReferences": [_owner(metadata)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB_UID: metadata["uid"], LABEL_RANK: "0"},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT}],
        },
    }


def _pod(job: Job, *, attempt: int, rank: int, cores: int) -> Json:
    metadata, spec = job["metadata"], job["spec"]
    template = deepcopy(spec["template"])
    template_metadata = template.get("metadata") or {}
    pod_spec = template["spec"]
    pod_spec |= {
        "restartPolicy": "Never",
        "schedulerName": SCHEDULER,
        "hostname": rank_hostname(attempt, rank),
        "subdomain": metadata["name"],
    }
    pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or ()), {"key": POOL_TAINT, "operator": "Exists"}]
    _equip(pod_spec["containers"][0], job, attempt=attempt, rank=rank, cores=cores)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": metadata["namespace"],
            "labels": (template_metadata.get("labels") or {})
            | {
                LABEL_JOB: metadata["name"],
                LABEL_JOB_UID: metadata["uid"],
                LABEL_ATTEMPT: str(attempt),
                LABEL_RANK: str(rank),
            },
            "annotations": dict(template_metadata.get("annotations") or {}),
            "ownerReferences": [_owner(metadata)],
        },
        "spec": pod_spec,
    }


def _owner(metadata: Mapping[str, Any]) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def _equip(container: Json, job: Job, *, attempt: int, rank: int, cores: int) -> None:
    """Give the main container its GPUs, cores and rendezvous."""
    resources = container.setdefault("resources", {})
    for kind in ("requests", "limits"):
        amounts = resources.setdefault(kind, {})
        amounts |= {"cpu": str(cores), GPU: str(job["spec"]["gpusPerReplica"])}
    env = container.setdefault("env", [])
    taken = {entry.get("name") for entry in env}
    wanted = _rendezvous(job, attempt=attempt, rank=rank)
    env += [{"name": name, "value": value} for name, value in wanted.items() if name not in taken]


def _rendezvous(job: Job, *, attempt: int, rank: int) -> dict[str, str]:
    """Source: torch.distributed environment variables; PET_* are torchrun's arguments by environment."""
    metadata, spec = job["metadata"], job["spec"]
    replicas = int(spec["replicas"])
    master = "localhost"
    if replicas > 1:
        master = f"{rank_hostname(attempt, 0)}.{metadata['name']}.{metadata['namespace']}.svc"
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": str(replicas),
        "RANK": str(rank),
        "PET_NNODES": str(replicas),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(spec["gpusPerReplica"]),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(MASTER_PORT),
    }


def _pin(pod_spec: Json, node: str) -> None:
    """Require `node` beside whatever the user's affinity requires: terms are alternatives, so each one gets the pin."""
    node_affinity = pod_spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = node_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    required["nodeSelectorTerms"] = [term | {"matchFields": [*(term.get("matchFields") or ()), pin]} for term in terms]
