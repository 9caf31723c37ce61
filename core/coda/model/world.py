"""The cluster at one moment: nodes, used capacity, jobs, quotas, tenants and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from coda.model.constraints import Taint
from coda.model.job import Job, JobId
from coda.model.quota_scopes import QuotaScope
from coda.model.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the planner sees it. `schedulable`: Ready, not cordoned, not being deleted, and not `joins`."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True
    joins: bool = False  # it is new, or back, and does not offer the GPUs yet that its labels promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota: hard - used is left, by key. Milli-units, as in `Job.quota`."""

    namespace: str
    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]
    scopes: tuple[QuotaScope, ...] = ()  # it counts only pods that all of them match


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayQuota:
    """How a pool of nodes is divided between the arrays. None: as the installation says.

    A node that several select is divided by the oldest: least `created` (ISO time), then by name."""

    name: str
    created: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)  # labels of its nodes; empty: every node
    reserve_cores_per_gpu: float | None = None  # cores of a node that belong to the GPU array, per GPU of the node
    large_gpus: int | None = None  # GPUs of the sub-array for gangs of four GPUs or more
    large_share: float | None = None  # the same as a part of the pool's GPUs, 0..1; only without `large_gpus`
    is_auto: bool = False  # the three above follow what finished jobs used


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """A tenant and what is its own. A job without a known tenant borrows all it uses.

    `gpus` counts the GPUs of training jobs, `cpu_m` the millicores of CPU jobs, each with those of the tenants below;
    None: no quota, or as much as those below have together."""

    name: str
    gpus: int | None = None
    cpu_m: int | None = None
    weight: float = 1.0  # of what it borrows, above 0
    may_borrow: bool = True  # it may hold more than its quota
    parent: str = ""  # the tenant that it is a part of; empty: of none
    lost_s: float = -inf  # when it came to own less, for what counts for it; as far as that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What the agent of a node says of one GPU that offers seats; None: not known.

    `is_taken`: a pod that is there has it whole. `job`, `attempt` and `rank` say which, if it is a training job's.
    `duty`: the share of the time in which it was busy, while that pod was alone on it; `peak_bytes`: the most memory
    that the pod was seen to have there. `is_heard`: it ended a mini-batch lately, or its agent is too old to say so."""

    index: int
    is_taken: bool
    job: JobId | None = None
    attempt: int = 0
    rank: int = 0
    duty: float | None = None
    peak_bytes: int | None = None
    memory_bytes: int | None = None
    is_heard: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A snapshot of the cluster. `capacity` and `live_placement` answer questions about it; `consistency` checks it.

    `used`: by node name, what its bound pods ask for that have not ended (terminating ones too), foreign and ours.
    `leaving`: the part of `used` that ordered stops will free.
    `in_flight`: by node name, what foreign pods may take that passed the filter and are not bound yet.
    `gpu_uses`: by node name, the GPUs of which the node's agent says who has them whole.
    `reclaimed`: when borrowers were told to give their cores back, by any unique key; the last minute is enough."""

    nodes: tuple[Node, ...]
    used: Mapping[str, Resources] = field(default_factory=dict)
    in_flight: Mapping[str, Resources] = field(default_factory=dict)
    leaving: Mapping[str, Resources] = field(default_factory=dict)
    jobs: Sequence[Job] = ()
    quotas: tuple[Quota, ...] = ()
    virtual_clusters: tuple[VirtualCluster, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # by user, for fair shares, above 0; 1 for all others
    array_quotas: tuple[ArrayQuota, ...] = ()
    reclaimed: Mapping[str, float] = field(default_factory=dict)
    gpu_uses: Mapping[str, tuple[GpuUse, ...]] = field(default_factory=dict)
