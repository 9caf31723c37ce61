"""How much CPU time a pod or container used and was denied, and how long its tasks waited for a CPU.

Kernel files are parsed as maps, because their keys differ by version. What cannot be read, or is no number, is None: no
sample, never 0. What must not live here: what a value means for anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coda_agent.cgroups.layout import Layout, Version
from coda_agent.host.files import Files

US_PER_S = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Counters since the cgroup began. Without a limit no periods are counted, and the last three are 0."""

    used_s: float
    periods: int = 0
    throttled_periods: int = 0
    throttled_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Between two samples. `throttled_share`: of the periods, 0..1; 0 where none ended."""

    cores: float
    throttled_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Shares of time, 0..1, in which tasks waited: `some` at least one, `full` all of them; over 10 and 60 s."""

    some_10s: float
    some_60s: float
    full_10s: float
    full_60s: float
    some_total_s: float


def counters_from(text: str) -> Mapping[str, int]:
    """The lines `name value` as a map; other lines are skipped."""
    pairs = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) == 2 and _is_count(words[1])}


def pressure_from(text: str) -> Pressure | None:
    """What `cpu.pressure` says; None for garbage. Old kernels have no line `full` for CPUs: 0."""
    by_line = {line.split()[0]: _fields(line) for line in text.splitlines() if line.split()}
    some, full = by_line.get("some", {}), by_line.get("full", {"avg10": 0.0, "avg60": 0.0})
    try:
        return Pressure(
            some_10s=some["avg10"] / 100,
            some_60s=some["avg60"] / 100,
            full_10s=full["avg10"] / 100,
            full_60s=full["avg60"] / 100,
            some_total_s=some["total"] / US_PER_S,
        )
    except KeyError:
        return None


def read_use(files: Files, layout: Layout, path: str) -> CpuUse | None:
    """The counters of cgroup `path` as of now; None: no sample."""
    try:
        stat = counters_from(files.cgroup.read_text(layout.cpu_file(path, "cpu.stat")))
        if layout.version is Version.V2:
            used_s, throttled_s = stat["usage_usec"] / US_PER_S, stat.get("throttled_usec", 0) / US_PER_S
        else:
            text = files.cgroup.read_text(layout.cpuacct_file(path, "cpuacct.usage"), most_bytes=4096)
            used_s = counters_from(f"usage {text}")["usage"] / NS_PER_S
            throttled_s = stat.get("throttled_time", 0) / NS_PER_S
    except (OSError, KeyError):
        return None
    periods, throttled = stat.get("nr_periods", 0), stat.get("nr_throttled", 0)
    return CpuUse(used_s=used_s, periods=periods, throttled_periods=throttled, throttled_s=throttled_s)


def read_pressure(files: Files, layout: Layout, path: str) -> Pressure | None:
    """How long tasks of cgroup `path` waited for a CPU; None: not known (v1, or pressure is off)."""
    if layout.version is Version.V1:
        return None
    try:
        return pressure_from(files.cgroup.read_text(layout.cpu_file(path, "cpu.pressure")))
    except OSError:
        return None


def rates_between(before: CpuUse, after: CpuUse, span_s: float) -> Rates | None:
    """Cores used and share of periods throttled between two samples `span_s` apart; None when a counter fell (a new
    cgroup of the same name) or no time passed."""
    used_s = after.used_s - before.used_s
    periods, throttled = after.periods - before.periods, after.throttled_periods - before.throttled_periods
    if not span_s > 0 or used_s < 0 or periods < 0 or throttled < 0:
        return None
    return Rates(cores=used_s / span_s, throttled_share=min(1.0, throttled / periods) if periods else 0.0)


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20


def _fields(line: str) -> dict[str, float]:
    fields: dict[str, float] = {}
    for word in line.split()[1:]:
        name, _, value = word.partition("=")
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number) and number >= 0:
            fields[name] = number
    return fields
