"""What every tenant holds, with all that is below it, and what its quota leaves: running sums, kept up to date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coda.model.job import Job
from coda.model.resources import CPU, GPUS, NOTHING
from coda.model.world import Node, VirtualCluster
from coda.policy.fair_share import borrowed_share
from coda.tenants.tree import TenantTree

TenantShare = tuple[tuple[bool, float], ...]
"""How far each level of a job's path borrows, from the top down: whether it does with the job, and by weight what it
borrows already. Lower goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShortage:
    """A quota that leaves less than a whole gang needs. GPUs, or millicores if the gang has no GPUs."""

    virtual_cluster: str
    needed: int
    left: int
    limit: int

    @property
    def is_whole(self) -> bool:
        """True if even the whole quota is too little."""
        return self.needed > self.limit


class TenantLedger:
    """GPU jobs count by their GPUs, CPU jobs by their cores. Nobody is charged for the cores and the memory of GPU jobs
    (our choice): a ResourceQuota and the operator's `CODA_MOST_CORES_PER_GPU` limit them.

    Each job counts on every level of its tenant's path. O(levels) for a job that comes or goes."""

    def __init__(self, nodes: Iterable[Node] = (), holders: Iterable[tuple[Job, tuple[str, ...]]] = ()) -> None:
        self.tree = TenantTree()
        self._gpus_by_tenant: dict[str, int] = {}  # of its own jobs alone
        self._cpu_m_by_tenant: dict[str, int] = {}
        self._gpus_held: dict[str, int] = {}  # by seat
        self._cpu_m_held: dict[str, int] = {}
        self._lent_cpu_m: dict[str, int] = {}  # to others than this tenant, as far as it was asked for since a change
        self._gpus_leaving: dict[str, int] = {}  # by seat: of what is held, what stopped jobs hold until they are gone
        self.gpus = 0  # of all nodes
        self._cpu_m = 0
        self.set_total(nodes)
        for job, held_nodes in holders:
            self.add(job, held_nodes)

    def set_quotas(self, virtual_clusters: Iterable[VirtualCluster]) -> None:
        """These are all the virtual clusters now. O(tenants x levels)."""
        self.tree = TenantTree(virtual_clusters)
        self._gpus_held, self._cpu_m_held, self._lent_cpu_m = {}, {}, {}
        for held, by_tenant in (
            (self._gpus_held, self._gpus_by_tenant),
            (self._cpu_m_held, self._cpu_m_by_tenant),
        ):
            for tenant, amount in by_tenant.items():
                for seat in self.tree.path(tenant):
                    held[seat] = held.get(seat, 0) + amount

    def set_total(self, nodes: Iterable[Node]) -> None:
        """Set the total that shares are part of: these are all the nodes."""
        total = sum((node.allocatable for node in nodes), NOTHING)
        self.gpus, self._cpu_m = total.gpus, total.cpu_m

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds a rank on each of these nodes."""
        self._count(job, len(nodes))

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job no longer holds a rank on each of these nodes."""
        self._count(job, -len(nodes))

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same: no share changes."""

    def set_leaving(self, leaving: Iterable[tuple[Job, tuple[str, ...]]]) -> None:
        """These jobs were stopped, and were added as long as they hold these nodes."""
        self._gpus_leaving = {}
        for job, nodes in leaving:
            for seat in self.tree.path(job.virtual_cluster):
                self._gpus_leaving[seat] = self._gpus_leaving.get(seat, 0) + job.request.gpus * len(nodes)

    def gpus_held(self, seat: str) -> int:
        """Return the GPUs that jobs hold on a seat of a path, with those of stopped jobs that are not gone."""
        return self._gpus_held.get(seat, 0)

    def gpus_kept(self, seat: str) -> int:
        """Return the GPUs that jobs hold on a seat and that were not told to stop."""
        return self._gpus_held.get(seat, 0) - self._gpus_leaving.get(seat, 0)

    def share(self, job: Job) -> tuple[TenantShare, float]:
        """Return what borrows on each level with the job, and what its own seat would borrow then, by weight.

        From the top down: so what a tenant leaves goes to its siblings before others get it, and a job within its quota
        on every level goes before all that borrow on one. O(levels). Source: Kueue's fair sharing, level by level."""
        gpus, tree = job.request.gpus, self.tree
        asked = (gpus or job.request.cpu_m) * job.replicas
        all_held, total = (self._gpus_held, self.gpus) if gpus else (self._cpu_m_held, self._cpu_m)
        levels: list[tuple[bool, float]] = []
        last = 0.0
        for name in tree.path(job.virtual_cluster):
            seat, held = tree.seat(name), all_held.get(name, 0)
            own, weight = seat.own_gpus if gpus else seat.own_cpu_m, seat.tenant.weight
            borrows = held + asked > own
            levels.append((borrows, borrowed_share(held, own, total) / weight if borrows else 0.0))
            last = borrowed_share(held + asked, own, total) / weight
        return tuple(levels), last

    def borrows(self, job: Job) -> bool:
        """True if with the job more than its own is held on some level. O(levels)."""
        gpus = job.request.gpus
        asked, all_held = (gpus or job.request.cpu_m) * job.replicas, self._gpus_held if gpus else self._cpu_m_held
        for name in self.tree.path(job.virtual_cluster):
            seat = self.tree.seat(name)
            if all_held.get(name, 0) + asked > (seat.own_gpus if gpus else seat.own_cpu_m):
                return True
        return False

    def shortage(self, job: Job) -> TenantShortage | None:
        """Return the first quota, from the job's tenant upwards, that leaves less than the whole gang needs.

        One that is too small as a whole goes before: no job that ends helps there. None if there is none, or whoever
        has it may borrow."""
        gpus = job.request.gpus
        needed = (gpus or job.request.cpu_m) * job.replicas
        if not needed:
            return None
        all_held = self._gpus_held if gpus else self._cpu_m_held
        found: TenantShortage | None = None
        for name in reversed(self.tree.path(job.virtual_cluster)):
            seat = self.tree.seat(name)
            limit = seat.limit_gpus if gpus else seat.limit_cpu_m
            if limit is not None and all_held.get(name, 0) + needed > limit:
                left = max(0, limit - all_held.get(name, 0))
                short = TenantShortage(virtual_cluster=name, needed=needed, left=left, limit=limit)
                if short.is_whole:
                    return short
                found = found or short
        return found

    def lacking(self, job: Job) -> dict[str, int]:
        """Return how many GPUs too few each limit of its path leaves the job, by seat; without those that leave enough.

        What stopped jobs hold until they are gone is left already."""
        asked, found = job.request.gpus * job.replicas, dict[str, int]()
        for name in self.tree.path(job.virtual_cluster):
            limit = self.tree.seat(name).limit_gpus
            if limit is not None and self.gpus_kept(name) + asked > limit:
                found[name] = self.gpus_kept(name) + asked - limit
        return found

    def lent_cpu_m(self, job: Job) -> int:
        """Return the millicores that a CPU job's tenant may wait for: others hold them beyond their own, on the levels
        below the one that they have in common. O(tenants x levels) for the first job of a tenant after a change."""
        tenant = job.virtual_cluster
        if job.request.gpus:
            return 0
        if tenant not in self._lent_cpu_m:
            mine, seats = self.tree.path(tenant), set[str]()
            for other in self._cpu_m_by_tenant:
                pairs = zip(mine, self.tree.path(other), strict=False)
                seats.update([its for own, its in pairs if own != its][:1])
            over = [self._cpu_m_held.get(seat, 0) - self.tree.seat(seat).own_cpu_m for seat in seats]
            self._lent_cpu_m[tenant] = sum([amount for amount in over if amount > 0])
        return self._lent_cpu_m[tenant]

    def owner_text(self, kind: str, job: Job, free: int) -> str:
        """Say why a job that keeps its tenant within its own waits for more GPUs or cores (CPU) to be free, as far as
        tenants are why; empty if they are not. `free`: how much there is now, maybe in pieces."""
        if kind == CPU and not job.request.gpus:
            lacking = job.request.cpu_m * job.replicas - free
            if self.lent_cpu_m(job) >= (lacking if lacking > 0 else job.request.cpu_m):
                return "cores of its VirtualCluster are lent: they come back as jobs end, nobody is stopped for them"
        if (kind == GPUS) != bool(job.request.gpus):
            return ""
        return self.tree.beyond_text(kind, self.gpus if kind == GPUS else self._cpu_m) or ""

    def _count(self, job: Job, ranks: int) -> None:
        name, request = job.virtual_cluster, job.request
        amount = (request.gpus or request.cpu_m) * ranks
        by_tenant = self._gpus_by_tenant if request.gpus else self._cpu_m_by_tenant
        held = self._gpus_held if request.gpus else self._cpu_m_held
        if not request.gpus:
            self._lent_cpu_m = {}
        by_tenant[name] = by_tenant.get(name, 0) + amount
        for seat in self.tree.path(name):
            held[seat] = held.get(seat, 0) + amount
