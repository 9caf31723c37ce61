"""What fewer cores cost a job in its pauses: it may roll out, evaluate or save on CPUs while its GPUs idle.

Utilisation says nothing of such pauses, but they last longer with fewer cores. Here is how few cores may be tried.
All of it is our choice: CODA's jobs have no such pauses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from coda.allocator.config import CoreSearchConfig
from coda.allocator.window_samples import WindowResult
from coda.errors import require

ALLOWED_LOSS: Final = 0.01
"""The share of a job's time by which its pauses may grow. Our choice: the noise margin of the search."""

LEAST_S: Final = 900.0
"""Seconds over which pauses count at least. Our choice: a pause of the first minutes is no rhythm yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPauses:
    """What a job used in pauses with fewer cores than it began with. Raises InvalidInput for impossible values."""

    cores: int  # per rank, that its first attempt of this size began with, or that such jobs usually do if that is more
    since_s: float  # its tuning began; later by what passed between its attempts
    core_s: float = 0.0  # core-seconds that its cores held up
    until_s: float = 0.0  # when these were counted last; 0: never
    gpus: int = 0  # of the job; 0: unknown
    rank_gpus: int = 0  # of each rank; 0: unknown
    served_s: float = 0.0  # how long earlier attempts had run when its tuning began

    def __post_init__(self) -> None:
        require(self.cores >= 1, "a tuning begins with a core at least", self.cores)
        require(self.core_s >= 0 and math.isfinite(self.core_s), "core-seconds are not negative", self.core_s)

    def is_of_size(self, rank_gpus: int, ranks: int) -> bool:
        """True if they are of a job of so many ranks with so many GPUs each."""
        return (self.rank_gpus, self.gpus) == (rank_gpus, rank_gpus * ranks)

    def with_more(self, core_s: float, cores: int, now_s: float) -> CpuPauses:
        """Return it after a window at so many cores; the same if these are no fewer than it began with."""
        if core_s <= 0 or cores >= self.cores:
            return self
        return replace(self, core_s=round(self.core_s + core_s, 1), until_s=now_s)

    def carried(self, last_s: float, now_s: float, served_s: float) -> CpuPauses:
        """Return it for the job's next attempt. `served_s`: how long its earlier attempts ran in all; `last_s`: the
        last one was tuned then, and counts at least so far.

        What passed between attempts does not count: the job may have waited."""
        known_s = max(0.0, max(self.until_s, last_s) - self.since_s)
        ran_s = max(known_s, min(served_s - self.served_s, now_s - self.since_s))
        return replace(self, since_s=now_s - ran_s, until_s=now_s)

    def least_cores(self, now_s: float) -> int:
        """Return the fewest cores with which its pauses grow by no more than allowed, and 1 if nothing is known.

        Work of `w` core-seconds takes `w / n` seconds with `n` cores, so it grows by `w / n - w / cores`. At most the
        cores that it began with: nobody measured what more would do."""
        if self.core_s == 0:
            return 1
        share = self.core_s / max(LEAST_S, now_s - self.since_s)
        return min(self.cores, math.ceil(1 / (ALLOWED_LOSS / share + 1 / self.cores) - 1e-9))


def pause_core_s(measured: WindowResult, known_share: float, cores: int, config: CoreSearchConfig) -> float:
    """Return the core-seconds that its cores held up in the pauses of a window.

    A window far below `known_share`, the utilisation that these cores have shown, is taken for all a pause if its cores
    held it up: evaluation on GPUs that wait for CPUs, or a phase that needs more cores."""
    reading = measured.reading
    if reading is None or not measured.held_up or reading.share >= config.pause_level * known_share:
        return measured.pause_core_s
    return max(measured.pause_core_s, cores * config.window_s)
