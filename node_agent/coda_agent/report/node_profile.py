"""The NodeProfile as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from coda_agent.bandwidth.peak import PeakSource
from coda_agent.gpus import GpuReading, Link
from coda_agent.modes import TuneMode
from coda_agent.report.gpu_uses import GpuUse
from coda_agent.report.xid_record import XidEntry, xids_json
from coda_agent.resctrl import Abilities, Unit
from coda_agent.throttling import ThrottleInForce
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, NODE_PROFILE
from coda_kube.objects.quantities import time_from_seconds

MOST_LACKS = 64
MOST_PODS = 16
CONTROLS: Mapping[Unit, str] = {
    Unit.PERCENT: "Percent",
    Unit.MIB_PER_S: "MiBPerSecond",
    Unit.EIGHTHS: "EighthsOfGBPerSecond",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketProfile:
    """Something with memory bandwidth of its own."""

    id: int
    cpus: frozenset[int]
    peak_bytes_per_s: float | None = None
    peak_source: PeakSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """Everything that a NodeProfile says, except its time."""

    cores: int
    sockets: Sequence[SocketProfile]
    abilities: Abilities
    limits_cores: bool
    gpus: Sequence[GpuReading]
    number_by_gpu: Mapping[str, int]  # of the resource of its seats, by UUID; empty: no GPU is shared here
    use_by_gpu: Mapping[str, GpuUse]  # by UUID
    links: Sequence[Link]
    throttles: Sequence[ThrottleInForce]
    lacks: Sequence[str]
    tune: TuneMode
    watches_xids: bool
    xids: Sequence[XidEntry]


def profile_json(profile: NodeProfile) -> Json:
    """Return `status` of the NodeProfile, without its time."""
    status: Json = {
        **_agent_version(),
        "tune": profile.tune.value,
        "cores": profile.cores,
        "socketCount": len(profile.sockets),
        "gpuCount": len(profile.gpus),
        "lacks": list(profile.lacks[:MOST_LACKS]),
        "sockets": [_socket_json(socket) for socket in profile.sockets],
        "gpus": [_gpu_json(reading, profile) for reading in profile.gpus],
        "links": [_link_json(link) for link in profile.links],
        "bandwidth": _bandwidth_json(profile),
        "watchesXids": profile.watches_xids,
        **({"xids": xids_json(profile.xids)} if profile.xids else {}),
    }
    return with_throttles(status, profile.throttles)


def with_throttles(status: Json, throttles: Sequence[ThrottleInForce]) -> Json:
    """Return `status` with exactly these throttles.

    The count is the number of pods they concern; 1 if only the limit of a domain is left to undo."""
    pods = {throttle.pod_uid for throttle in throttles if throttle.pod_uid}
    found = [_throttle_json(throttle) for throttle in throttles]
    return {**status, "throttleCount": len(pods) or min(1, len(found)), "throttles": found}


def profile_object(node: str, status: Json, now_s: float) -> Json:
    """Return the NodeProfile to apply."""
    metadata = {"name": node}
    status = {**status, "time": time_from_seconds(now_s)}
    return {"apiVersion": API_VERSION, "kind": NODE_PROFILE, "metadata": metadata, "status": status}


def cpu_list(cpus: Iterable[int]) -> str:
    """Return logical CPUs as the kernel writes them: 0-27,56-83."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@cache
def _agent_version() -> Json:
    """Empty where the package was copied into an image instead of installed."""
    try:
        return {"agentVersion": version("coda")}
    except PackageNotFoundError:
        return {}


def _socket_json(socket: SocketProfile) -> Json:
    found: Json = {"id": socket.id, "cpus": cpu_list(socket.cpus)}
    if socket.peak_bytes_per_s is not None and socket.peak_source is not None:
        found |= {"peakBytesPerSecond": int(socket.peak_bytes_per_s), "peakSource": socket.peak_source.value}
    return found


def _gpu_json(reading: GpuReading, profile: NodeProfile) -> Json:
    gpu = reading.gpu
    found: Json = {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pciBusID": gpu.pci_bus_id,
        "numaNodes": sorted(gpu.numa_nodes),
        "mig": gpu.mig,
        "health": reading.health.value,
    }
    if (index := profile.number_by_gpu.get(gpu.uuid)) is not None:
        found["index"] = index
        found |= _use_json(profile.use_by_gpu.get(gpu.uuid))
    return found if gpu.memory_bytes is None else {**found, "memoryBytes": gpu.memory_bytes}


def _use_json(use: GpuUse | None) -> Json:
    if use is None:
        return {}
    amounts = {"utilization": use.utilization, "peakMemoryBytes": use.peak_bytes}
    told = {name: amount for name, amount in amounts.items() if amount is not None}
    crowded: Json = {"crowdedOutPodUIDs": list(use.crowded_out[:MOST_PODS])} if use.crowded_out else {}
    crowded |= {"ownerWaits": True} if use.crowded_out and use.waits else {}
    heard: Json = {} if use.heard is None else {"ownerHeard": use.heard}
    return {"podUIDs": list(use.pod_uids[:MOST_PODS]), **told, **heard, **crowded}


def _link_json(link: Link) -> Json:
    path = {} if link.path is None else {"path": link.path.name.title().replace("_", "")}
    return {"gpus": [link.one, link.other], "nvlinks": link.nvlinks, **path}


def _bandwidth_json(profile: NodeProfile) -> Json:
    abilities = profile.abilities
    knows_whom = abilities.monitoring and abilities.following
    fallback = "Cores" if profile.limits_cores and knows_whom else "None"
    found: Json = {
        "measured": abilities.monitoring,
        "control": CONTROLS[abilities.unit] if abilities.limiting else fallback,
    }
    counts = {"groups": abilities.closids, "monitoringIDs": abilities.rmids}
    return found | {name: count for name, count in counts.items() if count is not None}


def _throttle_json(throttle: ThrottleInForce) -> Json:
    found: Json = {"what": throttle.what, "original": throttle.original, "value": throttle.value}
    found["since"] = time_from_seconds(throttle.since_s)
    ids = {"podUID": throttle.pod_uid, "containerID": throttle.container_id}
    return found | {name: text for name, text in ids.items() if text}
