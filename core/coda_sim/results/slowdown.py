"""Bounded slowdown of GPU jobs by size: how many times longer a job took than it ran in its source.

Source: Feitelson and Rudolph, "Metrics and Benchmarking for Parallel Job Scheduling" (1998): with a bound, since a job
of one second that waits a minute says little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coda_sim.engine.log import JobEntry
from coda_sim.results.statistics import mean

BOUND_S: Final = 10.0
"""Shorter jobs count as this long; the literature's usual bound."""

SIZES: Final[tuple[tuple[str, int, int], ...]] = (("1", 1, 1), ("2_7", 2, 7), ("8_up", 8, 1 << 60))
"""Name, fewest and most GPUs: one GPU, less than a node of eight, a node or more. Our choice."""


def slowdown(entry: JobEntry) -> float | None:
    """Return (end - submission) / recorded run time, at least 1; None if the job never ended."""
    if entry.end_s is None:
        return None
    return max(1.0, (entry.end_s - entry.gang.row.submit_s) / max(BOUND_S, entry.gang.row.duration_s))


def slowdown_measures(gpu_jobs: Sequence[JobEntry]) -> dict[str, float | None]:
    """Return `gpu_slowdown_{mean,1,2_7,8_up}`: means over the GPU jobs that ended, of all sizes and of each."""
    found = [(entry.gang.gpus, value) for entry in gpu_jobs if (value := slowdown(entry)) is not None]
    by_size = {name: [value for gpus, value in found if low <= gpus <= high] for name, low, high in SIZES}
    return {
        "gpu_slowdown_mean": mean([value for _, value in found]),
        **{f"gpu_slowdown_{name}": mean(values) for name, values in by_size.items()},
    }
