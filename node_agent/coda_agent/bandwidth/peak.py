"""The peak memory bandwidth of each socket: configured, else measured, else theoretical, else unknown.

A peak that traffic exceeds is too low and is raised. A theoretical one falls back and is not stored. Traffic above what
the memory clock allows shows that the firmware's table was misread: then it does not fall below that traffic. Source of
the order and of the theoretical share: known problems of MBM. A sustained peak is 75 to 90 % of what the memory clock
allows, and MBM does not see the traffic of devices."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from coda.errors import InvalidInput
from coda_agent.bandwidth.dimm_speed import COUNTING
from coda_agent.host import Files, StateDir

NAME = "peak.json"
SUSTAINED_SHARE = 0.8  # of the theoretical bandwidth
SUSTAINED_WINDOWS = 5  # in a row above a peak prove it wrong; our choice, as the eliminator's
HALF_LIFE_S = 3600.0  # of what a theoretical peak was raised by; our choice
LEAST_FALL = 0.01  # relative; a peak that falls less is left as it is
OTHER_MEMORY = 0.1  # relative; modules that move so much more or less are others: one channel of eight is 12 %
MOST_BYTES = 1 << 20


class PeakSource(Enum):
    """Where a peak comes from."""

    CONFIGURED = "Configured"
    MEASURED = "Measured"
    THEORETICAL = "Theoretical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak bandwidth by domain, bytes/s. Raises InvalidInput for a value that cannot be one.

    `allowed_bytes_per_s`: what the memory clock allows by the firmware's table, once traffic showed that it is wrong;
    until then it follows from a theoretical peak."""

    bytes_per_s: Mapping[int, float]
    source: PeakSource
    allowed_bytes_per_s: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for domain, rate in self.bytes_per_s.items():
            if not (math.isfinite(rate) and rate > 0):
                raise InvalidInput(f"the peak bandwidth of domain {domain} must be above 0 bytes/s, got {rate}")


def choose_peak(
    domains: Collection[int], *, configured_bytes_per_s: float | None, measured: Peak | None, memory: float | None
) -> Peak | None:
    """Return the peak to use, or None if no share of it can be computed.

    In this order: one configured value for every domain; the measurement, if it is of these domains; four fifths of
    what `memory` can move (bytes/s), in equal parts."""
    if not domains:
        return None
    if configured_bytes_per_s is not None:
        return Peak(bytes_per_s=dict.fromkeys(sorted(domains), configured_bytes_per_s), source=PeakSource.CONFIGURED)
    is_measured = measured is not None and measured.source is PeakSource.MEASURED  # an older agent stored guesses
    if measured is not None and is_measured and set(measured.bytes_per_s) == set(domains):
        return measured
    if memory is not None:
        each = SUSTAINED_SHARE * memory / len(domains)
        return Peak(bytes_per_s=dict.fromkeys(sorted(domains), each), source=PeakSource.THEORETICAL)
    return None


def raise_peak(peak: Peak, rates: Mapping[int, float | None]) -> Peak:
    """Return `peak`, raised where the total rate of a domain, bytes/s, exceeds it; the same object if none does."""
    higher = {
        domain: rate
        for domain, rate in rates.items()
        if rate is not None and math.isfinite(rate) and domain in peak.bytes_per_s and rate > peak.bytes_per_s[domain]
    }
    return replace(peak, bytes_per_s={**peak.bytes_per_s, **higher}) if higher else peak


def first_peak_after(first: Peak, rates: Mapping[int, float | None]) -> Peak:
    """Return what a theoretical peak falls back to, `first` until now, after traffic that stayed at `rates`, bytes/s.

    Traffic above what the memory clock allows by the table is the least that this memory moves, in whatever order it
    comes. The same object if none is higher than before."""
    if first.source is not PeakSource.THEORETICAL:
        return first
    allowed = first.allowed_bytes_per_s or {
        domain: base / SUSTAINED_SHARE for domain, base in first.bytes_per_s.items()
    }
    above = {
        domain: rate for domain, rate in rates.items() if rate is not None and rate > allowed.get(domain, math.inf)
    }
    higher = raise_peak(first, above)
    return first if higher is first else replace(higher, allowed_bytes_per_s=allowed)


def settled_peak(peak: Peak, first: Peak, raised_s: float) -> Peak:
    """Return a theoretical `peak` as it is `raised_s` after it was raised: it falls back to `first`.

    It is never above what the memory clock allows by `first`. Another peak, and one that hardly changes, is the same
    object."""
    if peak.source is not PeakSource.THEORETICAL:
        return peak
    left = 0.5 ** (max(0.0, raised_s) / HALF_LIFE_S)
    rates = {
        domain: base + left * (min(peak.bytes_per_s[domain], base / SUSTAINED_SHARE) - base)
        for domain, base in first.bytes_per_s.items()
    }
    same = all(peak.bytes_per_s[domain] - rate < LEAST_FALL * rate for domain, rate in rates.items())
    return peak if same else replace(peak, bytes_per_s=rates)


def sustained_rates(windows: Sequence[Mapping[int, float | None]]) -> Mapping[int, float | None]:
    """Return the least rate by domain in the last `SUSTAINED_WINDOWS` windows; None: too few, or one has no sample.

    A late reading counts too much in one window and too little in the next, so the least rate is real traffic."""
    last = windows[-SUSTAINED_WINDOWS:]
    if len(last) < SUSTAINED_WINDOWS:
        return {}
    rates = {domain: [window.get(domain) for window in last] for domain in last[-1]}
    return {
        domain: None if None in found else min(rate for rate in found if rate is not None)
        for domain, found in rates.items()
    }


def load_peak(state_dir: StateDir, machine: str, memory: float | None) -> Peak | None:
    """Return the stored peak of this `machine`; None if there is none, it is garbage, or of another machine or memory.

    `memory`: what all modules move now, bytes/s; None if it is not known. Where nobody stored what they moved at the
    measurement, or an older agent counted them in another way, a peak that exceeds what they move now is of others."""
    try:
        kept: Any = json.loads(state_dir.read(NAME, most_bytes=MOST_BYTES))
        if kept["machine"] != machine:
            return None
        rates = {int(domain): float(rate) for domain, rate in kept["bytes_per_s"].items()}
        told, is_counted_alike = kept.get("memory_bytes_per_s"), kept.get("counting") == COUNTING
        before = None if told is None else float(told)
        is_same = memory is None or (before is not None and abs(memory - before) <= OTHER_MEMORY * before)
        if memory is not None and not is_same and (before is None or not is_counted_alike):
            is_same = sum(rates.values()) <= (1 + OTHER_MEMORY) * memory
        return Peak(bytes_per_s=rates, source=PeakSource(kept["source"])) if rates and is_same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidInput):
        return None


def save_peak(state_dir: StateDir, machine: str, memory: float | None, peak: Peak) -> None:
    """Store `peak` over restarts, as one of this `memory`. Raises OSError if it cannot be stored."""
    rates = {str(domain): rate for domain, rate in peak.bytes_per_s.items()}
    kept = {
        "machine": machine,
        "memory_bytes_per_s": memory,
        "counting": COUNTING,
        "bytes_per_s": rates,
        "source": peak.source.value,
    }
    state_dir.replace(NAME, json.dumps(kept).encode())


def machine_name(files: Files) -> str:
    """Return the processor's name and count, which a stored peak belongs to; "unknown" if they cannot be read."""
    try:
        lines = files.proc.read_text("cpuinfo", most_bytes=16 << 20).splitlines()
    except OSError:
        return "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return f"{len(names)} x {names[0]}" if names else "unknown"
