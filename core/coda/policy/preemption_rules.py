"""The rules of who may be stopped for whom, for policies that preempt. Arrays have their own rules (`arrays`).

Under every rule, a job that is tried earlier may stop every job that a later one may. So the capacity freed for a job
is of no use to the jobs before it, and the job starts in the next cycle, at the same time: no stop is in vain. No job
is stopped for a job of equal rank, and a stopped job cannot stop the job that it was stopped for, so two jobs never
stop each other in turn. (A freed ResourceQuota may still help an earlier job.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from coda.model.job import Job
from coda.policy.order import LAS_THRESHOLD_GPU_S, attained_gpu_s, is_given_room, is_little_served

LEAST_RUN_S: Final = 600.0
"""How long a job runs at least before it makes room for one that was served less. Our choice: a restart costs about a
minute, so at most a tenth of the time is lost, however many jobs come."""

LEAST_RUN_LIMIT_S: Final = 7200.0
"""The most that this time grows to, after stops that threw work away. Our choice: a job that saves once in two hours
gets on, however many jobs come, and nobody waits longer for it to make room."""

RESTART_S: Final = 60.0
"""What a restart costs besides lost work, in seconds of the job. Source: Lucid, Tiresias (40 to 60 s)."""

Span = tuple[float, float]
"""The times after the first, up to and including the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRule:
    """A rule of who is stopped.

    judged_at_s: the time by which a running job is judged; of the jobs that may be stopped the latest goes first (ties:
        the last by id)
    reach: the times of the running jobs that may be stopped for a waiting job now; None: none may
    is_timed: with time alone, more jobs come into reach
    of_borrowers: only jobs beyond their virtual cluster's quota, and only for jobs within their own
    heeds_priority: none of a higher priority; and for a higher priority also those that `reach` leaves out
    least_likely_first: of those in reach, the lowest priority goes first; of equal ones, who is least likely to end
        soon (`GittinsIndices`); of those that are about as likely, who loses least work; ties: as without it. Of a
        priority, who holds far more GPUs than are asked for goes last"""

    judged_at_s: Callable[[Job], float]
    reach: Callable[[Job, float], Span | None]
    is_timed: bool = False
    of_borrowers: bool = False
    heeds_priority: bool = False
    least_likely_first: bool = False


def lost_work(job: Job, now_s: float) -> float:
    """Return how much work it throws away to stop the running job now: GPU-seconds, or core-seconds of a CPU job.

    Since its last known save, if it resumes, else since its attempt began. Who is stopped is chosen by this where a
    rule leaves a choice: least first. Source: Philly (ATC 2019), section 5, asks for it; the measure is our choice."""
    size = job.request.gpus or job.request.cpu_m / 1000
    return unsaved_s(job, now_s) * size * job.replicas


def unsaved_s(job: Job, now_s: float) -> float:
    """Return the seconds of work that it throws away to stop the running job now, as `lost_work` counts them."""
    since_s = job.placement.committed_s if job.placement is not None else now_s
    if job.resumable:
        since_s = max(since_s, job.saved_s)
    return max(0.0, now_s - since_s)


def end_s(job: Job) -> float:
    """Return when a running job will end; infinite if that is not known."""
    return inf if job.remaining_s is None else _counts_since_s(job) + job.remaining_s


def demoted_s(job: Job) -> float:
    """Return when a running GPU job reaches, or reached, the threshold of `tiresias-las`; infinite for CPU jobs."""
    gpus = job.request.gpus * job.replicas
    return _counts_since_s(job) + (LAS_THRESHOLD_GPU_S - attained_gpu_s(job)) / gpus if gpus else inf


def slice_end_s(job: Job) -> float:
    """Return when a running GPU job was served enough, and long enough at once, to make room; infinite for CPU jobs."""
    placement = job.placement
    return demoted_s(job) if placement is None else max(demoted_s(job), placement.committed_s + least_run_s(job))


def least_run_s(job: Job) -> float:
    """Return how long the job runs at least before it makes room: `LEAST_RUN_S`, or twice what its last stop threw
    away, up to `LEAST_RUN_LIMIT_S`.

    So the time doubles until an attempt has saved. Else who saves less often would begin at the same point for ever.
    Source: our choice, as borrowers have it (`policy.reclaim`)."""
    return min(LEAST_RUN_LIMIT_S, max(LEAST_RUN_S, 2.0 * job.lost_s))


def gpus_since_s(job: Job) -> float:
    """Return when a running GPU job started; minus infinity for CPU jobs: they are not stopped for GPU quotas."""
    return job.placement.committed_s if job.request.gpus and job.placement is not None else -inf


def _counts_since_s(job: Job) -> float:
    """Return the time of a running job's `served_s` and `remaining_s`: they do not change while it waits."""
    began_s = job.placement.committed_s if job.placement is not None else job.as_of_s
    return max(began_s, job.as_of_s)


SHORTEST_FIRST: Final = PreemptionRule(
    judged_at_s=end_s,
    reach=lambda job, now_s: None if job.remaining_s is None else (now_s + job.remaining_s, inf),
)
"""Stops jobs with strictly more run time left, the most first; unknown counts as most. Source: SRTF."""

LEAST_SERVED_FIRST: Final = PreemptionRule(
    judged_at_s=demoted_s,
    reach=lambda job, now_s: (-inf, now_s) if is_little_served(job) else None,
    is_timed=True,
)
"""Stops GPU jobs of the second queue for GPU jobs of the first, the last that entered it first; none within a queue.
Source: Tiresias, whose queues are FIFO: a running job of the same queue stays."""

TIME_SLICED: Final = PreemptionRule(
    judged_at_s=slice_end_s,
    reach=lambda job, now_s: (-inf, now_s) if is_given_room(job) else None,
    is_timed=True,
    heeds_priority=True,
    least_likely_first=True,
)
"""As `LEAST_SERVED_FIRST`, for jobs that make room themselves later. Each run lasts `least_run_s` at least. A higher
priority stops a lower one, and an overdue job whoever a job of the first queue may. Source: our choice."""

QUOTAS_FIRST: Final = PreemptionRule(
    judged_at_s=gpus_since_s,
    reach=lambda job, now_s: (-inf, inf) if job.request.gpus else None,
    of_borrowers=True,
)
"""Stops GPU jobs beyond their tenant's quota for GPU jobs within theirs, the newest first. Source: YARN's capacity
scheduler with preemption, as Philly (ATC 2019) and AntMan (OSDI 2020) use it."""
