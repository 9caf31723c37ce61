"""Who holds what on the nodes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from heapq import nsmallest
from typing import Final, NamedTuple

from coda.change_log import ChangeLog
from coda.model.job import Job, JobId
from coda.model.quota_scopes import QuotaScope, is_counted
from coda.model.resources import GPUS, Resources, amount_of
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_groups import NodeGroups
from coda.nodes.node_search import EligibleNodes, RankClass
from coda.nodes.shortfall import Shortfall


class Holding(NamedTuple):
    """What one job holds: its nodes, one entry per rank. Each rank holds the job's request."""

    job: Job
    nodes: tuple[str, ...]


class NodeHolding(NamedTuple):
    """What one job holds of one node."""

    job: Job
    ranks: int


_CHANGES: Final = 10_000
"""At least this many changes of who holds a node are remembered."""

Ranking = list[tuple[int, JobId]]
"""Jobs by how much they hold, as negative amounts: largest first, then by id."""


class Holdings:
    """The holdings of live placements and of this cycle's starts. `count`: how many jobs are named at most."""

    def __init__(self, count: int) -> None:
        self.gpus = 0  # that all of them hold
        self._journal: ChangeLog[str] = ChangeLog(_CHANGES)
        self._count = count
        self._holdings_by_node: dict[str, dict[JobId, NodeHolding]] | None = None
        self._number_by_name: Mapping[str, int] = {}
        self._holding_by_job: dict[JobId, Holding] = {}
        self._rankings: dict[tuple[EligibleNodes, str], Ranking] = {}

    def of(self, job: JobId) -> Holding | None:
        """Return what the job holds."""
        return self._holding_by_job.get(job)

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds a rank on each of these nodes."""
        self._holding_by_job[job.id] = holding = Holding(job, nodes)
        self.gpus += job.request.gpus * len(nodes)
        if self._holdings_by_node is not None:
            self._enter(self._holdings_by_node, holding)
        for (eligible, resource), ranking in self._rankings.items():
            amount = self._amount(holding, eligible, resource)
            if amount > 0:
                insort(ranking, (-amount, job.id))

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds nothing any more. It must hold a rank on each of these nodes."""
        holding = self._holding_by_job.pop(job.id)
        self.gpus -= holding.job.request.gpus * len(holding.nodes)
        if self._holdings_by_node is not None:
            for node in dict.fromkeys(nodes):
                del self._holdings_by_node[node][job.id]
                self._journal.add(node)
        for (eligible, resource), ranking in self._rankings.items():
            amount = self._amount(holding, eligible, resource)
            if amount > 0:
                del ranking[bisect_left(ranking, (-amount, job.id))]

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same."""
        holding = self._holding_by_job[job.id] = Holding(job, nodes)
        if self._holdings_by_node is not None:
            self._enter(self._holdings_by_node, holding)

    def all(self) -> Collection[Holding]:
        """Return every holding, in no order."""
        return self._holding_by_job.values()

    def watch(self) -> ChangeLog[str]:
        """Return the nodes whose holders change, from the first call on. O(1); O(ranks held) at that call."""
        if self._holdings_by_node is None:
            self._holdings_by_node = {}
            for holding in self._holding_by_job.values():
                self._enter(self._holdings_by_node, holding)
        return self._journal

    def at(self, node: str) -> Collection[NodeHolding]:
        """Return who holds something on a node, in no order. Call `watch` before."""
        parts = self._holdings_by_node.get(node) if self._holdings_by_node is not None else None
        return () if parts is None else parts.values()

    def _enter(self, holdings_by_node: dict[str, dict[JobId, NodeHolding]], holding: Holding) -> None:
        job, nodes = holding
        for node in dict.fromkeys(nodes):
            holdings_by_node.setdefault(node, {})[job.id] = NodeHolding(job, nodes.count(node))
            self._journal.add(node)

    def nodes_changed(self, number_by_name: Mapping[str, int]) -> None:
        """The eligible nodes may have changed, and the numbers of nodes."""
        self._number_by_name = number_by_name
        self._rankings.clear()

    def on_nodes(self, eligible: EligibleNodes, resource: str) -> tuple[JobId, ...]:
        """Return the jobs that hold most of a resource on the matching nodes, largest first, then by id."""
        ranking = self._rankings.get((eligible, resource))
        if ranking is None:
            amounts = (
                (self._amount(holding, eligible, resource), job) for job, holding in self._holding_by_job.items()
            )
            ranking = self._rankings[eligible, resource] = sorted(
                (-amount, job) for amount, job in amounts if amount > 0
            )
        return tuple(job for _, job in ranking[: self._count])

    def of_quota(self, namespace: str, key: str, scopes: tuple[QuotaScope, ...] = ()) -> tuple[JobId, ...]:
        """Return the jobs of a namespace that use most of a quota's key: largest first, then id. O(jobs that hold).

        `scopes`: of the quota."""
        amounts = (
            (-job.quota.get(key, 0) * len(nodes), job.id)
            for job, nodes in self._holding_by_job.values()
            if job.namespace == namespace and is_counted(scopes, job.scopes)
        )
        return tuple(job for _, job in nsmallest(self._count, (entry for entry in amounts if entry[0] < 0)))

    def of_tenants(self, virtual_clusters: Collection[str], resource: str) -> tuple[JobId, ...]:
        """Return their jobs that hold most of a resource: largest first, then id. O(jobs that hold).

        Cores of GPU jobs are not counted, as `TenantLedger` does not."""
        amounts = (
            (-amount_of(job.request, resource) * len(nodes), job.id)
            for job, nodes in self._holding_by_job.values()
            if job.virtual_cluster in virtual_clusters and (resource == GPUS or not job.request.gpus)
        )
        return tuple(job for _, job in nsmallest(self._count, (entry for entry in amounts if entry[0] < 0)))

    def _amount(self, holding: Holding, eligible: EligibleNodes, resource: str) -> int:
        amount = amount_of(holding.job.request, resource)
        if not amount or len(eligible.matching) == len(self._number_by_name):
            return amount * len(holding.nodes)
        return amount * sum(self._number_by_name.get(name) in eligible.matching for name in holding.nodes)


class GpusOfOthers:
    """Whether pods of others alone keep gangs from their GPUs at the end of a cycle: then no job's end helps.

    Bound pods only. `in_flight`: as in `World`; it counts on more nodes than pods go to, and is soon over."""

    def __init__(self, capacity: FreeCapacity, holdings: Holdings, in_flight: Mapping[str, Resources]) -> None:
        self._capacity = capacity
        self._holdings = holdings
        self._in_flight = in_flight
        self._without_jobs: list[int] | None = None
        self._may_be_any = capacity.taken_gpus != holdings.gpus
        self._are_any = True
        self._ranks: dict[tuple[NodeGroups, int], tuple[int, int]] = {}  # without jobs, and without any pods

    def told(self, shortfall: Shortfall, rank_class: RankClass, replicas: int) -> Shortfall:
        """Return the shortfall with what is to be said of pods of others that hold GPUs, or do not.

        O(1) where jobs hold all GPUs that are not free."""
        if shortfall.short_of != GPUS or not self._may_be_any:
            return shortfall
        if self.keep_out(rank_class, replicas):
            return shortfall._replace(holders=(), others_alone=True)
        if shortfall.holders or not self._in_flight or self.hold_any(rank_class):
            return shortfall
        return shortfall._replace(passes=True)

    def hold_any(self, rank_class: RankClass) -> bool:
        """True if others hold a GPU of a usable node. Cost: as of `keep_out`."""
        without_jobs, sizes = self._find_once(), self._capacity.nodes
        numbers = rank_class.groups.amount_by_node if self._are_any else ()
        return any(without_jobs[number] < sizes[number].allocatable.gpus for number in numbers)

    def keep_out(self, rank_class: RankClass, replicas: int) -> bool:
        """True if too few GPUs for the gang would be free on its usable nodes even after every job has ended.

        O(nodes + ranks held) at the first call; O(usable nodes) for each kind of ranks, if others hold any GPU."""
        asked = rank_class.request.gpus
        if not asked:
            return False
        without = self._find_once()
        if not self._are_any:
            return False
        key = (rank_class.groups, asked)
        if key not in self._ranks:
            sizes, numbers = self._capacity.nodes, rank_class.groups.amount_by_node
            self._ranks[key] = (
                sum(without[number] // asked for number in numbers),
                sum(sizes[number].allocatable.gpus // asked for number in numbers),
            )
        without_jobs, empty = self._ranks[key]
        return without_jobs < replicas <= empty

    def _find_once(self) -> list[int]:
        if self._without_jobs is None:
            self._without_jobs = self._find_without_jobs()
        return self._without_jobs

    def _find_without_jobs(self) -> list[int]:
        """The GPUs of each node that would be free without any job."""
        capacity = self._capacity
        found = [capacity.free(number).gpus for number in range(len(capacity.nodes))]
        for job, names in self._holdings.all():
            for name in names if job.request.gpus else ():
                number = capacity.number_by_name.get(name)
                if number is not None:
                    found[number] += job.request.gpus
        for name, amount in self._in_flight.items():
            number = capacity.number_by_name.get(name) if amount.gpus else None
            if number is not None:
                found[number] += amount.gpus
        sizes = [node.allocatable.gpus for node in capacity.nodes]
        self._are_any = any(gpus < size for gpus, size in zip(found, sizes, strict=True))
        return [min(size, max(0, gpus)) for gpus, size in zip(found, sizes, strict=True)]


def holds_the_same(job: Job, before: Job) -> bool:
    """True if both versions of a job hold the same amounts for the same party. Their nodes must be the same."""
    return (
        (job.request is before.request or job.request == before.request)
        and job.replicas == before.replicas
        and job.user == before.user
        and job.virtual_cluster == before.virtual_cluster
    )


def stands_alike(job: Job, before: Job) -> bool:
    """True if both versions differ only in fields that no caller of `Holdings` reads, such as the category.

    They must hold the same, see `holds_the_same`."""
    return (
        job.placement is before.placement
        and job.phase is before.phase
        and job.attempt == before.attempt
        and job.generation == before.generation
        and job.served_s == before.served_s
        and job.remaining_s == before.remaining_s
        and job.as_of_s == before.as_of_s
        and job.unwritable is before.unwritable
        and job.resumable == before.resumable
        and job.saved_s == before.saved_s
        and job.tunable == before.tunable
        and job.asked_anyway == before.asked_anyway
        and job.resized == before.resized
        and job.held_cores == before.held_cores
        and (job.wish is before.wish or job.wish == before.wish)
        and job.run_limit_s == before.run_limit_s
        and job.run_from_s == before.run_from_s
        and (len(job.bound) >= job.replicas) == (len(before.bound) >= before.replicas)
        and (job.quota is before.quota or job.quota == before.quota)
        and job.scopes == before.scopes
    )
