"""How many cores a job starts with, and how spare cores are lent to running jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from coda.model.job import JobId
from coda.model.world import Node


class CoresRule(Enum):
    """How many cores a training job starts with; see `starting_cores`."""

    ASKED = "as asked"
    PROPORTIONAL = "the GPUs' share of the node's cores"
    AT_BEST = "the GPUs' share at most, and no more than it can use"
    TUNED = "the allocator's start point, then its search"


def starting_cores(
    rule: CoresRule,
    *,
    asked: int,
    gpus: int,
    tuned: int,
    nodes: Collection[Node],
    reserved_per_gpu: float | None = None,
    best: int = 0,
) -> int:
    """Return the whole cores that one rank with `gpus` GPUs starts with. CPU jobs get what they ask for.

    `asked`: by the user. `tuned`: the allocator's start point. `reserved_per_gpu`: cores that belong to the GPU array;
    None without arrays. `best`: the count at which a profile says the job is fastest; 0: unknown.

    TUNED: at most the share of the GPU array for these GPUs, and at most PROPORTIONAL's. So the job never waits for a
    core of the CPU array, takes none from the GPUs beside it, and two jobs of four GPUs fit a node of eight; its search
    goes up from there. Source: CODA (a job may first use its own array only); both shares are our choice.

    PROPORTIONAL: the GPUs' share of a node, rounded down, at least 1. If nodes differ: the node with the fewest cores
    per GPU among those with enough GPUs, so that the job fits on all of them (our choice); as asked if there is none.
    Once it runs, it gets the share of its own nodes (`proportional_share`) if these cores are free.
    Source: Philly (ATC 2019), section 2.1.

    AT_BEST: the same, but no more than the job can use. Source: Synergy (OSDI 2022), Synergy-TUNE."""
    if not gpus or rule is CoresRule.ASKED:
        return asked
    if rule is CoresRule.TUNED and reserved_per_gpu is not None:
        tuned = max(1, min(tuned, int(reserved_per_gpu * gpus)))
    parts = (
        node.allocatable.cpu_m * gpus // (node.allocatable.gpus * 1000)
        for node in nodes
        if node.allocatable.gpus >= gpus
    )
    if rule is CoresRule.TUNED:
        return min(tuned, max(1, min(parts, default=tuned)))
    part = max(1, min(parts, default=asked))
    return min(part, best) if best and rule is CoresRule.AT_BEST else part


def proportional_share(gpus: int, nodes: Iterable[Node]) -> int:
    """Return the whole cores of a rank with `gpus` GPUs in proportion to the GPUs of its node; the least of `nodes`."""
    return min(node.allocatable.cpu_m * gpus // (node.allocatable.gpus * 1000) for node in nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrower:
    """A running training job that spare cores can be lent to. `nodes[rank]` is a node name.

    `own`: its own cores per rank. `best`: the cores per rank at which a profile says it is fastest."""

    job: JobId
    nodes: tuple[str, ...]
    own: int
    best: int


def cores_with_loans(spare_by_node: Mapping[str, int], borrowers: Iterable[Borrower]) -> dict[JobId, int]:
    """Return the cores per rank of each job: its own, and spare cores of its nodes up to its best.

    `spare_by_node`: whole cores that no job owns; 0 on nodes not named. One core per rank at a time goes to the job
    with the lowest share of its best; ties: by id. O(cores lent x (ranks + log jobs))."""
    spare = dict(spare_by_node)
    ranks_by_job: dict[JobId, Counter[str]] = {}
    best_by_job: dict[JobId, int] = {}
    cores_by_job: dict[JobId, int] = {}
    for one in borrowers:
        cores_by_job[one.job], best_by_job[one.job], ranks_by_job[one.job] = one.own, one.best, Counter(one.nodes)
    line = [(cores / best_by_job[job], job) for job, cores in cores_by_job.items() if cores < best_by_job[job]]
    heapify(line)
    while line:
        _, job = heappop(line)
        ranks_by_node = ranks_by_job[job]
        if any(spare.get(node, 0) < ranks for node, ranks in ranks_by_node.items()):
            continue  # spare cores only shrink here: this job gets no more
        for node, ranks in ranks_by_node.items():
            spare[node] -= ranks
        cores_by_job[job] += 1
        if cores_by_job[job] < best_by_job[job]:
            heappush(line, (cores_by_job[job] / best_by_job[job], job))
    return cores_by_job
