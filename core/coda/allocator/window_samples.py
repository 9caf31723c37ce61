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


TOO_FEW_SAMPLES: Final = "TooFewSamples"
"""The reason while windows are repeated because the GPUs could not be sampled often enough."""

PAUSED: Final = "Paused"
"""The reason while windows are repeated because the job evaluated or saved for most of them."""

IDLE: Final = "Idle"
"""The reason while windows are repeated because the GPUs were idle."""

DISTURBED: Final = "Disturbed"
"""The reason while windows are repeated because something else moved the utilisation of a rank."""

OTHER_CORES: Final = "OtherCores"
"""The reason while windows are repeated because a rank had other cores than its status says."""

RANKS_UNKNOWN: Final = "RanksUnknown"
"""The reason while windows are repeated because agents on other nodes did not tell of their ranks."""

NAMED_RANKS: Final = 5
"""The most ranks that a message names. Our choice."""

_BATCHES: Final = (1, 5)
"""Samples per batch whose means are looked at for correlation: the nearest neighbours, and what noise hides of them."""

KNOWN_SHARE: Final = 0.9
"""The share of its looks whose CPU use makes that of a window known. Our choice: a file that could not be read once
costs two looks."""

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
    samples. Of `held_up` and `work`, None: CPU use is not known. `pause_core_s`: core-seconds that it used in pauses,
    or with idle GPUs, while its cores held it up: with more cores those would have been shorter."""

    reading: WindowReading | None
    paused: bool = False
    disturbed: bool = False
    other_cores: bool = False
    unknown: tuple[int, ...] = ()
    held_up: bool | None = None
    work: CpuWork | None = None
    pause_core_s: float = 0.0


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
    paused, pause_core_s = _paused(within, config)
    if paused is None:
        return WindowResult(reading=None, paused=True, pause_core_s=pause_core_s)
    at_work = [within[index] for index in counted if index not in paused]
    if len(at_work) < max(config.least_samples, len(counted) // 2):
        return WindowResult(reading=None, paused=True, pause_core_s=pause_core_s)
    shares = [look.share for look in at_work]
    mean = sum(shares) / len(shares)
    reading = WindowReading(
        share=min(1.0, max(0.0, mean)), variance=_variance_of_mean(shares), steady=_is_steady(shares, mean)
    )
    known = [look.full for look in at_work if look.full is not None]
    held_up = sum(known) >= len(known) / 2 if len(known) >= config.least_samples else None
    return WindowResult(reading=reading, held_up=held_up, work=_work_of(at_work), pause_core_s=pause_core_s)


def silence_of(measured: WindowResult, config: CoreSearchConfig) -> tuple[str, str] | None:
    """Return why a window says nothing: one word and a clause; None if it says something."""
    if measured.unknown:
        return RANKS_UNKNOWN, f"{_ranks_text(measured.unknown)} did not report"
    if measured.other_cores:
        return OTHER_CORES, "a rank had other cores by its node's kernel (cpu.max) than by its status"
    if measured.disturbed:
        return DISTURBED, "contention or a neighbour moved its utilisation"
    if measured.paused:
        return PAUSED, "it paused for more than half of the time"
    if measured.reading is None:
        return TOO_FEW_SAMPLES, f"its GPUs could be looked at fewer than {config.least_samples} times"
    if measured.reading.share < config.idle_share:
        return IDLE, "its GPUs were idle"
    return None


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"the agent of rank {ranks[0]}"
    named = ", ".join(str(rank) for rank in ranks[:NAMED_RANKS])
    more = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
    return f"the agents of ranks {named}{more}"


def _work_of(looks: Sequence[Look]) -> CpuWork | None:
    used = [look.cpu_cores for look in looks if look.cpu_cores is not None]
    if len(used) < KNOWN_SHARE * len(looks):
        return None
    mean = sum(used) / len(used)
    throttled_share = sum(look.throttled_share for look in looks if look.cpu_cores is not None) / len(used)
    return CpuWork(
        cores=mean, variance=_variance_of_mean(used), steady=_is_steady(used, mean), throttled_share=throttled_share
    )


def _paused(looks: Sequence[Look], config: CoreSearchConfig) -> tuple[frozenset[int] | None, float]:
    """Return the indices of samples within pauses, and of their neighbours, which may be mixtures; None: unknown. And
    the core-seconds that its cores held up in them.

    A pause is a long run far below the window's high samples. One in which the rank uses all its cores may be a wait
    for them: nobody knows. Several runs count as training, unless it surely leaves cores unused in all of them: they
    may be the rhythm of its loading."""
    high = sorted(look.share for look in looks)[len(looks) * 9 // 10]
    if high < config.idle_share:
        return frozenset(), _held_up_core_s(looks, range(len(looks)))
    long = _low_runs(looks, high * config.pause_level, config.pause_s)
    within = [looks[at].full for first, last in long for at in range(first, last + 1)]
    waits = sum(full is True for full in within) > len(within) / 2
    if len(long) > config.pauses and (waits or None in within):
        return frozenset(), 0.0
    core_s = sum(_held_up_core_s(looks, range(first, last + 1)) for first, last in long)
    if waits:
        return None, core_s
    return frozenset(index for first, last in long for index in range(first - 1, last + 2)), core_s


def _low_runs(looks: Sequence[Look], least: float, lasting_s: float) -> list[tuple[int, int]]:
    """Return the first and last index of each run of samples below `least` that lasts so long."""
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
    return [(first, last) for first, last in runs if looks[last].at_s - looks[first].at_s >= lasting_s]


def _held_up_core_s(looks: Sequence[Look], indices: range) -> float:
    """Return the core-seconds used in the looks that its cores held up; one covers the time since the look before."""
    core_s = 0.0
    for index in indices:
        look = looks[index]
        if look.full and look.cpu_cores is not None:
            core_s += look.cpu_cores * (look.at_s - (looks[index - 1].at_s if index else 0.0))
    return core_s


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
