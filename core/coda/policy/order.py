"""Orders in which waiting jobs are tried, as far as one job alone decides."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from coda.model.job import Job

SortKey = tuple[Any, ...]
"""When a job is tried: lower first. It differs between jobs because it has their id."""

Order = Callable[[Job], SortKey]

LAS_THRESHOLD_GPU_S: Final = 3600.0
"""GPU-seconds of service from which a job is in the second queue of `tiresias-las`. Source: Tiresias (Gu et al., NSDI
2019), discretised 2D-LAS with two queues; the threshold is our choice, near that of their simulator (3250)."""

OVERTAKEN: Final = 30.0
"""How many times its expected run time a job lets later ones overtake it. Our choice: mean waits fall up to about 30
and stay alike beyond; so a job of 2 h is overtaken by those of 2.5 days at most (`docs/decisions/0058`)."""


def by_arrival(job: Job) -> SortKey:
    """Order by higher priority, then stopped for others, longer queued, id."""
    return (-job.priority, not job.returned, job.queued_s, job.id)


def by_expected_run(run_s: Callable[[Job], float], job: Job) -> SortKey:
    """Order by higher priority, then stopped for others, queued longest after a handicap, id.

    The handicap is `OVERTAKEN` times `run_s` of the job, how long it is expected to run. So only jobs that were queued
    within that time after a job overtake it, and a job of unknown length keeps its place. Source: our choice; a linear
    form of the highest response ratio next (Brinch Hansen, 1971), by which nothing has to be sorted again as time
    passes."""
    return (-job.priority, not job.returned, job.queued_s + OVERTAKEN * run_s(job), job.id)


def by_remaining(job: Job) -> SortKey:
    """Order by higher priority, then stopped for others, least run time left (unknown: last), longer queued, id."""
    left_s = inf if job.remaining_s is None else job.remaining_s
    return (-job.priority, not job.returned, left_s, job.queued_s, job.id)


def by_least_left(job: Job) -> SortKey:
    """Order by least run time left (unknown: last), then longer queued, id; priority does not count."""
    return (inf if job.remaining_s is None else job.remaining_s, job.queued_s, job.id)


def by_attained_service(job: Job) -> SortKey:
    """Order GPU jobs below the threshold of service first, then all others; then by longer queued, id.

    The source has no CPU jobs. They attain no GPU time and would always go before GPU jobs, so they wait in the second
    queue (our choice)."""
    return (not is_little_served(job), job.queued_s, job.id)


def rank_by_slices(job: Job, within: SortKey, *, borrows: bool = False) -> SortKey:
    """Return the key that puts `within` after priority, and first the jobs that others make room for.

    `borrows`: with the job its tenant would hold more than its own. A priority above 0 puts it before no other tenant's
    jobs then: what a tenant owns is not for the urgent jobs of others (docs/decisions/0072)."""
    priority = min(job.priority, 0) if borrows else job.priority
    return (-priority, not is_given_room(job), within)


def by_slices(order: Order, job: Job) -> SortKey:
    """Return the key of `rank_by_slices` for an order of single jobs."""
    return rank_by_slices(job, order(job))


def is_given_room(job: Job) -> bool:
    """True for a GPU job that was served little, and that will make room itself: it resumes.

    Without the second, nobody would say that a job resumes. A guest that has just moved is not: it would come back
    before the job that it moved for."""
    return job.resumable and not job.returned and is_little_served(job)


def is_little_served(job: Job) -> bool:
    """True for a GPU job that is still in the first queue."""
    return bool(job.request.gpus) and attained_gpu_s(job) < LAS_THRESHOLD_GPU_S


def attained_gpu_s(job: Job) -> float:
    """Return GPUs times the seconds that the job had run at `as_of_s`."""
    return job.request.gpus * job.replicas * job.served_s
