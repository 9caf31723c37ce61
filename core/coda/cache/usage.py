"""What every party of a fair share holds, kept up to date while jobs start and end. The rules are in `fair_share`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from coda.model.job import Job
from coda.model.resources import NOTHING
from coda.model.world import Node, VirtualCluster, World
from coda.policy.fair_share import NO_AMOUNTS, Amounts, Fairness, quota_share


class Usage:
    """What every party holds, kept while jobs start and end."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._held: dict[Hashable, Amounts] = {}
        self._total: Amounts = NO_AMOUNTS
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
        gpus, cpu_m, memory_bytes = self._held.get(key, NO_AMOUNTS)
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
        share = fairness.measure(job, self._held.get((account, party), NO_AMOUNTS), total)
        if fairness.guarantees and not self.is_within_quota(job):
            account += 1
        return account, share / self._weight_by_party.get(party, 1.0)

    def is_within_quota(self, job: Job) -> bool:
        """True for a GPU job with which its party holds no more GPUs than its quota."""
        held = self._held.get(self._key(job), NO_AMOUNTS)[0]
        asked = job.request.gpus * job.replicas
        return asked > 0 and held + asked <= self.quota_of(self._fairness.party(job))

    def quota_of(self, party: str) -> int:
        """GPUs that are the party's own; 0 where nobody said."""
        return self._quota_by_party.get(party, 0)

    def _key(self, job: Job) -> Hashable:
        return (self._fairness.account(job), self._fairness.party(job))
