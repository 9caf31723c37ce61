"""Who is on which GPU in which role, by the kubelet's grants: a whole GPU is guaranteed, a seat is opportunistic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from coda_agent.cluster import LocalPod
from coda_agent.gpus import GpuReading
from coda_agent.gpus.allocations import Grant, places_of
from coda_agent.gpus.processes import GpuUser

SEAT_PREFIX = "coda.scheduler/gpu-"
"""Resources of the seats of one GPU each: `coda.scheduler/gpu-0`, device ids `<uuid>::<seat>`."""


class Role(Enum):
    """What a pod is on a GPU."""

    GUARANTEED = "Guaranteed"
    OPPORTUNISTIC = "Opportunistic"


_SEATED = Role.OPPORTUNISTIC


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """One GPU and its pods by uid. By pod: `seen_bytes`, memory of the card, as the driver says; `declared_bytes`, the
    most that its job says it needs. `used_bytes`: of the card, the driver's own part too; None: not measured.
    `pci_bus_id`: "" if not known."""

    uuid: str
    memory_bytes: int
    guaranteed: str | None
    opportunistic: tuple[str, ...]
    seen_bytes: Mapping[str, int]
    declared_bytes: Mapping[str, int] = field(default_factory=dict)
    used_bytes: int | None = None
    pci_bus_id: str = ""

    @property
    def free_bytes(self) -> int | None:
        """What nobody has; None: not known."""
        if self.used_bytes is None and not self.seen_bytes:
            return None
        return max(0, self.memory_bytes - max(self.used_bytes or 0, sum(self.seen_bytes.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """GPUs under one control: those of one guaranteed pod, or one GPU without such a pod."""

    key: str
    guaranteed: str | None
    gpus: tuple[SharedGpu, ...]

    @property
    def opportunistic(self) -> tuple[str, ...]:
        """The uids on all of its GPUs, in order."""
        return tuple(sorted({uid for gpu in self.gpus for uid in gpu.opportunistic}))


def shared_gpus_from(
    readings: Sequence[GpuReading],
    grants: Sequence[Grant],
    pods: Iterable[LocalPod],
    users: Mapping[str, Sequence[GpuUser]],
) -> tuple[SharedGpu, ...]:
    """Return the GPUs with pods of this node, by UUID.

    A pod that is not known yet and has a GPU whole is guaranteed there: its uid is then its namespace/name.
    Left out: GPUs in MIG mode, those of unknown size, and those that two pods got whole (NVIDIA's time-slicing)."""
    pods = tuple(pods)
    declared_bytes = {pod.uid: pod.gpu_bytes for pod in pods if pod.gpu_bytes}
    uid_by_name = {(pod.namespace, pod.name): None if pod.ended else pod.uid for pod in pods}
    gpus = [reading.gpu for reading in readings]
    roles: dict[str, dict[str, Role]] = {}
    for grant in grants:
        for role in (Role.OPPORTUNISTIC, Role.GUARANTEED):
            uid = _uid_of(grant, role, uid_by_name)
            if uid is None:
                continue
            of_role = tuple(one for one in grant.device_ids if one[0].startswith(SEAT_PREFIX) is (role is _SEATED))
            for place in places_of(replace(grant, device_ids=of_role), gpus, {}):
                if place.instance_uuid is None:
                    roles.setdefault(place.gpu_uuid, {})[uid] = role
    return tuple(
        _shared_gpu(reading, roles[reading.gpu.uuid], users.get(reading.gpu.uuid, ()), declared_bytes)
        for reading in sorted(readings, key=lambda reading: reading.gpu.uuid)
        if not reading.gpu.mig and reading.gpu.memory_bytes and _is_ours(roles.get(reading.gpu.uuid, {}))
    )


def units_of(gpus: Sequence[SharedGpu]) -> tuple[Unit, ...]:
    """Return the units, by their keys: the guaranteed pod's uid, else the GPU's UUID."""
    by_key: dict[str, list[SharedGpu]] = {}
    for gpu in gpus:
        by_key.setdefault(gpu.guaranteed or gpu.uuid, []).append(gpu)
    return tuple(
        Unit(key=key, guaranteed=found[0].guaranteed, gpus=tuple(found)) for key, found in sorted(by_key.items())
    )


def _uid_of(grant: Grant, role: Role, uid_by_name: Mapping[tuple[str, str], str | None]) -> str | None:
    """The kubelet is ahead of our watch, after an outage by far: whom it gave a whole GPU is protected at once."""
    unseen = f"{grant.namespace}/{grant.pod}" if role is Role.GUARANTEED else None
    return uid_by_name.get((grant.namespace, grant.pod), unseen)


def _is_unseen(uid: str) -> bool:
    return "/" in uid  # no uid of the API server has one


def _is_ours(roles: Mapping[str, Role]) -> bool:
    return bool(roles) and sum(role is Role.GUARANTEED for role in roles.values()) <= 1


def _shared_gpu(
    reading: GpuReading, roles: Mapping[str, Role], users: Sequence[GpuUser], declared_bytes: Mapping[str, int]
) -> SharedGpu:
    first = next((uid for uid, role in roles.items() if role is Role.GUARANTEED), None)
    pod_of = {user.pid: user.pod_uid for user in users}
    seen: dict[str, int] = {}
    for process in reading.processes or ():
        uid = pod_of.get(process.pid)
        if uid not in roles and uid is not None and first is not None and _is_unseen(first):
            uid = first  # by its cgroup the process has a uid that no pod of the list has yet
        if uid is not None and process.memory_bytes:
            seen[uid] = seen.get(uid, 0) + process.memory_bytes
    return SharedGpu(
        uuid=reading.gpu.uuid,
        memory_bytes=reading.gpu.memory_bytes or 0,
        guaranteed=first,
        opportunistic=tuple(sorted(uid for uid in roles if uid != first)),
        seen_bytes=seen,
        declared_bytes={uid: declared_bytes[uid] for uid in sorted(roles) if uid in declared_bytes},
        used_bytes=None if reading.memory is None else reading.memory.used_bytes,
        pci_bus_id=reading.gpu.pci_bus_id,
    )
