"""Orders that a job alone decides: when it is tried. What must not live here: shares, and what fits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from coda.model import Job

Turn = tuple[Any, ...]
"""When a job is tried: lower first, different for different jobs because their ids are in it."""

Order = Callable[[Job], Turn]


def by_arrival(job: Job) -> Turn:
    """Higher priority, what was stopped for others, longer queued, id."""
    return (-job.priority, not job.returned, job.queued_s, job.id)


def by_remaining(job: Job) -> Turn:
    """Higher priority, least run time left (unknown: last), then as by arrival."""
    left_s = inf if job.remaining_s is None else job.remaining_s
    return (-job.priority, not job.returned, left_s, job.queued_s, job.id)
