"""The peak memory bandwidth of each domain: configured, else measured, else theoretical, else unknown.

A peak that traffic has exceeded was no peak and is raised. What must not live here: measuring (`calibrating`), and what
a share of the peak means. Source of the order and of the theoretical part: the pitfalls of MBM; a sustained peak is
75 to 90 % of what the memory's clock allows, and MBM does not see devices' traffic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from coda.errors import InvalidInput
from coda_agent.host.files import Files
from coda_agent.host.state_dir import StateDir

NAME = "peak.json"
SUSTAINED_SHARE = 0.8  # of the theoretical bandwidth
SUSTAINED_WINDOWS = 5  # in a row, that traffic must exceed a peak to prove it wrong; our choice, as the eliminator's
MOST_BYTES = 1 << 20


class PeakSource(Enum):
    """Where a peak is from."""

    CONFIGURED = "Configured"
    MEASURED = "Measured"
    THEORETICAL = "Theoretical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak bandwidth by domain, bytes/s. Raises InvalidInput for what is no bandwidth."""

    bytes_per_s: Mapping[int, float]
    source: PeakSource

    def __post_init__(self) -> None:
        for domain, rate in self.bytes_per_s.items():
            if not (math.isfinite(rate) and rate > 0):
                raise InvalidInput(f"the peak bandwidth of domain {domain} must be above 0 bytes/s, got {rate}")


def choose_peak(
    domains: Collection[int], *, configured_bytes_per_s: float | None, measured: Peak | None, memory: float | None
) -> Peak | None:
    """The peak to use: the same configured value for every domain, else what was measured, else four fifths of what
    the machine's `memory` can move (bytes/s, shared equally by its domains); None: unknown, no share can be told.

    A measurement of other domains than these does not count."""
    if not domains:
        return None
    if configured_bytes_per_s is not None:
        return Peak(bytes_per_s=dict.fromkeys(sorted(domains), configured_bytes_per_s), source=PeakSource.CONFIGURED)
    if measured is not None and set(measured.bytes_per_s) == set(domains):
        return measured
    if memory is not None:
        each = SUSTAINED_SHARE * memory / len(domains)
        return Peak(bytes_per_s=dict.fromkeys(sorted(domains), each), source=PeakSource.THEORETICAL)
    return None


def raise_peak(peak: Peak, rates: Mapping[int, float | None]) -> Peak:
    """`peak`, raised where the total rate of a domain, bytes/s, exceeds it; the same object when none does."""
    higher = {
        domain: rate
        for domain, rate in rates.items()
        if rate is not None and math.isfinite(rate) and domain in peak.bytes_per_s and rate > peak.bytes_per_s[domain]
    }
    return replace(peak, bytes_per_s={**peak.bytes_per_s, **higher}) if higher else peak


def sustained_rates(windows: Sequence[Mapping[int, float | None]]) -> Mapping[int, float | None]:
    """By domain the least rate in the last `SUSTAINED_WINDOWS` of `windows`; None: fewer, or one has no sample.

    What a reading that came late counted too much for one window is missing in the next, so that only traffic that was
    really there stays."""
    last = windows[-SUSTAINED_WINDOWS:]
    if len(last) < SUSTAINED_WINDOWS:
        return {}
    rates = {domain: [window.get(domain) for window in last] for domain in last[-1]}
    return {
        domain: None if None in found else min(rate for rate in found if rate is not None)
        for domain, found in rates.items()
    }


def load_peak(state_dir: StateDir, machine: str) -> Peak | None:
    """The peak that was kept for this `machine`; None when there is none, or it is another's or garbage."""
    try:
        kept: Any = json.loads(state_dir.read(NAME, most_bytes=MOST_BYTES))
        if kept["machine"] != machine:
            return None
        rates = {int(domain): float(rate) for domain, rate in kept["bytes_per_s"].items()}
        return Peak(bytes_per_s=rates, source=PeakSource(kept["source"])) if rates else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidInput):
        return None


def save_peak(state_dir: StateDir, machine: str, peak: Peak) -> None:
    """Keep `peak` over restarts. OSError: it could not be kept."""
    rates = {str(domain): rate for domain, rate in peak.bytes_per_s.items()}
    kept = {"machine": machine, "bytes_per_s": rates, "source": peak.source.value}
    state_dir.replace(NAME, json.dumps(kept).encode())


def machine_name(files: Files) -> str:
    """What a kept peak is for: the processor's name and how many it has; "unknown" where that cannot be read."""
    try:
        lines = files.proc.read_text("cpuinfo", most_bytes=16 << 20).splitlines()
    except OSError:
        return "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return f"{len(names)} x {names[0]}" if names else "unknown"
