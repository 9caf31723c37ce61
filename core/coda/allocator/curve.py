"""GPU utilisation over cores: what one window says, and what several say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coda.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReading:
    """What one window says of a job. Raises InvalidInput for impossible values.

    Counts are compared by `level`: the CPU use of the rank that uses most where that is known and there are several
    GPUs, else the GPUs' utilisation. A GPU that waits in a collective runs a kernel and counts as busy, but loading
    a step takes the same CPU time always, so CPU use rises and falls with the steps per second."""

    share: float  # busy share of the job's least busy GPU, 0..1
    variance: float = 0.0  # of the mean level; 0: unknown, taken as exact
    steady: bool = True  # its halves agree
    work: float = 0.0  # CPU use of the rank that uses most, of all cores it could have, 0..1; 0: not compared by
    throttled: bool = False  # some rank was denied CPU time in more than a tenth of its periods
    used_cores: float = 0.0  # CPU use of the rank that uses most; 0: unknown
    blind: bool = False  # there are several GPUs, and the CPU use of some rank is unknown: they may only wait busily

    @property
    def level(self) -> float:
        """What core counts are compared by, 0..1."""
        return self.work or self.share

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidInput(f"GPU utilisation must be 0 to 1, got {self.share}")
        if not 0 <= self.work <= 1:
            raise InvalidInput(f"CPU use must be 0 to 1 of all cores, got {self.work}")
        if not (self.variance >= 0 and math.isfinite(self.variance)):
            raise InvalidInput(f"the variance of a mean must be finite and not negative, got {self.variance}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """All windows at one core count together. Raises InvalidInput for impossible values."""

    cores: int  # per rank
    share: float  # mean busy share, 0..1
    variance: float = 0.0  # of the mean level
    windows: int = 1
    work: float = 0.0  # mean CPU use, as in the readings; 0: they are compared by utilisation

    @property
    def level(self) -> float:
        """What core counts are compared by, 0..1."""
        return self.work or self.share

    def __post_init__(self) -> None:
        if self.cores < 1 or self.windows < 1:
            raise InvalidInput(f"a point needs cores and windows, got {self.cores} and {self.windows}")
        WindowReading(share=self.share, variance=self.variance, work=self.work)


def curve_with(curve: Sequence[CurvePoint], cores: int, reading: WindowReading) -> tuple[CurvePoint, ...]:
    """Return `curve` with one more window at `cores`, in order of cores. Windows at one count weigh the same.

    Its variance is the larger one of what the windows say of themselves and of what they differ by."""
    here = next((point for point in curve if point.cores == cores), None)
    point = CurvePoint(cores=cores, share=reading.share, variance=reading.variance, work=reading.work)
    if here is not None:
        windows = here.windows + 1
        own = (here.variance * here.windows**2 + reading.variance) / windows
        apart = (reading.level - here.level) ** 2 * here.windows / windows if own else 0.0
        point = CurvePoint(
            cores=cores,
            share=min(1.0, (here.share * here.windows + reading.share) / windows),
            variance=max(own, (own * windows + apart) / (windows + 1)) / windows,
            windows=windows,
            work=min(1.0, (here.work * here.windows + reading.work) / windows),
        )
    return curve_without(curve, cores, point)


def curve_without(curve: Sequence[CurvePoint], cores: int, *instead: CurvePoint) -> tuple[CurvePoint, ...]:
    """Return `curve` with the points `instead` of what it had at `cores`."""
    return tuple(sorted((*(other for other in curve if other.cores != cores), *instead), key=lambda other: other.cores))


def noise_of(curve: Sequence[CurvePoint]) -> float:
    """Return the standard error of one window's mean, relative, over all windows of the curve; 0 of exact ones."""
    windows = sum(point.windows for point in curve if point.level > 0)
    total = sum(point.variance * (point.windows / point.level) ** 2 for point in curve if point.level > 0)
    return math.sqrt(total / windows) if windows else 0.0


def reference_utilisation(curve: Sequence[CurvePoint], without: int, margin: float) -> WindowReading:
    """Return the best level without the count `without`, as a share: the mean of all points within `margin` of it.

    A mean, because the highest of many noisy values is too high: on a plateau the next count would look worse than it
    is. `curve` must have another point. Our choice; measured in docs/results.md."""
    others = [point for point in curve if point.cores != without]
    least = max(point.level for point in others) * (1 - margin)
    best = [point for point in others if point.level >= least]
    windows = sum(point.windows for point in best)
    return WindowReading(
        share=min(1.0, sum(point.level * point.windows for point in best) / windows),
        variance=sum(point.variance * point.windows**2 for point in best) / windows**2,
    )
