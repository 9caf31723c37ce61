"""What the samples of one window say: GPU utilisation without pauses, and how far its mean can be trusted.

Utilisation of a training job is not white noise. It pauses to evaluate and to save, it warms up, and neighbouring
seconds resemble each other. All limits are our choice; `docs/benchmarks.md` (The search on real signals) measures them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from coda.allocator.config import CoreSearchConfig
from coda.allocator.curve import WindowReading


class Look(NamedTuple):
    """One look at a rank. `cpu_cores`: that it used since the look before; None: not known, as is `full`."""

    at_s: float  # since the window began
    share: float  # of time that its least busy GPU was busy, 0..1
    full: bool | None = None  # its cores held it up: `is_at_limit`
    cpu_cores: float | None = None
    throttled_share: float = 0.0  # of its CPU periods, 0..1


_BATCHES: Final = (1, 5)
"""Samples per batch whose means are looked at for correlation: the nearest neighbours, and what noise hides of them."""

_FEWEST_BATCHES: Final = 8
"""Our choice: a correlation of fewer means little."""

_STRONGEST: Final = 0.95
"""The strongest correlation believed: a window is too short to tell it from a stronger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWork:
    """The CPU use of a rank over one window, its pauses left out. `variance`: of that mean."""

    cores: float
    variance: float
    steady: bool
    throttled_share: float  # of its CPU periods, 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """The result of a rank's window, or of a job's. `reading` None: it says nothing, for one of the next four reasons.

    `paused`: it paused. `disturbed`: something other than its cores moved its utilisation. `other_cores`: the kernel
    allowed it other cores than its status says. `unknown`: these ranks of the job have not reported. None of them: too
    few samples. `held_up`: its cores held it up in at least half of the
    samples. Of `held_up` and `work`, None: CPU use is not known."""

    reading: WindowReading | None
    paused: bool = False
    disturbed: bool = False
    other_cores: bool = False
    unknown: tuple[int, ...] = ()
    held_up: bool | None = None
    work: CpuWork | None = None


def is_at_limit(used_cores: float, throttled_share: float, cores: int) -> bool:
    """True if a job's CPU use is held up by its cores: it uses nine tenths of them, or is throttled in a tenth of its
    periods. Our choice."""
    return used_cores >= 0.9 * cores or throttled_share > 0.1


def result_of_window(looks: Sequence[Look], config: CoreSearchConfig, *, changed: bool = True) -> WindowResult:
    """Return what one window says, without the rank's pauses.

    `looks`: by time; later ones than the window's end do not count. `changed`: the cores changed before the window,
    so its first half does not count (our choice: it still shows the effect of the change itself). Without a reading:
    too few samples, more than half of them within pauses, or what may be a pause or a wait for cores."""
    within = [look for look in looks if look.at_s <= config.window_s]
    begins_s = config.window_s / 2 if changed else 0.0
    counted = [index for index, look in enumerate(within) if look.at_s >= begins_s]
    if len(counted) < config.least_samples:
        return WindowResult(reading=None)
    paused = _paused(within, config)
    if paused is None:
        return WindowResult(reading=None, paused=True)
    at_work = [within[index] for index in counted if index not in paused]
    if len(at_work) < max(config.least_samples, len(counted) // 2):
        return WindowResult(reading=None, paused=True)
    shares = [look.share for look in at_work]
    mean = sum(shares) / len(shares)
    reading = WindowReading(
        share=min(1.0, max(0.0, mean)), variance=_variance_of_mean(shares), steady=_is_steady(shares, mean)
    )
    known = [look.full for look in at_work if look.full is not None]
    held_up = sum(known) >= len(known) / 2 if len(known) >= config.least_samples else None
    return WindowResult(reading=reading, held_up=held_up, work=_work_of(at_work))


def _work_of(looks: Sequence[Look]) -> CpuWork | None:
    used = [look.cpu_cores for look in looks if look.cpu_cores is not None]
    if len(used) < len(looks):
        return None
    mean = sum(used) / len(used)
    throttled_share = sum(look.throttled_share for look in looks) / len(looks)
    return CpuWork(
        cores=mean, variance=_variance_of_mean(used), steady=_is_steady(used, mean), throttled_share=throttled_share
    )


def _paused(looks: Sequence[Look], config: CoreSearchConfig) -> frozenset[int] | None:
    """Return the indices of samples within pauses, and of their neighbours, which may be mixtures; None: unknown.

    A pause is a long run far below the window's high samples. One in which the rank uses all its cores may be a wait
    for them: nobody knows. Several runs count as training, unless it surely leaves cores unused in all of them: they
    may be the rhythm of its loading."""
    least = sorted(look.share for look in looks)[len(looks) * 9 // 10] * config.pause_level
    runs: list[tuple[int, int]] = []
    begin = -1
    for index, look in enumerate(looks):
        if look.share >= least:
            begin = -1
        elif begin < 0:
            begin = index
            runs.append((index, index))
        else:
            runs[-1] = (begin, index)
    long = [(first, last) for first, last in runs if looks[last].at_s - looks[first].at_s >= config.pause_s]
    within = [looks[at].full for first, last in long for at in range(first, last + 1)]
    waits = sum(full is True for full in within) > len(within) / 2
    if len(long) > config.pauses and (waits or None in within):
        return frozenset()
    if waits:
        return None
    return frozenset(index for first, last in long for index in range(first - 1, last + 2))


def _is_steady(shares: Sequence[float], mean: float) -> bool:
    """True if the halves agree within 1.3 standard errors (of independent samples) or half a percent.

    Our choice: one white window of five is measured again, and most of those that rise by 2 %."""
    half = len(shares) // 2
    first, second = shares[:half], shares[half:]
    error = math.sqrt(_variance(first) / len(first) + _variance(second) / len(second))
    return abs(sum(first) / len(first) - sum(second) / len(second)) <= max(1.3 * error, 0.005 * mean)


def _variance(shares: Sequence[float]) -> float:
    mean = sum(shares) / len(shares)
    return sum((share - mean) ** 2 for share in shares) / max(1, len(shares) - 1)


def _variance_of_mean(shares: Sequence[float]) -> float:
    """The variance of the mean of samples that may be correlated: the largest that their batches show.

    No more than the square of their range: the mean is within it, and the correction for correlation may exceed it.

    A correlation counts if it is twice its own standard error, and is corrected for its bias in short series.
    Source: batch means, effective sample size of an AR(1) process (1 + rho) / (1 - rho); bias of rho: Kendall 1954."""
    largest = _variance(shares) / len(shares)
    for size in _BATCHES:
        means = [sum(shares[at : at + size]) / size for at in range(0, len(shares) - size + 1, size)]
        count = len(means)
        spread = _variance(means)
        if count < _FEWEST_BATCHES or spread <= 0:
            continue
        mean = sum(means) / count
        near = sum((means[at] - mean) * (means[at + 1] - mean) for at in range(count - 1))
        rho = near / (spread * (count - 1))
        if rho * math.sqrt(count) <= 2:
            continue
        rho = min(_STRONGEST, (count * rho + 1) / (count - 3))
        largest = max(largest, spread / count * (1 + rho) / (1 - rho))
    return min(largest, (max(shares) - min(shares)) ** 2)
