"""What a job's pods and its Service look like: TrainingJob JSON in, object JSON out.

Every rank gets the environment that `torchrun` and plain DDP scripts read; what the user set stays. The pods share
parts of the job's template, so they may be sent but not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any
from zlib import crc32

from coda.allocator.memory_growth import RankMemory
from coda.model import Placement
from coda.model.job import SharingWish
from coda.model.seats import SHARING, seat_name
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import (
    ANNOTATION_CORES,
    ANNOTATION_GPU_MEMORY,
    ANNOTATION_MAIN,
    ANNOTATION_PLAN,
    ANNOTATION_USER,
    API_VERSION,
    GPU,
    JOB_DIRECTORY,
    JOB_VARIABLE,
    JOB_VOLUME,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    POOL_TAINT,
    RANK_FINALIZER,
    SCHEDULER,
    SHARING_LIBRARY,
    pod_name,
    rank_hostname,
)
from coda_kube.objects.pods.node_terms import pinned
from coda_kube.objects.quantities import quantity_from_bytes, whole_from_quantity
from coda_kube.objects.read import AUTO
from coda_operator.reconcile.seat_environment import with_environment_of_seats

MASTER_PORT = 29500  # torchrun's default
HOST_PORTS = range(20000, 30000)
"""Ports of jobs on their nodes' network. Our choice: below NodePorts (30000) and those of connections (32768)."""

Job = Mapping[str, Any]

_NODE_TROUBLE = tuple(
    {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute"}
    for trouble in ("not-ready", "unreachable")
)
"""Coda judges itself when a node is lost. Without these, Kubernetes would evict the ranks after 5 min in any case."""

_KEEPS_ITS_NODE = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Who moves one rank ends the whole attempt. Karpenter does not see a rank's pin, so it takes it for one that fits
elsewhere. Source: Karpenter's `newPodRequirements`, which reads no `matchFields`; Cluster Autoscaler's FAQ."""


def probe_pod(
    job: Job, *, attempt: int, cores: int, memory: RankMemory | None = None, pool_taints: Iterable[str] = ()
) -> Json:
    """Return one pod of the gang for the dry run: as it is created later, but not pinned and without a fixed name.

    That of an opportunistic job has no GPU, and no seat: nobody knows yet on which GPU. `pool_taints`: keys of taints
    that ranks without a GPU of their own tolerate."""
    pod = _pod(job, attempt=attempt, rank=0, cores=cores, memory=memory)
    if is_opportunistic(job):
        pod["spec"] |= _without_gpu(pod["spec"], {}, pool_taints)
    pod["metadata"]["generateName"] = f"{job['metadata']['name']}-"
    return pod


def rank_pod(
    job: Job, placement: Placement, rank: int, memory: RankMemory | None = None, pool_taints: Iterable[str] = ()
) -> Json:
    """Return the pod of `rank`, pinned to the node of its placement. `memory`: grown after one was killed for it.

    `pool_taints`: as in `probe_pod`."""
    pod = _pod(job, attempt=placement.attempt, rank=rank, cores=placement.cpus_per_replica, memory=memory)
    if placement.gpus:
        pod["spec"] |= _without_gpu(pod["spec"], {seat_name(placement.gpus[rank]): "1"}, pool_taints)
    elif placement.joinable:
        pod["spec"]["containers"] = _with_amounts(pod["spec"]["containers"], {SHARING: "1"})
    if placement.gpus or placement.joinable:
        pod["spec"]["containers"] = _with_library(pod["spec"]["containers"])
    pod["metadata"]["name"] = pod_name(job["metadata"]["name"], placement.attempt, rank)
    pod["metadata"]["annotations"][ANNOTATION_PLAN] = placement.plan_id
    if job["spec"].get("cpusPerReplica") == AUTO and job["spec"]["replicas"] > 1 and not placement.gpus:
        pod["metadata"]["annotations"][ANNOTATION_CORES] = AUTO
    pod["spec"]["affinity"] = pinned(pod["spec"].get("affinity") or {}, placement.nodes[rank])
    return pod


def is_opportunistic(job: Job) -> bool:
    """True if no rank of the job ever has a GPU of its own."""
    return bool(job["spec"].get("serviceClass") == SharingWish.OPPORTUNISTIC.value)


def headless_service(job: Job) -> Json:
    """Return the Service under which all ranks find rank 0, also before it is ready.

    It selects rank 0 only, unless the job wants the names of all: then Kubernetes writes the addresses of the whole
    gang at each pod's start."""
    metadata = job["metadata"]
    all_ranks = job["spec"].get("dnsNames") == "AllRanks"
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
            "selector": {LABEL_JOB_UID: metadata["uid"]} | ({} if all_ranks else {LABEL_RANK: "0"}),
            "ports": [{"name": "rendezvous", "port": _master_port(job)}],
        },
    }


