"""What the windows of a job's ranks say together: no rank is believed to stand for another one.

GPUs that wait for each other in a collective are all as busy as the slowest lets them seem, or more: a waiting GPU runs
a kernel, and counts as busy. So one rank's utilisation says little about the job's speed. CPU use does: loading takes
the same CPU time in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coda.allocator.config import FULL_SHARE
from coda.allocator.window_samples import CpuWork, WindowResult
from coda.errors import require

THROTTLED_SHARE: Final = 0.1
"""The share of its CPU periods from which a rank counts as throttled. Our choice."""

MOST_CORES: Final = 1024
"""The most cores per rank that any object may name: as in the definitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The last window of one rank, as the agent on its node tells it. Raises InvalidInput for impossible values.

    `window`: its number. Only whether it is another one than before means something: clocks of two machines are never
    compared, and an agent that starts again counts from anywhere."""

    job_uid: str
    attempt: int
    rank: int
    cores: int  # per rank, as its kubelet says they were in force
    window: int
    result: WindowResult

    def __post_init__(self) -> None:
        require(0 < len(self.job_uid) <= 128, "a report must name its job", self.job_uid)
        require(self.attempt >= 1 and self.rank >= 0, "a report must be of a rank", self.rank)
        require(1 <= self.cores <= MOST_CORES, "a rank has a core at least", self.cores)
        require(self.window >= 0, "windows are counted from 0", self.window)
        reading, work = self.result.reading, self.result.work
        if reading is not None:
            require(reading.variance <= 1, "the variance of a share is 0 to 1", reading.variance)
        if work is not None:
            require(0 <= work.cores <= MOST_CORES, f"CPU use is 0 to {MOST_CORES} cores", work.cores)
            require(0 <= work.variance <= MOST_CORES**2, f"its variance is 0 to {MOST_CORES}^2", work.variance)
            require(0 <= work.throttled_share <= 1, "a share of periods is 0 to 1", work.throttled_share)


def result_of_job(
    ranks: Sequence[WindowResult], gpus: int, most_cores: int, *, cores: int = 0, unknown: Sequence[int] = ()
) -> WindowResult:
    """Return what the windows of the known ranks say of the job, which has `gpus` GPUs in all.

    A rank that says nothing, or is `unknown`, silences the job: it might be the one that starves. The least busy GPU is
    the job's utilisation. With several GPUs core counts are compared by the CPU use of the rank that uses most, as a
    share of `most_cores`: ranks that make their steps together all fall by the same part, and of others the hungriest
    starves first, since all have the same cores. Where the CPU use of some rank is unknown, they are compared by
    utilisation, and the reading is blind. One GPU's rank is throttled if it also uses all its `cores` (per rank; 0:
    unknown): its GPU may live on what was loaded before. What pauses used is rank 0's. `ranks` must not be empty. Ties:
    the first rank."""
    pause_core_s = ranks[0].pause_core_s
    if unknown:
        return WindowResult(reading=None, unknown=tuple(unknown), pause_core_s=pause_core_s)
    silent = next((rank for rank in ranks if rank.reading is None), None)
    if silent is not None:
        return replace(silent, pause_core_s=pause_core_s)
    readings = [rank.reading for rank in ranks if rank.reading is not None]
    least = min(readings, key=lambda reading: reading.share)
    known = [rank.held_up for rank in ranks if rank.held_up is not None]
    held_up = any(known) if len(known) == len(ranks) or any(known) else None
    works = [rank.work for rank in ranks if rank.work is not None and rank.work.cores > 0]
    if gpus <= 1 or len(works) < len(ranks):
        throttled = gpus <= 1 and any(_uses_all(work, cores) for work in works)
        used_cores = max((work.cores for work in works), default=0.0)
        reading = replace(least, throttled=throttled, used_cores=used_cores, blind=gpus > 1)
        return WindowResult(reading=reading, held_up=held_up, pause_core_s=pause_core_s)
    work = max(works, key=lambda one: one.cores)
    reading = replace(
        least,
        work=min(1.0, work.cores / most_cores),
        variance=work.variance / most_cores**2,
        steady=work.steady,
        throttled=any(one.throttled_share > THROTTLED_SHARE for one in works),
        used_cores=work.cores,
    )
    return WindowResult(reading=reading, held_up=held_up, work=work, pause_core_s=pause_core_s)


def _uses_all(work: CpuWork, cores: int) -> bool:
    return cores > 0 and work.cores >= FULL_SHARE * cores and work.throttled_share > THROTTLED_SHARE
