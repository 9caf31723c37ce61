"""The GPU-seconds of one job, summed as they pass, at the size that the job has then.

The sum is in the job's status, beside its account (`time_spent`), and has a clock of its own: the pods of an attempt
that was stopped may still hold their GPUs while the job waits, or after it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """GPU-seconds up to `since_s`, in whole seconds; from then on `ranks` hold GPUs."""

    since_s: int
    ranks: int = 0
    gpus_per_rank: int = 0  # 0 while no rank holds any, as the status has it
    gpu_s: int = 0

    @property
    def gpus(self) -> int:
        """GPUs that it holds now."""
        return self.ranks * self.gpus_per_rank


def summed(held: HeldGpus, now_s: float) -> HeldGpus:
    """Return the sum up to now. Twice at one moment is as once; a clock put back adds nothing."""
    at_s = max(int(now_s), held.since_s)
    return replace(held, since_s=at_s, gpu_s=held.gpu_s + (at_s - held.since_s) * held.gpus)


def holding(held: HeldGpus, ranks: int, gpus_per_rank: int, now_s: float) -> HeldGpus:
    """Return the sum of a job of which so many ranks hold GPUs from now on. The same sum if nothing changed."""
    if ranks * gpus_per_rank == held.gpus:
        return held
    return replace(summed(held, now_s), ranks=ranks, gpus_per_rank=gpus_per_rank if ranks else 0)