def _pod(job: Job, *, attempt: int, rank: int, cores: int, memory: RankMemory | None) -> Json:
    metadata, spec = job["metadata"], job["spec"]
    template_metadata, wanted = spec["template"].get("metadata") or {}, spec["template"]["spec"]
    main, *others = wanted["containers"]
    main = main if memory is None else _with_memory(main, memory)
    pod_spec = wanted | {
        "restartPolicy": "Never",
        "schedulerName": SCHEDULER,
        "hostname": rank_hostname(attempt, rank),
        "subdomain": metadata["name"],
        "tolerations": [*(wanted.get("tolerations") or ()), {"key": POOL_TAINT, "operator": "Exists"}, *_NODE_TROUBLE],
        "containers": [_equipped(main, job, attempt=attempt, rank=rank, cores=cores), *others],
    }
    if spec["replicas"] > 1 and wanted.get("hostNetwork") and not wanted.get("dnsPolicy"):
        pod_spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # by default its node's resolver is asked, for rank 0 too
    if spec.get("reportProgress", True) and (rank == 0 or spec.get("stopNoticeSeconds")):
        pod_spec |= _job_directory(pod_spec)
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
            "annotations": _KEEPS_ITS_NODE
            | (template_metadata.get("annotations") or {})
            | _stamp(metadata)
            | {ANNOTATION_MAIN: main["name"]}
            | ({ANNOTATION_GPU_MEMORY: str(spec["gpuMemory"])} if spec.get("gpuMemory") else {}),
            "ownerReferences": [_owner(metadata)],
            "finalizers": [RANK_FINALIZER],
        },
        "spec": pod_spec,
    }


def _master_port(job: Job) -> int:
    """Return the port of rank 0. On its node's network it is the job's own: another rank 0 may be on that node.

    Jobs share one with a probability of 1 in 10 000; then the second fails, and may set MASTER_PORT."""
    if not job["spec"]["template"]["spec"].get("hostNetwork"):
        return MASTER_PORT
    return HOST_PORTS[crc32(job["metadata"]["uid"].encode()) % len(HOST_PORTS)]


def _stamp(metadata: Mapping[str, Any]) -> Json:
    """Who asked for the job asked for its pods."""
    notes = metadata.get("annotations") or {}
    return {ANNOTATION_USER: notes[ANNOTATION_USER]} if ANNOTATION_USER in notes else {}


def _owner(metadata: Mapping[str, Any]) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def _with_memory(container: Job, memory: RankMemory) -> Json:
    """Return the container with grown memory. An edit of the template may have asked for more since: that counts."""
    resources = dict(container.get("resources") or {})
    for kind, grown in (("requests", memory.request_bytes), ("limits", memory.limit_bytes)):
        amounts = resources.get(kind) or {}
        if grown > whole_from_quantity(amounts.get("memory") or 0):
            resources[kind] = amounts | {"memory": quantity_from_bytes(grown)}
    return {**container, "resources": resources}


def _equipped(container: Job, job: Job, *, attempt: int, rank: int, cores: int) -> Json:
    """Return the main container with its GPUs, cores and rendezvous.

    Kubernetes expands `$(NAME)` where NAME was set before: so Coda's variables are first, and what follows the user's
    is last."""
    resources = container.get("resources") or {}
    own = {"cpu": str(cores), GPU: str(job["spec"]["gpusPerReplica"])}
    amounts = {kind: (resources.get(kind) or {}) | own for kind in ("requests", "limits")}
    env = container.get("env") or ()
    taken = {entry.get("name") for entry in env}
    follows = {f"PET_{name}": f"$({name})" for name in ("MASTER_ADDR", "MASTER_PORT") if name in taken}  # torchrun's
    wanted = _rendezvous(job, attempt=attempt, rank=rank)
    before = _variables(wanted, taken | follows.keys())
    return {**container, "resources": resources | amounts, "env": [*before, *env, *_variables(follows, taken)]}


