"""What planner and allocator are told wrongly: readings with noise, and run times that are off.

Without an inaccuracy the simulator tells both exactly. All draws come from the seed and the job's own id, so they do
not depend on other jobs.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from statistics import NormalDist

from coda.errors import require

SAMPLES = 45
"""Seconds of a tuning window that count, as the agent measures: half of 90 s, one sample each."""

_DRAWS = 1 << 64
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inaccuracy:
    """How far what is told differs from the truth. Raises InvalidInput out of range.

    `reading_noise`: relative standard deviation of one 1-s sample of GPU utilisation, 0..1; 45 samples make a reading.
    `run_time_error`: told run times are off by a factor of at most this, up or down, >= 1; 1: exact. The factor is
    log-uniform and fixed for each job. `forgets`: finished jobs leave no history, neither of the cores that
    they could use nor of their run times."""

    reading_noise: float = 0.0
    run_time_error: float = 1.0
    forgets: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.reading_noise <= 1, "reading_noise must be 0 to 1", self.reading_noise)
        require(1 <= self.run_time_error < math.inf, "run_time_error must be at least 1", self.run_time_error)

    def run_time_factor(self, job_id: str) -> float:
        """Return what the told run time of a job is multiplied with, always the same for the job."""
        if self.run_time_error == 1:
            return 1.0
        return math.exp(math.log(self.run_time_error) * (2 * self._uniform("run time", job_id, 0) - 1))

    def reading(self, share: float, job_id: str, window: int) -> tuple[float, float]:
        """Return the measured mean of a window whose true utilisation is `share` (0..1), and the variance of the mean.

        `window`: the number of the job's window; each has a draw of its own."""
        if not self.reading_noise:
            return share, 0.0
        deviation = self.reading_noise * share / math.sqrt(SAMPLES)
        uniform = min(max(self._uniform("reading", job_id, window), 1e-12), 1 - 1e-12)
        return min(1.0, max(0.0, share + deviation * _NORMAL.inv_cdf(uniform))), deviation * deviation

    def _uniform(self, what: str, job_id: str, number: int) -> float:
        digest = hashlib.blake2b(f"{self.seed}:{what}:{job_id}:{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / _DRAWS


EXACT = Inaccuracy()
"""Everything is told as it is."""
