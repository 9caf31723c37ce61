"""Orders that a job alone decides: when it is tried. What must not live here: shares, and what fits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from coda.model.job import Job

SortKey = tuple[Any, ...]
"""When a job is tried: lower first, different for different jobs because their ids are in it."""

Order = Callable[[Job], SortKey]

LAS_THRESHOLD_GPU_S: Final = 3600.0
"""GPU-seconds of service from which a job is in the second queue of `tiresias-las`. Source: Tiresias (Gu et al., NSDI
2019), discretised 2D-LAS with two queues; the threshold is our choice, near that of its simulator (3250)."""


def by_arrival(job: Job) -> SortKey:
    """Higher priority, what was stopped for others, longer queued, id."""
    return (-job.priority, not job.returned, job.queued_s, job.id)


def by_remaining(job: Job) -> SortKey:
    """Higher priority, least run time left (unknown: last), then as by arrival."""
    left_s = inf if job.remaining_s is None else job.remaining_s
    return (-job.priority, not job.returned, left_s, job.queued_s, job.id)


def by_least_left(job: Job) -> SortKey:
    """Least run time left (unknown: last), longer queued, id: nothing else counts."""
    return (inf if job.remaining_s is None else job.remaining_s, job.queued_s, job.id)


def by_attained_service(job: Job) -> SortKey:
    """GPU jobs below the threshold of service first, then all others; longer queued, id.

    CPU jobs, which the source does not have, wait with the second queue: they attain no GPU time, and would else go
    before every GPU job for ever (our choice)."""
    return (not is_little_served(job), job.queued_s, job.id)


def is_little_served(job: Job) -> bool:
    """A waiting GPU job that is in the first queue still."""
    return bool(job.request.gpus) and attained_gpu_s(job) < LAS_THRESHOLD_GPU_S


def attained_gpu_s(job: Job) -> float:
    """GPUs times the seconds it had run at `as_of_s`."""
    return job.request.gpus * job.replicas * job.served_s