def _variables(value_by_name: Mapping[str, str], taken: Set[str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in value_by_name.items() if name not in taken]


def _without_gpu(spec: Job, seat: dict[str, str], pool_taints: Iterable[str]) -> Json:
    """Return containers with a seat instead of GPUs of their own, or with nothing instead, and their tolerations.

    The API server lets pods tolerate the taint nvidia.com/gpu that ask for such a GPU, where its admission plugin
    ExtendedResourceToleration is on. These ask for none."""
    main, *others = spec["containers"]
    amounts = {
        kind: {name: amount for name, amount in main["resources"][kind].items() if name != GPU}
        for kind in ("requests", "limits")
    }
    more = [{"key": key, "operator": "Exists"} for key in pool_taints]
    containers = _with_amounts([{**main, "resources": main["resources"] | amounts}, *others], seat)
    return with_environment_of_seats({**spec, "containers": containers}) | {
        "tolerations": [*spec["tolerations"], *more],
    }


def _with_amounts(containers: list[Json], more: dict[str, str]) -> list[Json]:
    """Return the containers; the main one asks for more."""
    main, *others = containers
    amounts = {kind: main["resources"][kind] | more for kind in ("requests", "limits")}
    return [{**main, "resources": main["resources"] | amounts}, *others]


def _with_library(containers: list[Json]) -> list[Json]:
    """Return the containers; what the main one preloads by its own words comes after Coda's library.

    What a pod sets hides what a seat brings. A value from elsewhere (`valueFrom`) is not known here, and stays."""
    main, *others = containers
    env = [
        entry | {"value": _after_library(entry.get("value") or "")}
        if entry.get("name") == "LD_PRELOAD" and "valueFrom" not in entry
        else entry
        for entry in main["env"]
    ]
    return [{**main, "env": env}, *others]


def _after_library(preloaded: str) -> str:
    if SHARING_LIBRARY in preloaded:
        return preloaded
    return f"{SHARING_LIBRARY}:{preloaded}" if preloaded else SHARING_LIBRARY


def _job_directory(spec: Job) -> Json:
    """Return volumes and containers with the directory in which the main container may say how far it is.

    Nothing, where the user has one of these names already. On the node's disk, not in memory: the agent sees no
    mounts of pods. Without a size limit: a pod that exceeds one is evicted, and a report is no reason for that."""
    main, *others = spec["containers"]
    env, mounts, volumes = main["env"], main.get("volumeMounts") or (), spec.get("volumes") or ()
    is_taken = (
        any(entry.get("name") == JOB_VARIABLE for entry in env)
        or any(mount.get("mountPath", "").rstrip("/") == JOB_DIRECTORY for mount in mounts)
        or any(volume.get("name") == JOB_VOLUME for volume in volumes)
    )
    if is_taken:
        return {}
    equipped = main | {
        "env": [{"name": JOB_VARIABLE, "value": JOB_DIRECTORY}, *env],
        "volumeMounts": [*mounts, {"name": JOB_VOLUME, "mountPath": JOB_DIRECTORY}],
    }
    return {
        "volumes": [*volumes, {"name": JOB_VOLUME, "emptyDir": {}}],
        "containers": [equipped, *others],
    }


def _rendezvous(job: Job, *, attempt: int, rank: int) -> dict[str, str]:
    """Source: torch.distributed environment variables; PET_* are torchrun's arguments by environment.

    NODE_RANK is Lightning's, where no torchrun starts it: it starts a process per GPU itself. Nothing here is a local
    rank: launchers set that for each process."""
    metadata, spec = job["metadata"], job["spec"]
    replicas, port = int(spec["replicas"]), str(_master_port(job))
    master = "localhost"
    if replicas > 1:
        master = f"{rank_hostname(attempt, 0)}.{metadata['name']}.{metadata['namespace']}.svc"
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(replicas),
        "RANK": str(rank),
        "NODE_RANK": str(rank),
        "PET_NNODES": str(replicas),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(spec["gpusPerReplica"]),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
    }
