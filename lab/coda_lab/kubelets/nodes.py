"""The simulated nodes: shapes, names, racks, and the JSON of Node and Lease. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coda.errors import InvalidInput
from coda.model.seats import MEMORY_LABEL, SHARING, seat_name
from coda_kube.objects import names
from coda_kube.objects.quantities import micro_time_from_seconds, time_from_seconds, whole_from_quantity
from coda_lab.kubelets.pods.statuses import HOST_ADDRESS

Json = dict[str, Any]

LABEL_SIMULATED: Final = f"local.{names.GROUP}/simulated"
LABEL_RACK: Final = f"topology.{names.GROUP}/rack"
MOST_NODES: Final = 5000
PODS_PER_NODE: Final = 110  # a kubelet's default
GPU_MIB: Final = 80 * 1024  # memory of each GPU of a node with seats
_EPHEMERAL_STORAGE: Final = "1Ti"
_SHAPE: Final = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,5})")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One simulated node, as it registers itself."""

    name: str
    index: int
    rack: str
    gpus: int
    cpus: int
    memory: str
    is_tainted: bool = False  # with Coda's pool taint
    pods: int = PODS_PER_NODE
    seats: int = 0  # on each GPU, as the agent's device plugin offers them

    @property
    def allocatable(self) -> Mapping[str, str]:
        """All its resources, as quantities."""
        seats = {seat_name(gpu): str(self.seats) for gpu in range(self.gpus)} | {SHARING: "128"} if self.seats else {}
        return seats | {
            "cpu": str(self.cpus),
            "memory": self.memory,
            names.GPU: str(self.gpus),
            "pods": str(self.pods),
            "ephemeral-storage": _EPHEMERAL_STORAGE,
        }


def node_specs(
    shapes: str, *, racks: int, prefix: str = "node", memory: str = "512Gi", is_tainted: bool = False
) -> tuple[NodeSpec, ...]:
    """The nodes of `shapes` ("8x8x48,4x4x28": count x GPUs x cores), in contiguous racks as equal as can be.

    Names are padded so that they sort. Raises InvalidInput with the option's name."""
    sizes = [size for shape in shapes.split(",") for size in _sizes(shape)]
    if not 1 <= len(sizes) <= MOST_NODES:
        raise InvalidInput(f"--nodes {shapes} is {len(sizes)} nodes: give 1 to {MOST_NODES}")
    if not 1 <= racks <= len(sizes):
        raise InvalidInput(f"--racks {racks}: give 1 to {len(sizes)}, so that no rack is empty")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput(f"--prefix {prefix!r}: give a DNS label of at most 42 characters (a-z, 0-9 and '-')")
    if whole_from_quantity(memory) <= 0:
        raise InvalidInput(f"--memory {memory}: give a quantity above zero, such as 512Gi")
    return tuple(
        NodeSpec(
            name=f"{prefix}-{index:04d}",
            index=index,
            rack=f"rack-{index * racks // len(sizes)}",
            gpus=gpus,
            cpus=cpus,
            memory=memory,
            is_tainted=is_tainted,
        )
        for index, (gpus, cpus) in enumerate(sizes)
    )


def _sizes(shape: str) -> list[tuple[int, int]]:
    match = _SHAPE.fullmatch(shape.strip())
    if match is None or int(match[1]) == 0 or int(match[3]) == 0:
        raise InvalidInput(
            f"--nodes: {shape!r} is no shape such as 8x8x48 (nodes x GPUs x cores, nodes and cores above 0)"
        )
    return [(int(match[2]), int(match[3]))] * int(match[1])


def node_json(spec: NodeSpec, *, port: int, version: str, now_s: float) -> Json:
    """The Node as its kubelet creates it, Ready."""
    return {"apiVersion": "v1", "kind": "Node"} | node_patch(spec) | node_status(spec, port, version, now_s)


def node_patch(spec: NodeSpec) -> Json:
    """The fields that a Node of that name must have beside its status, made by us or not."""
    labels = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        LABEL_RACK: spec.rack,
        LABEL_SIMULATED: "true",
    }
    if spec.seats:
        labels[MEMORY_LABEL] = str(GPU_MIB)
    patch: Json = {"metadata": {"name": spec.name, "labels": labels}}
    if spec.is_tainted:
        patch["spec"] = {"taints": [{"key": names.POOL_TAINT, "effect": "NoSchedule"}]}
    return patch


def node_status(spec: NodeSpec, port: int, version: str, now_s: float, *, boots: int = 0) -> Json:
    """The part of the Node that its kubelet writes: capacity, conditions, where its logs are."""
    conditions = [_condition("Ready", "True", "KubeletReady", "simulated kubelet is ready", now_s)]
    for kind, reason, message in (
        ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ):
        conditions.append(_condition(kind, "False", reason, message, now_s))
    return {
        "status": {
            "capacity": dict(spec.allocatable),
            "allocatable": dict(spec.allocatable),
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": HOST_ADDRESS},
                {"type": "Hostname", "address": spec.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "machineID": spec.name,
                "systemUUID": spec.name,
                "bootID": f"{spec.name}-{boots}" if boots else spec.name,
                "kernelVersion": "simulated",
                "osImage": "simulated",
                "containerRuntimeVersion": "simulated://1",
                "kubeletVersion": version,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        }
    }


def _condition(kind: str, status: str, reason: str, message: str, now_s: float) -> Json:
    now = time_from_seconds(now_s)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def is_ready(node: Mapping[str, Any]) -> bool:
    """True when the Node says Ready=True."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def lease_json(node: Mapping[str, Any], *, duration_s: float, now_s: float) -> Json:
    """The node's heartbeat Lease, owned by the Node so that it goes with it."""
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": round(duration_s),
            "renewTime": micro_time_from_seconds(now_s),
        },
    }
