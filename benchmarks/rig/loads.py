"""What is submitted: gangs, the same pods without Coda, and foreign pods. Objects only; `binding` creates them."""

from __future__ import annotations

import random
from typing import Final

from coda.model import Placement, PlacementState
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, GPU, KIND
from coda_lab.kubelets.behaviour import PREFIX
from coda_operator.reconcile.pod_spec import rank_pod

NAMESPACE: Final = "default"
JOBS: Final = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingjobs"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
GPUS_PER_RANK: Final = 4
CORES_PER_RANK: Final = 4


def gang_sizes(pods: int, *, seed: int = 4, least: int = 8, most: int = 64) -> list[int]:
    """Sizes that add up to `pods`, each `least` to `most` (the last takes what is left)."""
    rng = random.Random(seed)
    sizes: list[int] = []
    while (left := pods - sum(sizes)) > 0:
        sizes.append(min(left, rng.randint(least, most)))
    return sizes


def gang_json(name: str, replicas: int, *, gpus: int = GPUS_PER_RANK, run_s: float | None = None) -> Json:
    """A TrainingJob whose pods run for `run_s`; None: until they are deleted."""
    notes = {} if run_s is None else {f"{PREFIX}run-seconds": f"{run_s:g}"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": {"memory": "8Gi"}}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "gpusPerReplica": gpus,
            "cpusPerReplica": CORES_PER_RANK,
            "template": {
                "metadata": {"annotations": notes},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    }


def plain_pods(gang: Json) -> list[Json]:
    """The pods of a gang as somebody without Coda would create them: by Coda's own code, but not pinned or owned."""
    replicas = gang["spec"]["replicas"]
    placement = Placement(
        plan_id="",
        attempt=1,
        epoch=0,
        generation=1,
        state=PlacementState.RELEASED,
        nodes=("",) * replicas,
        cpus_per_replica=CORES_PER_RANK,
        committed_s=0.0,
        bind_deadline_s=0.0,
    )
    owned = gang | {"metadata": gang["metadata"] | {"uid": ""}}
    return [_without_coda(rank_pod(owned, placement, rank), gang["metadata"]["name"]) for rank in range(replicas)]


def foreign_pods(count: int) -> list[Json]:
    """Pods of the default profile, every second one with a GPU, that run until they are deleted."""
    return [_foreign_pod(f"other-{number}", gpus=number % 2) for number in range(count)]


def _without_coda(pod: Json, owner: str) -> Json:
    kept = {key: pod["metadata"][key] for key in ("name", "namespace")}
    notes = {key: text for key, text in pod["metadata"]["annotations"].items() if key.startswith(PREFIX)}
    pod["metadata"] = kept | {"labels": {"app": owner}, "annotations": notes}
    for name in ("affinity", "tolerations"):  # the pin, and the pool's taint: only Coda's pods may tolerate it
        pod["spec"].pop(name, None)
    return pod


def _foreign_pod(name: str, *, gpus: int) -> Json:
    amounts = {"cpu": "2", "memory": "4Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {"name": "main", "image": "other:1", "resources": {"limits": amounts, "requests": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "other"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
