"""Fair shares: who has how much of what, and whose turn it therefore is. What must not live here: what fits.

Progressive filling: the party with the smallest share starts its next job that fits, then shares are compared anew.
Source: DRF (Ghodsi et al., NSDI 2011); CODA (ICDCS 2020) for one share per array.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from coda.model.job import NOTHING, Job, Node, VirtualCluster, World

Amounts = tuple[int, int, int]
"""GPUs, millicores, bytes of memory."""

_NONE: Final[Amounts] = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How shares are counted.

    `party`: whom a job counts for. `account`: parties have a share of their own in each; lower accounts go first.
    `measure`: the share of what is held in the account of the job, given all there is; lower goes first.
    `guarantees`: GPU jobs with which their party stays within its quota go before all others."""

    party: Callable[[Job], str]
    account: Callable[[Job], int]
    measure: Callable[[Job, Amounts, Amounts], float]
    guarantees: bool = False


class Shares:
    """What every party holds, kept while jobs start and end."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._held: dict[Hashable, Amounts] = {}
        self._total: Amounts = _NONE
        self._tenants: tuple[VirtualCluster, ...] = ()
        self._quota_by_party: Mapping[str, int] = {}
        self._weight_by_party: Mapping[str, float] = {}

    def follow(self, world: World) -> None:
        """Take over the weights and quotas of this world."""
        self._weight_by_party = world.weights
        if world.virtual_clusters is not self._tenants:
            self._tenants = world.virtual_clusters
            self._quota_by_party = {tenant.name: tenant.gpus for tenant in world.virtual_clusters}

    def count_nodes(self, nodes: Iterable[Node]) -> None:
        """These are all the nodes."""
        total = sum((node.allocatable for node in nodes), NOTHING)
        self._total = (total.gpus, total.cpu_m, total.memory_bytes)

    def hold(self, job: Job, ranks: int) -> None:
        """The job holds so many ranks more; fewer where negative."""
        key, request = self._key(job), job.request
        gpus, cpu_m, memory_bytes = self._held.get(key, _NONE)
        self._held[key] = (
            gpus + request.gpus * ranks,
            cpu_m + request.cpu_m * ranks,
            memory_bytes + request.memory_bytes * ranks,
        )

    def rank(self, job: Job) -> tuple[int, float]:
        """The job's account and its party's share there, over its weight: lower goes first."""
        fairness = self._fairness
        party = fairness.party(job)
        account = fairness.account(job)
        total = self._total
        if fairness.measure is quota_share:
            total = (self.quota_of(party), 0, 0)
        share = fairness.measure(job, self._held.get((account, party), _NONE), total)
        if fairness.guarantees and not self.is_within_quota(job):
            account += 1
        return account, share / self._weight_by_party.get(party, 1.0)

    def is_within_quota(self, job: Job) -> bool:
        """True for a GPU job with which its party holds no more GPUs than its quota."""
        held = self._held.get(self._key(job), _NONE)[0]
        asked = job.request.gpus * job.replicas
        return asked > 0 and held + asked <= self.quota_of(self._fairness.party(job))

    def quota_of(self, party: str) -> int:
        """GPUs that are the party's own; 0 where nobody said."""
        return self._quota_by_party.get(party, 0)

    def _key(self, job: Job) -> Hashable:
        return (self._fairness.account(job), self._fairness.party(job))


def gpu_share(job: Job, held: Amounts, total: Amounts) -> float:
    """GPUs held over all GPUs. Source: CODA's DRF baseline, for which the GPU is always dominant."""
    return held[0] / total[0] if total[0] else 0.0


def dominant_share(job: Job, held: Amounts, total: Amounts) -> float:
    """The largest share of any resource. Source: DRF."""
    return max((mine / all_ for mine, all_ in zip(held, total, strict=True) if all_), default=0.0)


def array_share(job: Job, held: Amounts, total: Amounts) -> float:
    """GPUs for GPU jobs, cores for CPU jobs. Source: CODA, multi-array scheduler."""
    index = 0 if job.request.gpus else 1
    return held[index] / total[index] if total[index] else 0.0


def quota_share(job: Job, held: Amounts, total: Amounts) -> float:
    """GPUs held over the party's own quota; without any quota, last. Source: YARN's capacity scheduler."""
    return held[0] / total[0] if total[0] else inf


def user_of(job: Job) -> str:
    """Shares by user."""
    return job.user


def virtual_cluster_of(job: Job) -> str:
    """Shares by tenant."""
    return job.virtual_cluster


def one_account(job: Job) -> int:
    """One share for everything a party holds."""
    return 0
