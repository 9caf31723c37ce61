"""What the windows of a job's ranks say together: the slowest rank decides.

GPUs that wait for each other in a collective are all as busy as the slowest lets them seem, or more: a waiting GPU runs
a kernel, and counts as busy. So one rank's utilisation says little about the job's speed. CPU use does: loading takes
the same CPU time in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coda.allocator.window_samples import WindowResult

THROTTLED_SHARE: Final = 0.1
"""The share of its CPU periods from which a rank counts as throttled. Our choice."""


def result_of_job(ranks: Sequence[WindowResult], gpus: int, most_cores: int) -> WindowResult:
    """Return what the windows of the known ranks say of the job, which has `gpus` GPUs in all.

    A rank that says nothing silences the job. The least busy GPU is the job's utilisation. With several GPUs core
    counts are compared by the least CPU use, as a share of `most_cores` per rank; by utilisation where the CPU use of
    some rank is unknown. `ranks` must not be empty. Ties: the first rank."""
    silent = next((rank for rank in ranks if rank.reading is None), None)
    if silent is not None:
        return silent
    readings = [rank.reading for rank in ranks if rank.reading is not None]
    least = min(readings, key=lambda reading: reading.share)
    known = [rank.held_up for rank in ranks if rank.held_up is not None]
    held_up = any(known) if len(known) == len(ranks) or any(known) else None
    works = [rank.work for rank in ranks if rank.work is not None and rank.work.cores > 0]
    if gpus <= 1 or len(works) < len(ranks):
        return WindowResult(reading=least, held_up=held_up)
    work = min(works, key=lambda one: one.cores)
    reading = replace(
        least,
        work=min(1.0, work.cores / most_cores),
        variance=work.variance / most_cores**2,
        steady=work.steady,
        throttled=any(one.throttled_share > THROTTLED_SHARE for one in works),
    )
    return WindowResult(reading=reading, held_up=held_up, work=work)
