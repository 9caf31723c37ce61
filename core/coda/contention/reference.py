"""How busy a training job keeps its GPUs without contention (its reference), and whether it is slowed now.

The reference is learned while the memory bandwidth around the job is calm, and then follows slowly. It does not change
while the sockets are not calm or something is throttled for the job. It starts again when the job's cores change.
Source: CODA's trigger ("GPU utilisation has dropped"); the rest is ours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.errors import InvalidInput

RECENT = 10  # utilisations remembered to judge an action by


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """The part of a training job on this node, as seen in one window."""

    job: str
    sockets: frozenset[int]  # sockets its cores are on
    cores: int
    share: float | None  # busy share of its GPUs, 0..1; None: not measured

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise InvalidInput(f"GPU utilisation of {self.job} must be 0 to 1, got {self.share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The reference of one job. `recent`: utilisations since the last throttle around it, oldest first."""

    job: str
    cores: int
    share: float = 0.0  # the normal utilisation, 0..1
    learned: int = 0  # calm windows behind the reference
    recent: tuple[float, ...] = ()

    def is_slowed(self, share: float | None, config: ContentionConfig) -> bool:
        """True if `share` is clearly below the reference; False before the reference is learned."""
        known = self.learned >= config.learn_windows
        return known and share is not None and share < self.share * (1 - config.drop_share)

    def latest(self, windows: int) -> float | None:
        """Return the mean of the latest utilisations; None if there are none."""
        shares = self.recent[-windows:]
        return sum(shares) / len(shares) if shares else None


def next_references(
    references: Collection[Reference], jobs: Collection[TrainingSample], calm: Collection[int], config: ContentionConfig
) -> tuple[Reference, ...]:
    """Return the references after one more window, in order of jobs, without jobs that are gone. `calm`: sockets."""
    known = {reference.job: reference for reference in references}
    return tuple(
        _next_reference(known.get(job.job), job, job.sockets <= set(calm), config)
        for job in sorted(jobs, key=lambda job: job.job)
    )


def _next_reference(known: Reference | None, job: TrainingSample, calm: bool, config: ContentionConfig) -> Reference:
    before = known if known is not None and known.cores == job.cores else Reference(job=job.job, cores=job.cores)
    if job.share is None:
        return before
    seen = replace(before, recent=(*before.recent, job.share)[-RECENT:])
    if not calm:
        return seen
    weight = 1 / (seen.learned + 1) if seen.learned < config.learn_windows else 1 / config.follow_windows
    share = seen.share + weight * (job.share - seen.share)
    return replace(seen, share=share, learned=min(seen.learned + 1, config.learn_windows))
