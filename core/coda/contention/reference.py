"""How busy a training job keeps its GPUs when nothing disturbs it, and whether it suffers now.

A job's reference is learned while the memory bandwidth around it is calm, follows slowly, stands still while it is not
calm or something is throttled for it, and starts anew when the job's cores change. What must not live here: what is
done about a job that suffers (`contention`). Source: CODA's trigger ("GPU utilisation has dropped"); the rest is ours.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.errors import InvalidInput

RECENT = 10  # utilisations remembered to judge an action by


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A training job's part on this node, as seen in one window."""

    job: str
    sockets: frozenset[int]  # sockets its cores are on
    cores: int
    share: float | None  # busy share of its GPUs, 0..1; None: not measured

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise InvalidInput(f"GPU utilisation of {self.job} must be 0 to 1, got {self.share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is remembered of one job. `recent`: utilisations since the last throttle around it, oldest first."""

    job: str
    cores: int
    reference: float = 0.0
    learned: int = 0  # calm windows behind the reference
    recent: tuple[float, ...] = ()

    def suffers(self, share: float | None, config: ContentionConfig) -> bool:
        """Whether `share` is clearly below the reference; without one, never."""
        known = self.learned >= config.learn_windows
        return known and share is not None and share < self.reference * (1 - config.drop_share)

    def latest(self, windows: int) -> float | None:
        """The mean of the latest utilisations; None when there is none."""
        shares = self.recent[-windows:]
        return sum(shares) / len(shares) if shares else None


def next_reference(
    baselines: Collection[Reference], jobs: Collection[TrainingSample], calm: Collection[int], config: ContentionConfig
) -> tuple[Reference, ...]:
    """The baselines after one more window, by job; jobs no longer there are forgotten. `calm`: the sockets that are."""
    known = {baseline.job: baseline for baseline in baselines}
    return tuple(
        _followed(known.get(job.job), job, job.sockets <= set(calm), config)
        for job in sorted(jobs, key=lambda job: job.job)
    )


def _followed(known: Reference | None, job: TrainingSample, calm: bool, config: ContentionConfig) -> Reference:
    before = known if known is not None and known.cores == job.cores else Reference(job=job.job, cores=job.cores)
    if job.share is None:
        return before
    seen = replace(before, recent=(*before.recent, job.share)[-RECENT:])
    if not calm:
        return seen
    weight = 1 / (seen.learned + 1) if seen.learned < config.learn_windows else 1 / config.follow_windows
    reference = seen.reference + weight * (job.share - seen.reference)
    return replace(seen, reference=reference, learned=min(seen.learned + 1, config.learn_windows))
