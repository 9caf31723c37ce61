"""What is said to the kubelet: the seats there are, and what a container gets with one. Messages only; no socket here.

Source: k8s.io/kubelet `deviceplugin/v1beta1`. The kubelet names no pod when it asks, so the name of a resource alone
says which GPU is meant."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from coda.sharing.config import SharingConfig
from coda_agent.seats import device_plugin_v1beta1_pb2 as wire
from coda_agent.seats.grpc_server import Refusal, Refused
from coda_kube.objects.names import SHARING_LIBRARY

VERSION: Final = "v1beta1"
REGISTER: Final = "/v1beta1.Registration/Register"
OPTIONS: Final = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
LIST_AND_WATCH: Final = "/v1beta1.DevicePlugin/ListAndWatch"
ALLOCATE: Final = "/v1beta1.DevicePlugin/Allocate"

IN_CONTAINER: Final = "/run/coda"
"""Where a container finds everything of Coda."""

_VOLUME_MOUNTS: Final = "/var/run/nvidia-container-devices"  # the toolkit's folder of names of GPUs
_MOST_CONTAINERS: Final = 64
_MOST_DEVICES: Final = 64


class GpuAccess(Enum):
    """How a node's NVIDIA toolkit is told which GPU a container gets; the names are those of NVIDIA's device plugin."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_CRI = "cdi-cri"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One device of the kubelet's. `gpu`: the UUID of the GPU that it lets onto; None: none, it brings the files."""

    id: str
    gpu: str | None
    is_well: bool
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """What lies on the node for jobs. `framework`: the folder of one version; `socket`: where the agent listens."""

    framework: Path
    socket: Path


def registration(resource: str, endpoint: str) -> bytes:
    """Return the request by which a resource becomes known to the kubelet."""
    request = wire.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource)
    return bytes(request.SerializeToString())


def options() -> bytes:
    """Return that nothing is wanted before a container starts, and no seat is better than another."""
    return bytes(wire.DevicePluginOptions().SerializeToString())


def list_of(seats: Sequence[Seat]) -> bytes:
    """Return all seats of a resource, with their health."""
    devices = [
        wire.Device(
            ID=seat.id,
            health="Healthy" if seat.is_well else "Unhealthy",
            topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in seat.numa_nodes]),
        )
        for seat in seats
    ]
    return bytes(wire.ListAndWatchResponse(devices=devices).SerializeToString())


def allocation(request: bytes, seats: Mapping[str, Seat], files: JobFiles | None, access: GpuAccess) -> bytes:
    """Return what the containers of `request` get with their seats.

    seats: by id; files: None: not on this node now. Raises Refused: the request makes no sense, a seat does not exist
    or is not well, or a container got seats on two GPUs."""
    try:
        asked = wire.AllocateRequest.FromString(request)
    except DecodeError:
        raise Refused(Refusal.INVALID_ARGUMENT, "this is no AllocateRequest") from None
    if len(asked.container_requests) > _MOST_CONTAINERS:
        raise Refused(Refusal.INVALID_ARGUMENT, f"more than {_MOST_CONTAINERS} containers at once")
    if files is None:
        raise Refused(Refusal.FAILED_PRECONDITION, "the files that a shared GPU needs are not on this node")
    answers = [_answer(list(one.devices_ids), seats, files, access) for one in asked.container_requests]
    return bytes(wire.AllocateResponse(container_responses=answers).SerializeToString())


def _answer(
    ids: Sequence[str], seats: Mapping[str, Seat], files: JobFiles, access: GpuAccess
) -> wire.ContainerAllocateResponse:
    if not 1 <= len(ids) <= _MOST_DEVICES:
        raise Refused(Refusal.INVALID_ARGUMENT, f"a container asks for {len(ids)} seats")
    for seat_id in ids:
        if seat_id not in seats:
            raise Refused(Refusal.INVALID_ARGUMENT, f"there is no seat {seat_id[:100]!r} here")
        if not seats[seat_id].is_well:
            raise Refused(Refusal.FAILED_PRECONDITION, f"the GPU of seat {seat_id} is not well")
    gpus = {gpu for seat_id in ids if (gpu := seats[seat_id].gpu) is not None}
    if len(gpus) > 1:
        raise Refused(Refusal.INVALID_ARGUMENT, "a container asks for seats on two GPUs")
    answer = wire.ContainerAllocateResponse(envs=_environ(files.socket), mounts=_mounts(files))
    for gpu in gpus:
        answer.envs["CODA_SHARE"] = str(SharingConfig().floor_share)
        _let_onto(gpu, access, answer)
    return answer


def _environ(socket: Path) -> dict[str, str]:
    """As docs/gpu-sharing.md has it. What the pod itself sets wins: the kubelet puts it after these."""
    return {
        "LD_PRELOAD": SHARING_LIBRARY,
        "CODA_LIBRARY": SHARING_LIBRARY,
        "CODA_PYTHON": f"{IN_CONTAINER}/python",
        "CODA_SOCKET": f"{IN_CONTAINER}/agent/{socket.name}",
    }


def _mounts(files: JobFiles) -> list[wire.Mount]:
    """The socket's folder, not the socket: an agent that starts makes a new one."""
    found = {
        "lib": files.framework / "lib" / platform.machine(),
        "python": files.framework / "python",
        "agent": files.socket.parent,
    }
    return [
        wire.Mount(container_path=f"{IN_CONTAINER}/{name}", host_path=str(path), read_only=True)
        for name, path in found.items()
    ]


def _let_onto(gpu: str, access: GpuAccess, answer: wire.ContainerAllocateResponse) -> None:
    """Source: NVIDIA/k8s-device-plugin, `internal/plugin/server.go`."""
    match access:
        case GpuAccess.ENVVAR:
            answer.envs["NVIDIA_VISIBLE_DEVICES"] = gpu
        case GpuAccess.VOLUME_MOUNTS:
            answer.envs["NVIDIA_VISIBLE_DEVICES"] = _VOLUME_MOUNTS
            answer.mounts.append(wire.Mount(container_path=f"{_VOLUME_MOUNTS}/{gpu}", host_path="/dev/null"))
        case GpuAccess.CDI_CRI:
            answer.cdi_devices.append(wire.CDIDevice(name=f"nvidia.com/gpu={gpu}"))
