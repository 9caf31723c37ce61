"""How GPU jobs give back the cores that the CPU array owns: by running on with fewer, never by a stop.

GPU jobs start on, and grow into, whatever cores are free. What they hold of a node beyond the reserve of the GPU array
is lent by the CPU array, which takes it back when a CPU job waits for it. Source: CODA (ICDCS 2020) says that GPU jobs
may borrow from an idle CPU array; how they give back is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from coda.model.job import TAKEN_BACK, Job, JobId, Phase
from coda.model.live_placement import is_resizing, live_placement, open_wish
from coda.model.resources import Resources
from coda.policy.arrays import can_stop

_CORE_M: Final = 1000


def own_cores(job: Job, sizes: Iterable[tuple[Resources, int]]) -> int:
    """Return the whole cores per rank that nobody takes from a GPU job: its GPUs' part of the GPU array's reserve.

    The largest part over its nodes, at least one core per GPU: each has a process that must run.
    `sizes`: of each of its nodes the size and the reserve in millicores. Our choice: a job that does with its part
    never loses a core, and together the parts of a node are at most the reserve."""
    gpus = job.request.gpus
    parts = (reserve_m * gpus // (size.gpus * _CORE_M) for size, reserve_m in sizes if size.gpus)
    return max(gpus, max(parts, default=0))


def spare_cores(job: Job, own: int) -> int:
    """Return the whole cores per rank that a running GPU job can give back now, beyond its `own`, and beyond those that
    its pods ask for anyway: the API server would count them all the same.

    None unless its cores are Coda's to choose. None while something else is decided about them: a wish that is open, or
    a change that is under way. None after the last order to give back failed: a new grant shows that changes work."""
    if not job.tunable or job.phase is not Phase.RUNNING or not can_stop(job):
        return 0
    if live_placement(job) is None or is_resizing(job) or open_wish(job) is not None or could_not_return(job):
        return 0
    return max(0, job.cpus_per_replica - max(own, job.asked_anyway))


def could_not_return(job: Job) -> bool:
    """True if the job was told to give cores back, and a node of it did not let it. It is not told again before a new
    grant."""
    placement = live_placement(job)
    answer = placement.answer if placement is not None else None
    if answer is None or answer.code != TAKEN_BACK or is_resizing(job):
        return False
    return job.cpus_per_replica > answer.cores


class Loan(NamedTuple):
    """What a GPU job on a node can give back."""

    job: Job
    ranks: int  # on this node
    spare: int  # whole cores per rank
    nodes: int  # on which it runs


def taken_back(loans: Iterable[Loan], wanted_m: int) -> dict[JobId, int]:
    """Return how many cores per rank each job gives back so that a node gains `wanted_m`, or as much as there is.

    One core per rank at a time, from the job on fewest nodes (elsewhere nobody asked for its cores), then with most
    spare cores for each of its GPUs; ties: by id. O(cores x log jobs)."""
    lines = [(*_standing(loan, loan.spare), loan) for loan in loans if loan.spare > 0]
    heapify(lines)
    taken: dict[JobId, int] = {}
    while lines and wanted_m > 0:
        _, _, job_id, loan = heappop(lines)
        cores = taken[job_id] = taken.get(job_id, 0) + 1
        wanted_m -= loan.ranks * _CORE_M
        if cores < loan.spare:
            heappush(lines, (*_standing(loan, loan.spare - cores), loan))
    return taken


def _standing(loan: Loan, spare: int) -> tuple[int, float, JobId]:
    return (loan.nodes, -spare / loan.job.request.gpus, loan.job.id)
