"""The order that a decision to stop a job becomes, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Iterable

from coda.model.decision import Stop, name_for
from coda.model.job import Job, JobId, Phase, StopOrder
from coda.policy.config import PolicyConfig

_SAVES = frozenset({Phase.RUNNING})
"""The phases in which a job may have something to save."""


def order_from_stop(stop: Stop, job: Job, now_s: float, config: PolicyConfig) -> StopOrder:
    """Return the order that carries out `stop`, given at `now_s`.

    Its notice is what the job asks for, at most what the platform allows. A job that does not run yet gets none, nor
    does one whose memory a guaranteed job waits for: that fails within two minutes."""
    saves = job.phase in _SAVES and not job.awaited
    notice_s = min(job.stop_notice_s, config.stop_notice_limit_s) if saves else 0.0
    by = JobId(name_for(job.namespace, stop.by))
    return StopOrder(cause=stop.cause, by=by, since_s=now_s, notice_s=max(0.0, notice_s))


def longest_notice_s(jobs: Iterable[Job]) -> float:
    """Return the longest notice that one of these jobs was given in its present attempt, 0 if none was. O(jobs)."""
    return max(
        (
            job.placement.stop.notice_s
            for job in jobs
            if job.placement is not None and job.placement.stop is not None and job.placement.attempt == job.attempt
        ),
        default=0.0,
    )
