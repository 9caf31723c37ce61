"""How many cores a job starts with under each rule of a policy. What must not live here: the search from there on
(`tuning`), the start point's own rules (`allocator`), and what is lent to running jobs (`spare_cores`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from coda.model.job import JobId
from coda.model.world import Node


class CoresRule(Enum):
    """How many cores a training job starts with; see `cores`."""

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
    """Whole cores of one rank with `gpus`; `asked` by its user, `tuned`: the allocator's start point. CPU jobs get what
    they ask for. `reserved_per_gpu`: cores that belong to the GPU array, where there are arrays. `best`: with which a
    profile says it is fastest, 0 for unknown.

    Tuned: no more than belongs to the GPU array for so many GPUs, rounded down, at least 1: a job then never waits for
    a core of the CPU array, nor takes those of the GPUs beside it, and its search goes up from there. Source: CODA (a
    job may at first use its own array only); per GPU is our choice.

    In proportion: the GPUs' part of a node, rounded down, at least 1; where nodes differ, of those that have so many
    GPUs the one with the fewest cores per GPU, so that the job fits on all of them (our choice); as asked where none
    has. Source: Philly (ATC 2019), section 2.1.

    At best: the same, but no more than it can use. Source: Synergy (OSDI 2022), Synergy-TUNE."""
    if not gpus or rule is CoresRule.ASKED:
        return asked
    if rule is CoresRule.TUNED:
        return tuned if reserved_per_gpu is None else max(1, min(tuned, int(reserved_per_gpu * gpus)))
    parts = (
        node.allocatable.cpu_m * gpus // (node.allocatable.gpus * 1000)
        for node in nodes
        if node.allocatable.gpus >= gpus
    )
    part = max(1, min(parts, default=asked))
    return min(part, best) if best and rule is CoresRule.AT_BEST else part


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrower:
    """A running training job. `nodes`: rank -> node; `own` and `best`: cores per rank, that are its own and with which
    it is fastest, as a profile says."""

    job: JobId
    nodes: tuple[str, ...]
    own: int
    best: int


def cores_with_loans(spare_by_node: Mapping[str, int], borrowers: Iterable[Borrower]) -> dict[JobId, int]:
    """Cores per rank that each of these jobs has now: its own, and up to its best what is spare on all its nodes.

    `spare_by_node`: whole cores that are nobody's own; none on nodes that are not named. One core per rank after the
    other to the job with the lowest part of its best; ties: by id. O(cores lent x (ranks + log jobs))."""
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
            continue  # what is spare only shrinks: it gets no more
        for node, ranks in ranks_by_node.items():
            spare[node] -= ranks
        cores_by_job[job] += 1
        if cores_by_job[job] < best_by_job[job]:
            heappush(line, (cores_by_job[job] / best_by_job[job], job))
    return cores_by_job
