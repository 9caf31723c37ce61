"""The cluster at one moment: nodes, what is used, jobs, quotas and tenants. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coda.model.constraints import Taint
from coda.model.job import Job
from coda.model.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the planner sees it. `schedulable` is Ready, not cordoned, not being deleted."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota: per key, hard - used is what is left. Milli-units, like `Job.quota`."""

    namespace: str
    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySizes:
    """How the cluster is divided between the arrays."""

    reserve_cores_per_gpu: float  # cores of a node that belong to the GPU array, per GPU of the node
    large_gpus: int  # GPUs of the sub-array for gangs of four GPUs or more


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """A tenant: how many GPUs are its own. What a job of no known tenant uses is all borrowed."""

    name: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A snapshot of one moment. Values only; see `world` for queries and checks.

    `used` is per node what its bound pods that have not ended ask for (terminating ones included), foreign and ours;
    `leaving` is the part of it that ordered stops will free.
    `in_flight` is per node what foreign pods may take that passed the filter and are not bound yet."""

    nodes: tuple[Node, ...]
    used: Mapping[str, Resources] = field(default_factory=dict)
    in_flight: Mapping[str, Resources] = field(default_factory=dict)
    leaving: Mapping[str, Resources] = field(default_factory=dict)
    jobs: Sequence[Job] = ()
    quotas: tuple[Quota, ...] = ()
    virtual_clusters: tuple[VirtualCluster, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # of users in fair shares, above 0; 1 for all others
    array_sizes: ArraySizes | None = None  # from history; None: as configured
