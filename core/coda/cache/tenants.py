"""What every virtual cluster holds, kept up to date, and what its quota leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coda.model.job import Job
from coda.model.resources import NOTHING
from coda.model.world import Node, VirtualCluster
from coda.policy.fair_share import borrowed_share

_NOBODY: Final = VirtualCluster(name="")
"""Stands for a tenant that is not known: it owns nothing, and borrows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShortage:
    """A quota that leaves less than a whole gang needs. GPUs, or millicores if the gang has no GPUs."""

    virtual_cluster: str
    needed: int
    left: int


class Tenants:
    """GPU jobs count by their GPUs, CPU jobs by their cores. Cores of GPU jobs follow their GPUs: nobody chooses them,
    so nobody is charged for them (our choice)."""

    def __init__(self) -> None:
        self._tenant_by_name: dict[str, VirtualCluster] = {}
        self._gpus_held: dict[str, int] = {}
        self._cpu_m_held: dict[str, int] = {}
        self._gpus = 0
        self._cpu_m = 0

    def set_quotas(self, virtual_clusters: Iterable[VirtualCluster]) -> None:
        """These are all the virtual clusters now."""
        self._tenant_by_name = {one.name: one for one in virtual_clusters}

    def set_total(self, nodes: Iterable[Node]) -> None:
        """Set the total that shares are part of: these are all the nodes."""
        total = sum((node.allocatable for node in nodes), NOTHING)
        self._gpus, self._cpu_m = total.gpus, total.cpu_m

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds a rank on each of these nodes."""
        self._count(job, len(nodes))

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job no longer holds a rank on each of these nodes."""
        self._count(job, -len(nodes))

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same: no share changes."""

    def share(self, job: Job) -> float:
        """Return what the job's tenant would borrow with it, by weight. Lower goes first: 0 within the quota."""
        name, gpus = job.virtual_cluster, job.request.gpus
        tenant = self._tenant_by_name.get(name, _NOBODY)
        if gpus:
            held = self._gpus_held.get(name, 0) + gpus * job.replicas
            return borrowed_share(held, tenant.gpus or 0, self._gpus) / tenant.weight
        held = self._cpu_m_held.get(name, 0) + job.request.cpu_m * job.replicas
        return borrowed_share(held, tenant.cpu_m or 0, self._cpu_m) / tenant.weight

    def shortage(self, job: Job) -> TenantShortage | None:
        """Return the quota that leaves less than the whole gang needs; None if there is none, or it may borrow."""
        tenant = self._tenant_by_name.get(job.virtual_cluster)
        if tenant is None or tenant.may_borrow:
            return None
        gpus = job.request.gpus
        quota = tenant.gpus if gpus else tenant.cpu_m
        if quota is None:
            return None
        held = (self._gpus_held if gpus else self._cpu_m_held).get(tenant.name, 0)
        needed = (gpus or job.request.cpu_m) * job.replicas
        if held + needed <= quota or not needed:
            return None
        return TenantShortage(virtual_cluster=tenant.name, needed=needed, left=max(0, quota - held))

    def _count(self, job: Job, ranks: int) -> None:
        name, request = job.virtual_cluster, job.request
        if request.gpus:
            self._gpus_held[name] = self._gpus_held.get(name, 0) + request.gpus * ranks
        else:
            self._cpu_m_held[name] = self._cpu_m_held.get(name, 0) + request.cpu_m * ranks
