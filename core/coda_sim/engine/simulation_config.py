"""The configuration of one simulation, besides its workload."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Final, Protocol

from coda.allocator.config import CoreSearchConfig
from coda.cache.world_index import PlannerCache
from coda.contention.config import ContentionConfig
from coda.errors import InvalidInput
from coda.history.division import Shares
from coda.model.decision import Decision
from coda.model.world import VirtualCluster, World
from coda.policy.config import Component, PolicyConfig
from coda.policy.cores import CoresRule
from coda.policy.policies import policy_of
from coda.promises import PromiseBook
from coda_sim.workload.cluster_shape import ClusterShape
from coda_sim.workload.inaccuracy import EXACT, Inaccuracy
from coda_sim.workload.model_profiles import ProfileSet
from coda_sim.workload.provenance import Origin, Provenance

_DRAWS: Final = 1 << 64

A, M = Provenance.ASSUMED, Provenance.MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What changes of running jobs cost. Raises InvalidInput for a negative time."""

    restart_s: Annotated[float, Origin(M, "of a GPU job with up to `many_gpus`; Lucid, Tiresias")] = 40.0
    restart_many_s: Annotated[float, Origin(M, "of a larger one; Lucid, Tiresias")] = 60.0
    many_gpus: Annotated[int, Origin(M, "above it the larger cost counts")] = 8
    cpu_restart_s: Annotated[float, Origin(A, "of a CPU job; CODA: containers are cheap to move")] = 0.0
    resuming_gpu_jobs: Annotated[float, Origin(A, "share that goes on where it was; the others begin again")] = 1.0
    resuming_cpu_jobs: Annotated[float, Origin(A, "share that goes on where it was; the others begin again")] = 1.0
    save_every_s: Annotated[float, Origin(A, "between saves of a GPU job that resumes; 0: it loses nothing")] = 0.0
    resize_s: Annotated[float, Origin(A, "until pods can use more cores; a kubelet takes 1 to 3 s")] = 0.0
    profiling_s: Annotated[float, Origin(A, "until a profile knows a new job; 5 windows of 90 s")] = 0.0

    def __post_init__(self) -> None:
        restarts_s = (self.restart_s, self.restart_many_s, self.cpu_restart_s)
        times_s = (*restarts_s, self.save_every_s, self.resize_s, self.profiling_s)
        if min(times_s) < 0:
            raise InvalidInput("costs in time must not be negative")
        for share in (self.resuming_gpu_jobs, self.resuming_cpu_jobs):
            if not 0 <= share <= 1:
                raise InvalidInput(f"the share of jobs that resume must be 0 to 1, not {share}")

    def of(self, gpus: int) -> float:
        """Return the seconds for which a restarted job with `gpus` GPUs holds them and does nothing."""
        if not gpus:
            return self.cpu_restart_s
        return self.restart_s if gpus <= self.many_gpus else self.restart_many_s

    def resumes(self, job_id: str, gpus: int) -> bool:
        """True if the job has checkpoints: drawn by its id alone, so a larger share has the same jobs and more."""
        share = self.resuming_gpu_jobs if gpus else self.resuming_cpu_jobs
        digest = hashlib.blake2b(job_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < share * _DRAWS


class CostSetting(Enum):
    """Who pays for what a policy does to running jobs; see `COSTS_BY_SETTING`."""

    PAID = "paid"  # a CPU job that is stopped begins again; whatever changes a running job takes time
    RESUMED = "resumed"  # the same, but it goes on where it was, as in CODA's text
    FREE = "free"  # only GPU jobs pay, for their restarts


COSTS_BY_SETTING: Final[Mapping[CostSetting, Costs]] = MappingProxyType(
    {
        CostSetting.PAID: Costs(resuming_cpu_jobs=0.0, resize_s=3.0, profiling_s=450.0),
        CostSetting.RESUMED: Costs(resize_s=3.0, profiling_s=450.0),
        CostSetting.FREE: Costs(),
    }
)
"""Restarts of GPU jobs and windows of the allocator take their time under each setting. `profiling_s`: to bisect the
cores of a node takes five points, each as long as a window of Coda's allocator; our choice."""


class Decide(Protocol):
    """The planner's `decide`, or a wrapper around it."""

    def __call__(
        self,
        world: World,
        config: PolicyConfig,
        now_s: float,
        cache: PlannerCache | None,
        *,
        book: PromiseBook | None,
        explain: int | None,
    ) -> Decision:
        """As `coda.cycle.decide.decide`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """The configuration of one simulation.

    `planner`: the planner's. `allocator`: GPU jobs get the cores that it finds instead of those they ask for.
    `tuning`: the allocator's search. `contention`: the eliminator's; None: no job is throttled. `inaccuracy`: of what
    planner and allocator are told. `divides_from_history`: the arrays follow what finished jobs used, as an ArrayQuota
    with the division Auto. `virtual_clusters`: the tenants; empty: none, or invented ones where a policy needs some.
    `books_delays`: each second of a GPU job's wait is booked by its cause, for which every cycle explains itself."""

    shape: ClusterShape
    profiles: ProfileSet
    planner: PolicyConfig
    costs: Costs = Costs()
    allocator: bool = False
    tuning: CoreSearchConfig = field(default_factory=CoreSearchConfig)
    contention: ContentionConfig | None = None
    inaccuracy: Inaccuracy = EXACT
    divides_from_history: bool = False
    virtual_clusters: tuple[VirtualCluster, ...] = ()
    books_delays: bool = False

    @property
    def cores_rule(self) -> CoresRule:
        """The rule for the cores that GPU jobs start with: the policy's; as asked if that is the allocator and off."""
        rule = policy_of(self.planner.policy).cores
        if self.allocator:
            return CoresRule.TUNED
        return CoresRule.ASKED if rule is CoresRule.TUNED else rule

    @property
    def shares(self) -> Shares:
        """The division of all nodes at the beginning."""
        return Shares(self.planner.arrays.reserve_cores_per_gpu, self.planner.arrays.large_share)

    @property
    def lends_spare_cores(self) -> bool:
        """True if cores that no job owns are lent to jobs that gain from them."""
        return policy_of(self.planner.policy).lends_spare_cores

    @property
    def profiling_s(self) -> float:
        """Seconds that a new job must run until its profile is known; 0: it is known from the start."""
        return self.costs.profiling_s if policy_of(self.planner.policy).profiles_jobs else 0.0

    @property
    def reserved_per_gpu(self) -> float | None:
        """Cores per GPU that belong to the GPU array; None without arrays."""
        has_arrays = policy_of(self.planner.policy).has_arrays and Component.ARRAYS not in self.planner.without
        return self.planner.arrays.reserve_cores_per_gpu if has_arrays else None
