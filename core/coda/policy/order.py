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


def by_arrival(job: Job) -> SortKey:
    """Order by higher priority, then stopped for others, longer queued, id."""
    return (-job.priority, not job.returned, job.queued_s, job.id)


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


def is_little_served(job: Job) -> bool:
    """True for a GPU job that is still in the first queue."""
    return bool(job.request.gpus) and attained_gpu_s(job) < LAS_THRESHOLD_GPU_S


def attained_gpu_s(job: Job) -> float:
    """Return GPUs times the seconds that the job had run at `as_of_s`."""
    return job.request.gpus * job.replicas * job.served_s
