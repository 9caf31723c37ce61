"""What the kubelet gave to containers, and which GPU of this node a device id names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coda_agent.claimed_device import ClaimedDevice
from coda_agent.gpus.devices import Gpu, Instance

_REPLICA = re.compile(r"(?:::|/vgpu)[0-9]+\Z")  # time slices: of NVIDIA's plugin, of GKE's
_OLD_SLICE = re.compile(r"MIG-(GPU-[0-9a-f-]+)/([0-9]+)/([0-9]+)\Z")  # drivers before 470
_BY_MINOR = re.compile(r"nvidia([0-9]+)(?:/gi([0-9]+))?\Z")  # GKE


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one container got."""

    namespace: str
    pod: str
    container: str
    device_ids: tuple[tuple[str, str], ...] = ()  # (resource name, id)
    claimed: tuple[ClaimedDevice, ...] = ()
    exclusive_cpus: frozenset[int] = frozenset()  # not empty: the static CPU manager gave this container its cores


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """A GPU, or one MIG slice of it."""

    gpu_uuid: str
    instance_uuid: str | None = None

    @property
    def uuid(self) -> str:
        """Of the slice if it is one, else of the GPU."""
        return self.instance_uuid or self.gpu_uuid


PodName = tuple[str, str]  # namespace, name


def with_claims(
    grants: Sequence[Grant], devices_by_pod: Mapping[PodName, Sequence[tuple[str, ClaimedDevice]]]
) -> tuple[Grant, ...]:
    """Return the kubelet's grants with the devices (container, device) that claims of these pods were given.

    What the kubelet says of claims counts for other pods only: older ones leave them out, and none tells whether a
    device was only given to be watched."""
    told = [replace(one, claimed=()) if (one.namespace, one.pod) in devices_by_pod else one for one in grants]
    claimed: dict[tuple[str, str, str], list[ClaimedDevice]] = {}
    for (namespace, pod), devices in devices_by_pod.items():
        for container, device in devices:
            claimed.setdefault((namespace, pod, container), []).append(device)
    added = [
        Grant(namespace=namespace, pod=pod, container=container, claimed=tuple(devices))
        for (namespace, pod, container), devices in sorted(claimed.items())
    ]
    return (*told, *added)


def places_of(grant: Grant, gpus: Sequence[Gpu], uuid_by_claim: Mapping[ClaimedDevice, str]) -> tuple[GpuPlace, ...]:
    """Return the GPUs and slices of this node that the grant names, each once, by UUID; other devices are left out."""
    ids = [device_id for resource, device_id in grant.device_ids if _may_be_gpu(resource, device_id)]
    ids += [uuid_by_claim[claim] for claim in grant.claimed if claim in uuid_by_claim]
    places = {place for device_id in ids for place in _places_named(device_id, gpus)}
    return tuple(sorted(places, key=lambda place: place.uuid))


def places_in(gpu: Gpu) -> tuple[GpuPlace, ...]:
    """Return what of a GPU can be granted: itself, or its slices in MIG mode."""
    return tuple(_slice(gpu, part) for part in gpu.instances) if gpu.mig else (GpuPlace(gpu_uuid=gpu.uuid),)


def _may_be_gpu(resource: str, device_id: str) -> bool:
    """UUIDs are clear under any resource name of a cluster; minors only under NVIDIA's."""
    return not device_id.startswith("nvidia") or resource.startswith("nvidia.com/")


def _places_named(device_id: str, gpus: Sequence[Gpu]) -> tuple[GpuPlace, ...]:
    name = _REPLICA.sub("", device_id)
    if old := _OLD_SLICE.match(name):
        return tuple(
            place
            for gpu in gpus
            if gpu.uuid == old[1]
            for place in _slices(gpu, gpu_instance=old[2], compute_instance=old[3])
        )
    if by_minor := _BY_MINOR.match(name):
        named = [gpu for gpu in gpus if gpu.minor is not None and str(gpu.minor) == by_minor[1]]
        if by_minor[2] is None:
            return tuple(GpuPlace(gpu_uuid=gpu.uuid) for gpu in named)
        return tuple(place for gpu in named for place in _slices(gpu, gpu_instance=by_minor[2]))
    whole = tuple(GpuPlace(gpu_uuid=gpu.uuid) for gpu in gpus if gpu.uuid == name)
    parts = (_slice(gpu, part) for gpu in gpus for part in gpu.instances if part.uuid == name)
    return (*whole, *parts)


def _slices(gpu: Gpu, *, gpu_instance: str, compute_instance: str | None = None) -> tuple[GpuPlace, ...]:
    """Ids are compared as text: the kubelet may send any number."""
    return tuple(
        _slice(gpu, part)
        for part in gpu.instances
        if str(part.gpu_instance) == gpu_instance and compute_instance in (None, str(part.compute_instance))
    )


def _slice(gpu: Gpu, part: Instance) -> GpuPlace:
    return GpuPlace(gpu_uuid=gpu.uuid, instance_uuid=part.uuid)
