"""What the arrays of each ArrayQuota own, hold, lend, borrow and wait for, for people who watch them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coda.model.constraints import NodeConstraints, key_of_constraints
from coda.model.job import FINISHED, Job
from coda.model.live_placement import is_waiting
from coda.model.world import ArrayQuota, Node
from coda.nodes.eligibility import exclusion
from coda.policy.arrays import Array, array_of
from coda.policy.config import ArraysConfig
from coda.policy.division import divide, selects

MOST_CONSTRAINTS: Final = 200
"""Of queued jobs, that are compared with the nodes: with 5000 nodes half a second of work. Our choice."""

_STEP: Final = 1000
"""Comparisons of a node with a term, a toleration or a quota in one step: about a millisecond."""


@dataclass(slots=True)
class Share:
    """GPUs of a sub-array, or millicores of an array."""

    reserved: int = 0  # what belongs to it
    used: int = 0  # of that, what its own jobs hold; more than it after the quota shrank
    lent: int = 0  # of that, what jobs of the other hold
    borrowed: int = 0  # what its jobs hold of the other's
    waiting: int = 0  # what its queued jobs ask for


@dataclass(slots=True)
class QuotaUse:
    """The arrays on the nodes of one quota. What a job waits for counts for every quota with a node that it accepts.

    Beyond `MOST_CONSTRAINTS` that differ, it counts for every quota."""

    nodes: int = 0
    large_gpus: Share = field(default_factory=Share)
    small_gpus: Share = field(default_factory=Share)
    gpu_jobs_cpu_m: Share = field(default_factory=Share)  # nothing waits: cores of GPU jobs follow their GPUs
    cpu_jobs_cpu_m: Share = field(default_factory=Share)
    excess_cpu_m: int = 0  # held by CPU jobs that do not give it back, beyond what their array has of each node
    shared_nodes: dict[str, str] = field(default_factory=dict)  # nodes that another quota selects too: by name, which


@dataclass(slots=True)
class TenantLoans:
    """Millicores that the jobs of one tenant hold of arrays that they are not in."""

    of_cpu_array_m: int = 0  # held by GPU jobs
    of_gpu_array_m: int = 0  # held by CPU jobs, which give them back


@dataclass(slots=True)
class _Cores:
    """The millicores that jobs hold of one node."""

    gpu_jobs: int = 0
    cpu_jobs: int = 0
    borrowers: int = 0  # CPU jobs that must give them back
    excess: int = 0  # of GPU jobs, beyond their GPUs' part of the reserve
    excess_by_tenant: dict[str, int] = field(default_factory=dict)  # of that, by tenant; jobs of none are absent


@dataclass(slots=True)
class _Waiting:
    """Queued jobs with the same constraints."""

    constraints: NodeConstraints
    jobs: int = 0
    amounts: Counter[Array] = field(default_factory=Counter)  # GPUs, or millicores of CPU jobs

    @property
    def is_of_cpu_jobs_only(self) -> bool:
        return self.amounts.keys() == {Array.CPU}


class ArrayUse:
    """Divides the nodes; `add` every job, then take all steps of `add_up`, and read `use_by_quota`."""

    def __init__(self, nodes: Sequence[Node], quotas: Collection[ArrayQuota], arrays: ArraysConfig) -> None:
        """O(nodes x quotas)."""
        self._nodes = nodes
        self._quotas = quotas
        self._division = divide(nodes, quotas, arrays)
        self._number_by_name = {node.name: number for number, node in enumerate(nodes)}
        self._cores = [_Cores() for _ in nodes]
        self._use_by_quota = {quota.name: QuotaUse() for quota in quotas}
        self._loans_by_tenant: dict[str, TenantLoans] = {}
        self._waiting: dict[Hashable, _Waiting] = {}  # by their constraints

    @property
    def use_by_quota(self) -> Mapping[str, QuotaUse]:
        """What was counted, by name of the quota."""
        return self._use_by_quota

    @property
    def loans_by_tenant(self) -> Mapping[str, TenantLoans]:
        """What was counted on all nodes, by tenant. What GPU jobs of a node hold beyond their reserve is divided by how
        far each is beyond its GPUs' part of it."""
        return self._loans_by_tenant

    def add(self, job: Job) -> None:
        """Count a job. O(its ranks)."""
        request, array = job.request, array_of(job)
        if is_waiting(job):
            key = key_of_constraints(job.constraints)
            if (waiting := self._waiting.get(key)) is None:
                waiting = self._waiting[key] = _Waiting(job.constraints)
            waiting.jobs += 1
            waiting.amounts[array] += job.replicas * (request.gpus or request.cpu_m)
            return
        if job.placement is None or job.phase in FINISHED:
            return
        for rank, name in enumerate(job.placement.nodes):
            number = self._number_by_name.get(name)
            if number is not None and rank not in job.gone:
                self._hold(number, job, array)

    def _hold(self, number: int, job: Job, array: Array) -> None:
        cores, request = self._cores[number], job.request
        if array is Array.CPU:
            if job.placement is not None and job.placement.borrows:
                cores.borrowers += request.cpu_m
                if job.virtual_cluster:
                    self._loans_of(job.virtual_cluster).of_gpu_array_m += request.cpu_m
            else:
                cores.cpu_jobs += request.cpu_m
            return
        cores.gpu_jobs += request.cpu_m
        gpus = max(1, self._nodes[number].allocatable.gpus)
        excess = max(0, request.cpu_m - self._division.reserves_cpu_m[number] * request.gpus // gpus)
        cores.excess += excess
        if excess and job.virtual_cluster:
            by_tenant = cores.excess_by_tenant
            by_tenant[job.virtual_cluster] = by_tenant.get(job.virtual_cluster, 0) + excess
        use = self._use_by_quota.get(self._division.quotas[number])
        if use is not None:
            own, other = use.large_gpus, use.small_gpus
            if array is Array.SMALL:
                own, other = other, own
            if self._division.is_large[number] is (array is Array.LARGE):
                own.used += request.gpus
            else:
                own.borrowed += request.gpus
                other.lent += request.gpus

    def add_up(self) -> Iterator[None]:
        """Add up what was counted, in steps between which other work may go on. Once, to the end.

        O(nodes x (quotas + constraints of queued jobs)), the constraints up to `MOST_CONSTRAINTS`."""
        numbers_by_quota: dict[str, list[int]] = {name: [] for name in self._use_by_quota}
        at_once = max(1, _STEP // (1 + len(self._quotas)))
        for number, node in enumerate(self._nodes):
            name = self._division.quotas[number]
            self._add_loans(number)
            if name in numbers_by_quota:
                numbers_by_quota[name].append(number)
                self._add_node(self._use_by_quota[name], node, number)
            if number % at_once == 0:
                yield
        most_first = sorted(self._waiting.values(), key=lambda one: (one.is_of_cpu_jobs_only, -one.jobs))
        for rank, waiting in enumerate(most_first):
            for name, numbers in numbers_by_quota.items():
                is_accepted = rank >= MOST_CONSTRAINTS or (yield from self._accepts_any(waiting.constraints, numbers))
                for array, amount in waiting.amounts.items() if is_accepted else ():
                    self._share(self._use_by_quota[name], array).waiting += amount
            if rank % at_once == 0:
                yield

    def _loans_of(self, tenant: str) -> TenantLoans:
        return self._loans_by_tenant.setdefault(tenant, TenantLoans())

    def _add_loans(self, number: int) -> None:
        cores = self._cores[number]
        beyond = cores.gpu_jobs - self._division.reserves_cpu_m[number]
        if beyond > 0:
            for tenant, excess in cores.excess_by_tenant.items():
                self._loans_of(tenant).of_cpu_array_m += beyond * excess // cores.excess

    def _add_node(self, use: QuotaUse, node: Node, number: int) -> None:
        reserve, cores = self._division.reserves_cpu_m[number], self._cores[number]
        use.nodes += 1
        (use.large_gpus if self._division.is_large[number] else use.small_gpus).reserved += node.allocatable.gpus
        gpu_jobs, cpu_jobs = use.gpu_jobs_cpu_m, use.cpu_jobs_cpu_m
        beyond = max(0, cores.gpu_jobs - reserve)
        gpu_jobs.reserved += reserve
        gpu_jobs.used += cores.gpu_jobs - beyond
        gpu_jobs.borrowed += beyond
        gpu_jobs.lent += cores.borrowers
        cpu_jobs.reserved += node.allocatable.cpu_m - reserve
        cpu_jobs.used += cores.cpu_jobs
        cpu_jobs.borrowed += cores.borrowers
        cpu_jobs.lent += beyond
        use.excess_cpu_m += max(0, cores.cpu_jobs - (node.allocatable.cpu_m - reserve))
        counts_for = self._division.quotas[number]
        for quota in self._quotas:
            if quota.name != counts_for and selects(quota, node):
                use.shared_nodes.setdefault(node.name, quota.name)
                self._use_by_quota[quota.name].shared_nodes.setdefault(node.name, counts_for)

    def _accepts_any(self, constraints: NodeConstraints, numbers: Sequence[int]) -> Generator[None, None, bool]:
        at_once = max(1, _STEP // (1 + len(constraints.terms) + len(constraints.tolerations)))
        for count, number in enumerate(numbers, start=1):
            if exclusion(constraints, self._nodes[number]) is None:
                return True
            if count % at_once == 0:
                yield
        return False

    @staticmethod
    def _share(use: QuotaUse, array: Array) -> Share:
        if array is Array.CPU:
            return use.cpu_jobs_cpu_m
        return use.large_gpus if array is Array.LARGE else use.small_gpus
