"""How a cluster is used, as its objects say it: by node, by array, and what is throttled. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from coda.model.job import LARGE_GPUS
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.trial_spec import spec_of_attempt
from coda_kube.objects.read import Pod, id_of, node_from_json

Item = Mapping[str, Any]

LARGE, SMALL, CPU, OTHERS = "large GPU jobs", "small GPU jobs", "CPU jobs", "other pods"
ARRAYS: Final = (LARGE, SMALL, CPU, OTHERS)


@dataclass(slots=True, kw_only=True)
class NodeUse:
    """One node. Cores may be fractions; `others_cores`: of pods that Coda did not place."""

    name: str
    takes_pods: bool
    gpus: int
    cores: float
    used_gpus: int = 0
    gpu_jobs_cores: float = 0.0
    cpu_jobs_cores: float = 0.0  # with the borrowed ones
    borrowed_cores: float = 0.0
    others_cores: float = 0.0
    throttles: int = 0

    @property
    def used_cores(self) -> float:
        """Return the cores that its pods asked for."""
        return self.gpu_jobs_cores + self.cpu_jobs_cores + self.others_cores


@dataclass(slots=True, kw_only=True)
class ArrayUse:
    """All pods of one array, or those that are nobody's. `waiting`: jobs, or gated pods, without a place."""

    name: str
    pods: int = 0
    gpus: int = 0
    cores: float = 0.0
    borrowed_cores: float = 0.0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """One limit in force. `pod`: its namespace/name, or its uid if it is not there any more."""

    node: str
    pod: str
    what: str
    value: str
    original: str
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUse:
    """Everything that `coda top` shows. `nodes` and `throttles`: None if this user may not know."""

    nodes: tuple[NodeUse, ...] | None
    arrays: tuple[ArrayUse, ...]
    throttles: tuple[Throttle, ...] | None

    def as_json(self) -> Json:
        """For programs."""
        return asdict(self)


class JobOfArray(NamedTuple):
    """What counts of a TrainingJob."""

    id: str
    array: str
    is_waiting: bool


def job_of_array(job: Item) -> JobOfArray:
    """Read a TrainingJob."""
    spec, status = spec_of_attempt(job), job.get("status") or {}
    gpus = int(spec["gpusPerReplica"]) * int(spec.get("replicas") or 1)
    placement, generation = status.get("placement") or {}, job["metadata"].get("generation")
    is_placed = (placement.get("attempt"), placement.get("generation")) == (status.get("attempt"), generation)
    is_waiting = status.get("phase") in (None, "Queued") and not (placement and is_placed)
    return JobOfArray(id_of(job), LARGE if gpus >= LARGE_GPUS else SMALL, is_waiting)


def unused_node(item: Item) -> NodeUse:
    """Read a Node, as if nobody used it."""
    node = node_from_json(item)
    size = node.allocatable
    return NodeUse(name=node.name, takes_pods=node.schedulable, gpus=size.gpus, cores=size.cpu_m / 1000)


def throttles_of(profile: Item) -> list[Throttle]:
    """Read a NodeProfile. The pods are uids."""
    return [
        Throttle(
            node=str(profile["metadata"]["name"]),
            pod=str(entry.get("podUID") or ""),
            what=str(entry["what"]),
            value=str(entry["value"]),
            original=str(entry["original"]),
            since=str(entry["since"]),
        )
        for entry in (profile.get("status") or {}).get("throttles") or ()
    ]


def cluster_use(
    nodes: Iterable[NodeUse] | None,
    pods: Iterable[Pod],
    jobs: Iterable[JobOfArray],
    throttles: Iterable[Throttle] | None,
) -> ClusterUse:
    """Return how the nodes are used. A pod counts where it is bound, with what it asks for; an ended one does not.

    `nodes`, each an `unused_node`, and `throttles`, whose pods are uids: None if they may not be read. A bound pod
    counts for its array also where its node is unknown."""
    node_by_name = {use.name: replace(use) for use in sorted(nodes or (), key=lambda use: use.name)}
    array_by_name = {name: ArrayUse(name=name) for name in ARRAYS}
    array_by_job: dict[str, str] = {}
    for job in jobs:
        array_by_job[job.id] = job.array
        array_by_name[job.array].waiting += job.is_waiting
    name_by_uid: dict[str, str] = {}
    for pod in pods:
        name_by_uid[pod.uid] = pod.id
        if not pod.ended:
            if nodes is None and pod.node:
                node_by_name.setdefault(pod.node, NodeUse(name=pod.node, takes_pods=False, gpus=0, cores=0.0))
            _add(pod, node_by_name, array_by_name, array_by_job)
    named = [replace(one, pod=name_by_uid.get(one.pod, one.pod)) for one in throttles or ()]
    for throttle in named:
        if throttle.node in node_by_name:
            node_by_name[throttle.node].throttles += 1
    return ClusterUse(
        nodes=None if nodes is None else tuple(node_by_name.values()),
        arrays=tuple(array_by_name.values()),
        throttles=None if throttles is None else tuple(sorted(named, key=_place)),
    )


def with_short_names(use: ClusterUse) -> ClusterUse:
    """Name nodes without their domain, where each has a name of its own without it. Addresses have no domain."""
    short = {node.name: _without_domain(node.name) for node in use.nodes or ()}
    if len(set(short.values())) < len(short):
        return use
    return replace(
        use,
        nodes=None if use.nodes is None else tuple(replace(node, name=short[node.name]) for node in use.nodes),
        throttles=None
        if use.throttles is None
        else tuple(replace(one, node=short.get(one.node, one.node)) for one in use.throttles),
    )


def _without_domain(name: str) -> str:
    """The name of a host; all of an address, also behind a word: `10.0.0.4`, `cn-hangzhou.10.0.0.4`."""
    host, _, domain = name.partition(".")
    is_host = any(character.isalpha() for character in host) and not domain[:1].isdigit()
    return host if is_host else name


def _place(one: Throttle) -> tuple[str, str, str]:
    return one.node, one.pod, one.what


def _add(
    pod: Pod, nodes: Mapping[str, NodeUse], arrays: Mapping[str, ArrayUse], array_by_job: Mapping[str, str]
) -> None:
    array = arrays[CPU if pod.cpu_job is not None else OTHERS]
    if pod.cpu_job is None and pod.member is not None:
        array = arrays[array_by_job.get(pod.member.job, SMALL)]
    if pod.cpu_job is not None and pod.gated:
        array.waiting += 1
    node = nodes.get(pod.node or "")
    if node is None:
        return
    cores = pod.request.cpu_m / 1000
    array.pods += 1
    array.gpus += pod.request.gpus
    array.cores += cores
    node.used_gpus += pod.request.gpus
    if pod.cpu_job is not None:  # released, it is a rank of itself
        node.cpu_jobs_cores += cores
        borrowed = cores if pod.cpu_job.borrows else 0.0
        node.borrowed_cores += borrowed
        array.borrowed_cores += borrowed
    elif pod.member is not None:
        node.gpu_jobs_cores += cores
    else:
        node.others_cores += cores
