"""What every party of a fair share holds, kept up to date. The rules are in `policy.fair_share`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from coda.model.job import Job, JobId
from coda.model.resources import NOTHING
from coda.model.world import Node, VirtualCluster, World
from coda.nodes.free_capacity import FreeCapacity
from coda.policy.fair_share import NO_AMOUNTS, Amounts, Fairness, quota_share
from coda.tenants import TenantLedger


class Usage:
    """What every party holds."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._held: dict[Hashable, Amounts] = {}
        self._total: Amounts = NO_AMOUNTS
        self._tenants: tuple[VirtualCluster, ...] = ()
        self._quota_by_party: Mapping[str, int] = {}
        self._weight_by_party: Mapping[str, float] = {}

    def refresh(self, world: World) -> None:
        """Read the weights and quotas of this world."""
        self._weight_by_party = world.weights
        if world.virtual_clusters is not self._tenants:
            self._tenants = world.virtual_clusters
            self._quota_by_party = {tenant.name: tenant.gpus or 0 for tenant in world.virtual_clusters}

    def set_total(self, nodes: Iterable[Node]) -> None:
        """Set the total that shares are part of: these are all the nodes."""
        total = sum((node.allocatable for node in nodes), NOTHING)
        self._total = (total.gpus, total.cpu_m, total.memory_bytes)

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds a rank on each of these nodes."""
        self._count(job, len(nodes))

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job no longer holds a rank on each of these nodes."""
        self._count(job, -len(nodes))

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same: no share changes."""

    def _count(self, job: Job, ranks: int) -> None:
        key, request = self._key(job), job.request
        gpus, cpu_m, memory_bytes = self._held.get(key, NO_AMOUNTS)
        self._held[key] = (
            gpus + request.gpus * ranks,
            cpu_m + request.cpu_m * ranks,
            memory_bytes + request.memory_bytes * ranks,
        )

    def rank(self, job: Job) -> tuple[int, float]:
        """Return the job's account, and its party's share there over its weight. Lower goes first."""
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
        """True for a GPU job whose party, with it, holds no more GPUs than its quota."""
        held = self._held.get(self._key(job), NO_AMOUNTS)[0]
        asked = job.request.gpus * job.replicas
        return asked > 0 and held + asked <= self.quota_of(self._fairness.party(job))

    def quota_of(self, party: str) -> int:
        """Return the GPUs that are the party's own; 0 if it has no quota."""
        return self._quota_by_party.get(party, 0)

    def _key(self, job: Job) -> Hashable:
        return (self._fairness.account(job), self._fairness.party(job))


_Charge = tuple[Usage | TenantLedger, Job, tuple[str, ...]]


class LeavingJobs:
    """Jobs that were stopped, and earlier attempts, that still run: they count in the shares until they are gone.

    Else whoever deletes a pod could start another one beside it, and again, as long as the first takes to end.
    Call `discharge` before the shares change, and `charge` afterwards. Each is O(ranks that leave)."""

    def __init__(self) -> None:
        self._leaving: dict[JobId, tuple[Job, tuple[str, ...]]] = {}
        self._charges: list[_Charge] = []

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """It was stopped, and a rank of it still runs on each of these nodes."""
        self._leaving[job.id] = (job, nodes)

    def remove(self, job: JobId) -> None:
        """It is gone, or it is another version."""
        self._leaving.pop(job, None)

    def charge(self, capacity: FreeCapacity, usage: Usage | None, tenants: TenantLedger | None) -> None:
        """Count them, but for nodes that take no pods: what was lost or is drained may be made again at once."""
        for job, names in self._leaving.values():
            counted = tuple([name for name in names if _takes_pods(capacity, name)])
            for shares in (usage, tenants):
                if shares is not None:
                    shares.add(job, counted)
                    self._charges.append((shares, job, counted))
        if tenants is not None:
            tenants.set_leaving([(job, counted) for shares, job, counted in self._charges if shares is tenants])

    def discharge(self) -> None:
        """Undo the last `charge`."""
        for shares, job, counted in self._charges:
            shares.remove(job, counted)
        self._charges = []


def _takes_pods(capacity: FreeCapacity, name: str) -> bool:
    number = capacity.number_by_name.get(name)
    return number is not None and capacity.nodes[number].schedulable
