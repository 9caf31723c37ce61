"""Which of the driver's samples are new and plausible. Pure.

The driver stamps samples with the node's wall clock, keeps old ones, and sometimes returns stale or impossible ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coda_agent.gpus.devices import GpuSample

_AHEAD_US = 2_000_000  # a stamp further in the future is older than a wall clock that was set back


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One instant on three clocks. `monotonic_s` never jumps; the others, since 1970, may.

    `wall_s`: the API server's, for what others read. `node_wall_s`: the node's own, by which the driver stamps samples.
    They may be hours apart."""

    monotonic_s: float
    wall_s: float
    node_wall_s: float


def seen_until(last_us: int, now: Moment) -> int:
    """Return the stamp from which to ask: `last_us`, but now if the wall clock was set back behind it."""
    now_us = int(now.node_wall_s * 1e6)
    return now_us if last_us > now_us + _AHEAD_US else last_us


def fresh_samples(entries: Iterable[tuple[int, float]], last_us: int, now: Moment) -> tuple[tuple[GpuSample, ...], int]:
    """Return (samples after `last_us` in order of time, the newest stamp to ask from next).

    `entries`: (microseconds of the wall clock, percent). Stale, future and impossible samples are left out. Of two with
    one stamp the last counts."""
    now_us = now.node_wall_s * 1e6
    percents = {
        at_us: percent
        for at_us, percent in entries
        if last_us < at_us <= now_us + _AHEAD_US and 0 <= percent <= 100  # false for NaN
    }
    samples = tuple(
        GpuSample(at_s=now.monotonic_s - max(0.0, now_us - at_us) / 1e6, share=percents[at_us] / 100)
        for at_us in sorted(percents)
    )
    return samples, max(percents, default=last_us)


def mean_share(samples: tuple[GpuSample, ...]) -> float | None:
    """Return their mean, each period with the same weight; None without samples."""
    return sum(sample.share for sample in samples) / len(samples) if samples else None
