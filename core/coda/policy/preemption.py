"""The rules of who may be stopped for whom where a policy preempts. What must not live here: who is, and where that
makes room (`preempting`); arrays, which have rules of their own (`arrays`).

Under every rule a job that is tried earlier may stop whomever a later one may. So what is freed for a job is of no use
to those before it, and it starts in the next round, at the same moment: nobody is stopped in vain. Nobody is stopped
for a job of the same standing, and a stopped job cannot stop, by returning, the one it was stopped for: there is no
stopping to and fro. (What is freed of a ResourceQuota may help an earlier job all the same.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from coda.model.job import Job
from coda.policy.order import LAS_THRESHOLD_GPU_S, attained_gpu_s, is_little_served

Span = tuple[float, float]
"""Moments after the first, up to and with the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRule:
    """A rule of who is stopped.

    stands_at: the moment a running job is judged by; among those that may be stopped the latest goes first (ties: the
        last by id)
    reach: the moments of the jobs that may be stopped for a waiting one, now; None: nobody may
    is_timed: time alone brings more jobs into reach
    of_borrowers: only jobs beyond their virtual cluster's quota, and only for jobs within theirs"""

    stands_at: Callable[[Job], float]
    reach: Callable[[Job, float], Span | None]
    is_timed: bool = False
    of_borrowers: bool = False


def end_s(job: Job) -> float:
    """When a running job will have ended, as far as known; infinite where it is not."""
    return inf if job.remaining_s is None else _counts_since_s(job) + job.remaining_s


def demoted_s(job: Job) -> float:
    """When a running GPU job reaches the threshold of `tiresias-las`, or did; infinite for CPU jobs."""
    gpus = job.request.gpus * job.replicas
    return _counts_since_s(job) + (LAS_THRESHOLD_GPU_S - attained_gpu_s(job)) / gpus if gpus else inf


def gpus_since_s(job: Job) -> float:
    """When a running GPU job started; before all times for CPU jobs, which are not stopped for GPU quotas."""
    return job.placement.committed_s if job.request.gpus and job.placement is not None else -inf


def _counts_since_s(job: Job) -> float:
    """`served_s` and `remaining_s` of a running job are of this moment: a job that waits is not served."""
    began_s = job.placement.committed_s if job.placement is not None else job.as_of_s
    return max(began_s, job.as_of_s)


SHORTEST_FIRST: Final = PreemptionRule(
    stands_at=end_s,
    reach=lambda job, now_s: None if job.remaining_s is None else (now_s + job.remaining_s, inf),
)
"""Whoever has strictly more left than the waiting job, the most first; unknown counts as most. Source: SRTF."""

LEAST_SERVED_FIRST: Final = PreemptionRule(
    stands_at=demoted_s,
    reach=lambda job, now_s: (-inf, now_s) if is_little_served(job) else None,
    is_timed=True,
)
"""GPU jobs of the second queue for GPU jobs of the first, the last that came into it first; within a queue nobody.
Source: Tiresias, whose queues are FIFO, so that what runs stays."""

QUOTAS_FIRST: Final = PreemptionRule(
    stands_at=gpus_since_s,
    reach=lambda job, now_s: (-inf, inf) if job.request.gpus else None,
    of_borrowers=True,
)
"""GPU jobs beyond their tenant's quota for GPU jobs within theirs, the newest first. Source: YARN's capacity scheduler
with preemption, as Philly (ATC 2019) and AntMan (OSDI 2020) use it."""
