"""What the agent tells the cluster: the NodeProfile and events on pods, as JSON. Pure, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from coda.contention.throttles import Action, Means, Reason
from coda_agent.bandwidth.peak import Source
from coda_agent.cluster.pods import LocalPod
from coda_agent.gpus.devices import Reading
from coda_agent.gpus.links import Link
from coda_agent.resctrl.probe import Abilities, Unit
from coda_agent.throttling.restore import InForce
from coda_kube.api.client import Json
from coda_kube.objects.names import AGENT, API_VERSION, NODE_PROFILE
from coda_kube.objects.quantities import micro_time_from_seconds, time_from_seconds

MOST_LACKS = 64
CONTROLS: Mapping[Unit, str] = {
    Unit.PERCENT: "Percent",
    Unit.MIB_PER_S: "MiBPerSecond",
    Unit.EIGHTHS: "EighthsOfGBPerSecond",
}
_AMOUNTS: Mapping[Unit, str] = {
    Unit.PERCENT: "{:g} %",
    Unit.MIB_PER_S: "{:g} MiB/s",
    Unit.EIGHTHS: "{:g} eighths of a GB/s",
}
WORDS: Mapping[Reason, str] = {
    Reason.CONTENDED: "training jobs suffer from memory traffic",
    Reason.NO_GAIN: "it helped no training job",
    Reason.CALM: "the memory traffic has gone down",
    Reason.NO_VICTIM: "no training job is there any more",
    Reason.BLIND: "nothing could be measured for too long",
    Reason.PROTECTED: "it may not be throttled any more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """What has memory bandwidth of its own."""

    id: int
    cpus: frozenset[int]
    peak_bytes_per_s: float | None = None
    peak_source: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything a NodeProfile says but when."""

    cores: int
    sockets: Sequence[Socket]
    abilities: Abilities
    limits_cores: bool
    gpus: Sequence[Reading]
    links: Sequence[Link]
    throttles: Sequence[InForce]
    lacks: Sequence[str]


def profile_json(profile: Profile) -> Json:
    """`status` of the NodeProfile, without its time."""
    status: Json = {
        **_agent_version(),
        "cores": profile.cores,
        "socketCount": len(profile.sockets),
        "gpuCount": len(profile.gpus),
        "lacks": list(profile.lacks[:MOST_LACKS]),
        "sockets": [_socket_json(socket) for socket in profile.sockets],
        "gpus": [_gpu_json(reading) for reading in profile.gpus],
        "links": [_link_json(link) for link in profile.links],
        "bandwidth": _bandwidth_json(profile),
    }
    return with_throttles(status, profile.throttles)


def with_throttles(status: Json, throttles: Sequence[InForce]) -> Json:
    """`status` of a NodeProfile in which exactly these are in force. Counted are the pods they concern; 1, if only the
    limit of a domain is left to be undone."""
    pods = {throttle.pod_uid for throttle in throttles if throttle.pod_uid}
    told = [_throttle_json(throttle) for throttle in throttles]
    return {**status, "throttleCount": len(pods) or min(1, len(told)), "throttles": told}


def profile_object(node: str, status: Json, now_s: float) -> Json:
    """The NodeProfile to apply."""
    metadata = {"name": node}
    status = {**status, "time": time_from_seconds(now_s)}
    return {"apiVersion": API_VERSION, "kind": NODE_PROFILE, "metadata": metadata, "status": status}


def events_json(action: Action, pods: Mapping[str, LocalPod], unit: Unit, node: str, now_s: float) -> list[Json]:
    """An event on every pod that the action is about, and on every pod it is for; `pods` by uid, `unit`: of limits."""
    about = _about(action, unit)
    told = [_event(pod, about, node, now_s, action) for pod in _known(action.pods, pods)]
    names = ", ".join(pod.id for pod in _known(action.pods, pods))
    for pod in _known(action.jobs, pods):
        told.append(_event(pod, f"{about} ({names})", node, now_s, action))
    return told


def cpu_list(cpus: Iterable[int]) -> str:
    """Logical CPUs as the kernel writes them: 0-27,56-83."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@cache
def _agent_version() -> Json:
    """Nothing where the package was copied instead of installed, as into an image."""
    try:
        return {"agentVersion": version("coda")}
    except PackageNotFoundError:
        return {}


def _about(action: Action, unit: Unit) -> str:
    if action.means is Means.CORES:
        what = f"CPU limit back at {action.value:g} cores" if action.ends else f"CPU limit {action.value:g} cores"
    else:
        where = f"memory bandwidth on socket {action.socket}"
        what = (
            f"{where} unlimited again" if action.ends else f"{where} limited to {_AMOUNTS[unit].format(action.value)}"
        )
    return f"{what}: {WORDS[action.reason]}"


def _event(pod: LocalPod, note: str, node: str, now_s: float, action: Action) -> Json:
    stamp = micro_time_from_seconds(now_s)
    throttles = not action.ends and action.reason is Reason.CONTENDED
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.name[:200]}.", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reason": "Throttled" if throttles else "ThrottleReleased",
        "message": note[:1000],
        "type": "Normal",
        "eventTime": stamp,
        "action": "Throttling",
        "reportingComponent": AGENT,
        "reportingInstance": node,
    }


def _known(uids: Iterable[str], pods: Mapping[str, LocalPod]) -> list[LocalPod]:
    return [pods[uid] for uid in uids if uid in pods]


def _socket_json(socket: Socket) -> Json:
    told: Json = {"id": socket.id, "cpus": cpu_list(socket.cpus)}
    if socket.peak_bytes_per_s is not None and socket.peak_source is not None:
        told |= {"peakBytesPerSecond": int(socket.peak_bytes_per_s), "peakSource": socket.peak_source.value}
    return told


def _gpu_json(reading: Reading) -> Json:
    gpu = reading.gpu
    told: Json = {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pciBusID": gpu.pci_bus_id,
        "numaNodes": sorted(gpu.numa_nodes),
        "mig": gpu.mig,
        "health": reading.health.value,
    }
    return told if gpu.memory_bytes is None else {**told, "memoryBytes": gpu.memory_bytes}


def _link_json(link: Link) -> Json:
    path = {} if link.path is None else {"path": link.path.name.title().replace("_", "")}
    return {"gpus": [link.one, link.other], "nvlinks": link.nvlinks, **path}


def _bandwidth_json(profile: Profile) -> Json:
    abilities = profile.abilities
    fallback = "Cores" if profile.limits_cores and abilities.monitoring else "None"
    told: Json = {
        "measured": abilities.monitoring,
        "control": CONTROLS[abilities.unit] if abilities.limiting else fallback,
    }
    counts = {"groups": abilities.closids, "monitoringIDs": abilities.rmids}
    return told | {name: count for name, count in counts.items() if count is not None}


def _throttle_json(throttle: InForce) -> Json:
    told: Json = {"what": throttle.what, "original": throttle.original, "value": throttle.value}
    told["since"] = time_from_seconds(throttle.since_s)
    ids = {"podUID": throttle.pod_uid, "containerID": throttle.container_id}
    return told | {name: text for name, text in ids.items() if text}
