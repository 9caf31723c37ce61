"""What the story of `coda demo` submits, as a user would write it, for two nodes of 8 GPUs and 48 cores.

Annotations `load.coda.scheduler/` and `sim.coda.scheduler/` say what the simulated programs do. A real cluster ignores
them.
"""

from __future__ import annotations

from typing import Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND, OPT_IN, THROTTLING

NODES: Final = "2x8x48"
TUNED_NODE, VICTIM_NODE = "node-0000", "node-0001"
TRAINING: Final = "default"  # the namespaces
CPU_JOBS: Final = "batch"
ANALYTICS: Final = "analytics"
BUSY_WITH: Final = 9  # cores that keep the GPU of `resnet` busy; it starts with 4
WEB_PODS, WEB_CORES = 26, 3
_STREAM_GB_PER_S: Final = 200  # more than a socket of the emulated machines has

NAMESPACES: Final[tuple[Json, ...]] = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CPU_JOBS, "labels": {OPT_IN: "true"}}},
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ANALYTICS, "labels": {THROTTLING: "true"}}},
)


def training_job(name: str, *, replicas: int = 1, gpus: int = 1, cpus: int | str = "auto", node: str = "") -> Json:
    """A TrainingJob that never ends by itself. Its GPUs are busy with `BUSY_WITH` cores or more."""
    loads = {"cores-needed": str(BUSY_WITH), "noise": "0.002", "gb-per-second": "10"}
    amounts = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    spec: Json = {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "train:1", "resources": amounts}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    notes = {f"load.coda.scheduler/{key}": value for key, value in loads.items()}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": TRAINING},
        "spec": {
            "replicas": replicas,
            "gpusPerReplica": gpus,
            "cpusPerReplica": cpus,
            "template": {"metadata": {"annotations": notes}, "spec": spec},
        },
    }


def web() -> Json:
    """A Deployment whose pods take most of the cores that training leaves idle."""
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": str(WEB_CORES)}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": CPU_JOBS},
        "spec": {
            "replicas": WEB_PODS,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    }


def stream(gb_per_second: int = _STREAM_GB_PER_S) -> Json:
    """A CPU pod that takes all memory bandwidth of its node."""
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "16"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stream", "namespace": ANALYTICS, "annotations": stream_notes(gb_per_second)},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": VICTIM_NODE},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "stream", "image": "stream:1", "resources": resources}],
        },
    }


def stream_notes(gb_per_second: int) -> dict[str, str]:
    """How much bandwidth `stream` wants."""
    return {"load.coda.scheduler/gb-per-second": str(gb_per_second)}
