"""Who is asked first. What must not live here: whether a job fits.

A job that cannot start is skipped, never waited for: arrival order that skips reproduces what clusters publish as FIFO,
and one large job at the head never idles the rest.
"""

from __future__ import annotations

from coda.model import Job, World
from coda.world import is_waiting


def waiting_jobs(world: World) -> list[Job]:
    """The jobs that wait for a placement, in the order they are tried: higher priority, longer queued, id.

    This key is the whole policy of order: fair shares between tenants (DRF) go before `queued_s`. O(jobs log jobs)."""
    return sorted(
        (job for job in world.jobs if is_waiting(job)),
        key=lambda job: (-job.priority, job.queued_s, job.id),
    )


def wake_s(world: World, now_s: float) -> float | None:
    """The next moment at which time alone lets a waiting job start, or None: decide again then, or on a change."""
    return min((job.not_before_s for job in world.jobs if job.not_before_s > now_s and is_waiting(job)), default=None)
