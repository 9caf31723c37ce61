"""How much CPU time a pod or container used and was denied.

Kernel files are parsed as maps, because their keys differ by version. A value that cannot be read, or is no number, is
None: no sample, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coda_agent.cgroups.layout import Layout, Version
from coda_agent.host import Files

US_PER_S = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Counters since the cgroup began. Without a limit no periods are counted, and the last two are 0."""

    used_s: float
    periods: int = 0
    throttled_periods: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """Between two samples. `throttled_share`: of the periods, 0..1; 0 if none ended."""

    cores: float
    throttled_share: float


def counters_from(text: str) -> Mapping[str, int]:
    """Return the lines `name value` as a map; other lines are skipped."""
    pairs = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) == 2 and _is_count(words[1])}


def read_use(files: Files, layout: Layout, path: str) -> CpuUse | None:
    """Return the counters of cgroup `path` as of now; None: no sample."""
    try:
        stat = counters_from(files.cgroup.read_text(layout.cpu_file(path, "cpu.stat")))
        if layout.version is Version.V2:
            used_s = stat["usage_usec"] / US_PER_S
        else:
            text = files.cgroup.read_text(layout.cpuacct_file(path, "cpuacct.usage"), most_bytes=4096)
            used_s = counters_from(f"usage {text}")["usage"] / NS_PER_S
    except (OSError, KeyError):
        return None
    periods, throttled = stat.get("nr_periods", 0), stat.get("nr_throttled", 0)
    return CpuUse(used_s=used_s, periods=periods, throttled_periods=throttled)


def rates_between(before: CpuUse, after: CpuUse, span_s: float) -> CpuRates | None:
    """Return cores used, and the share of periods throttled, between two samples `span_s` apart.

    None if a counter fell (a new cgroup with the same name) or no time passed."""
    used_s = after.used_s - before.used_s
    periods, throttled = after.periods - before.periods, after.throttled_periods - before.throttled_periods
    if not span_s > 0 or used_s < 0 or periods < 0 or throttled < 0:
        return None
    return CpuRates(cores=used_s / span_s, throttled_share=min(1.0, throttled / periods) if periods else 0.0)


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20
