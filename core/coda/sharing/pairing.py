"""Who suits whom on one GPU: first whether the memory fits, then how fast the newcomer would be.

With r = active time / idle time of a job's mini-batches, Xonar takes the partner with the least |r_A r_n - 1| (Eq. 1).
With the duty cycle u, r is u/(1-u), and the best partner has u_A + u_n = 1. Source: Xonar; predictions are ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from coda.errors import require
from coda.sharing.config import SharingConfig

_DUTY_LOW, _DUTY_HIGH = 0.01, 0.99  # of a job that is never or always active, so that its ratio is finite
_KEPT_RUNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """What is known of a job alone on a GPU. Raises InvalidInput for impossible numbers.

    key: of jobs that behave alike (model, batch size)
    duty: share of the time in which its kernels run, 0..1
    step_s: seconds of a mini-batch
    peak_bytes: the most memory it needs, its context included
    floor_bytes: what it keeps between mini-batches"""

    key: str
    duty: float
    step_s: float
    peak_bytes: int
    floor_bytes: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.duty <= 1, f"the duty cycle of {self.key} must be 0 to 1", self.duty)
        require(math.isfinite(self.step_s) and self.step_s > 0, f"{self.key}: step_s must be above 0", self.step_s)
        require(0 <= self.floor_bytes <= self.peak_bytes, f"{self.key}: floor_bytes: 0 to its peak", self.floor_bytes)

    @property
    def ratio(self) -> float:
        """Active over idle time, 0.01/0.99 to 0.99/0.01."""
        duty = min(_DUTY_HIGH, max(_DUTY_LOW, self.duty))
        return duty / (1 - duty)


PairScore = Callable[[GpuProfile, GpuProfile], float]
"""How badly two jobs suit each other: the least is the best."""


def equation_1(one: GpuProfile, other: GpuProfile) -> float:
    """Xonar's |r_A r_n - 1|: below 1 if both idle much, unbounded if both are busy: it spends idle jobs first."""
    return abs(one.ratio * other.ratio - 1)


def equation_1_log(one: GpuProfile, other: GpuProfile) -> float:
    """The same as |log(r_A r_n)|, which finds too idle as bad as too busy. Our choice."""
    return abs(math.log(one.ratio * other.ratio))


def duty_sum(one: GpuProfile, other: GpuProfile) -> float:
    """How far the duty cycles are from filling the GPU: |u_A + u_n - 1|. Our choice, as a third opinion."""
    return abs(one.duty + other.duty - 1)


def fits_together(profiles: Sequence[GpuProfile], total_bytes: int) -> bool:
    """True if all fit the card at their peaks at once: Xonar's filter, which no pair that ran out of memory passes."""
    return sum(profile.peak_bytes for profile in profiles) <= total_bytes


def partner_for(
    first: GpuProfile, queued: Sequence[GpuProfile], total_bytes: int, score: PairScore | None
) -> int | None:
    """Return the index of the queued job that suits `first` best; None: none fits, it runs alone.

    `score` None: the first that fits. Ties: the earliest. O(queued)."""
    fitting = [at for at, other in enumerate(queued) if fits_together((first, other), total_bytes)]
    if not fitting:
        return None
    return fitting[0] if score is None else min(fitting, key=lambda at: (score(first, queued[at]), at))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """The speeds that jobs reached beside others, relative to alone: by the key of the job, then of its neighbour."""

    runs: Mapping[tuple[str, str], tuple[float, ...]]

    def speed(self, job: str, neighbour: str) -> float | None:
        """Return the median of the last ten runs; None: never measured."""
        known = self.runs.get((job, neighbour), ())[-_KEPT_RUNS:]
        return median(known) if known else None


NOTHING_MEASURED = MeasuredPairs(runs={})


def expected_speed(newcomer: GpuProfile, guaranteed: GpuProfile, pairs: MeasuredPairs, config: SharingConfig) -> float:
    """Return the speed that an opportunistic job reaches beside a guaranteed one under control, relative to alone.

    The measured pair if there is one; else the idle time that it can use. At least the floor, at most 1."""
    measured = pairs.speed(newcomer.key, guaranteed.key)
    if measured is not None:
        return measured
    predicted = config.efficiency * (1 - guaranteed.duty) / max(_DUTY_LOW, newcomer.duty)
    return min(1.0, max(config.floor_share / 1000, predicted))
