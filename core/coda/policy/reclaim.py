"""When a borrower may be told to give its cores back: limits that keep reclaims from going on for ever.

A GPU job that fails and comes again would stop the same CPU jobs every time. So a borrower runs for a minimum time
first, and for twice as long after each reclaim that came soon. Whoever needs less than the longest such time gets
done, and no GPU job waits longer than that for a borrower. Source: our choice, after KAI's `reclaimMinRuntime` and
Slurm's `PreemptExemptTime`; doubling is what Kubernetes does with containers that crash.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from coda.model.job import Job
from coda.policy.config import ReclaimConfig

WINDOW_S: Final = 60.0
"""Evictions are counted for so long."""

_MOST_DOUBLINGS: Final = 40


def min_runtime_s(reclaimed: int, config: ReclaimConfig) -> float:
    """Return how long a borrower runs at least that was reclaimed so often in a row."""
    longer_s: float = config.min_runtime_s * 2 ** min(reclaimed, _MOST_DOUBLINGS)
    return min(config.min_runtime_limit_s, longer_s)


def kept_until_s(job: Job, config: ReclaimConfig) -> float:
    """Return until when a placed job keeps what it borrowed; minus infinity if it may be stopped at any time."""
    if not config.min_runtime_s or job.placement is None or not job.placement.borrows:
        return -inf
    return job.placement.committed_s + min_runtime_s(job.reclaimed, config)


def times_reclaimed(job: Job, now_s: float, config: ReclaimConfig) -> int:
    """Return how often in a row the job was reclaimed, once it is stopped now.

    After a run of the longest minimum time the count begins again: it had its chance."""
    ran_s = now_s - job.placement.committed_s if job.placement is not None else 0.0
    return 1 if ran_s >= config.min_runtime_limit_s else job.reclaimed + 1


def next_reclaim_s(reclaimed_s: Collection[float], config: ReclaimConfig, now_s: float) -> float:
    """Return when the number of evictions lets one more job be reclaimed for; minus infinity if it does now.

    `reclaimed_s`: when borrowers were stopped. At most `WINDOW_S` from now, however many those were."""
    limit = config.evictions_per_minute
    if not limit or len(reclaimed_s) < limit:
        return -inf
    recent_s = sorted([moment_s for moment_s in reclaimed_s if moment_s > now_s - WINDOW_S])
    return -inf if len(recent_s) < limit else min(recent_s[-limit], now_s) + WINDOW_S
