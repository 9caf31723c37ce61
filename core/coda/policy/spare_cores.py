"""Cores that belong to nobody, lent to training jobs that run faster with them. What must not live here: what a job's
own cores are (`cores`), and how a loan is carried out.

Source: Synergy (Mohan et al., OSDI 2022), Synergy-TUNE: a job has what it runs best with, but no more than its GPUs'
part of the node where that is scarce; the rest goes to the jobs that are sensitive to it. Who shares it and how is not
said there for jobs that all want more: here the one that is farthest from its best goes first (our choice: speed is
close to linear below the best, so that this levels relative speeds).

For the planner a loan is not taken: nodes count with the jobs' own cores. So whoever starts finds the cores free, and
gets them: after every round in which a job came, went or changed, ask anew, and take back before giving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from coda.model.job import JobId


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
