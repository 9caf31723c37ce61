"""CPU jobs of a trace as objects: a Job for each row, and its pods.

The replay is the Jobs' controller (`managedBy`), because Kubernetes' own makes an evicted pod anew only after 10 s or
longer. At speed 200 that is half an hour of the trace. Pods of such Jobs may borrow: they come back at no price.
"""

from __future__ import annotations

import copy
from typing import Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER, GATE, GROUP
from coda_lab.kubelets.behaviour import PREFIX as SIMULATION_PREFIX

MANAGED_BY: Final = f"{GROUP}/replay"
ANNOTATION_RUN_SECONDS: Final = f"{SIMULATION_PREFIX}run-seconds"
ANNOTATION_RUN_FROM: Final = f"{SIMULATION_PREFIX}run-from"
ANNOTATION_STOP_SECONDS: Final = f"{SIMULATION_PREFIX}stop-seconds"
STOP_S: Final = 0.2
"""Seconds of real time that a simulated pod takes to stop; a replay divides them by its speed."""


def jobs_path(namespace: str) -> str:
    """Return the API path of a namespace's Jobs."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def pods_path(namespace: str) -> str:
    """Return the API path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def batch_job(metadata: Json, *, pods: int, cpus: int, image: str, stop_s: float) -> Json:
    """Return the Job of a row: so many pods, each with `cpus` cores, of the user of `metadata`. It counts no eviction
    as a failure."""
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    annotations = {ANNOTATION_RUN_FROM: "placement", ANNOTATION_STOP_SECONDS: f"{stop_s:.6f}"}
    if (user := metadata["annotations"].get(ANNOTATION_USER)) is not None:
        annotations[ANNOTATION_USER] = user
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": str(cpus)}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "managedBy": MANAGED_BY,
            "parallelism": pods,
            "completions": pods,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [ignored]},
            "template": {
                "metadata": {"labels": dict(metadata["labels"]), "annotations": annotations},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container]},
            },
        },
    }


def pod_name(job: str, rank: int, attempt: int) -> str:
    """Return the name of a pod; ranks count from 0, attempts from 1."""
    return f"{job}-{rank}-{attempt}"


def pod_of(job: Json, *, uid: str, rank: int, attempt: int, run_s: float, exit_code: int = 0) -> Json:
    """Return a pod of the Job that runs for so long. `uid`: the Job's, as the API server gave it."""
    metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    spec, annotations = template["spec"], template["metadata"]["annotations"]
    annotations[ANNOTATION_RUN_SECONDS] = f"{run_s:.6f}"
    command = ["sleep", f"{run_s:.6f}"]
    if exit_code:
        annotations[f"{SIMULATION_PREFIX}exit-code"] = str(exit_code)
        command = ["sh", "-c", f"sleep {run_s:.6f}; exit {exit_code}"]
    spec["containers"][0]["command"] = command
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": pod_name(metadata["name"], rank, attempt),
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def is_gated(pod: Json) -> bool:
    """True if Coda's gate was put on the pod: its namespace has opted in."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())
