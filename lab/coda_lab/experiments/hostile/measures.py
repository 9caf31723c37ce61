"""Measures of a running cluster: memory and processes of each part, durations of planning cycles, errors in logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from coda_lab.host.processes import start_time_ticks
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import EXTENDER, OPERATOR

CYCLES: Final = "coda_planner_round_duration_seconds"
_ERRORS: Final = "coda_planner_errors_total"
_TIMEOUT_S: Final = 5.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """The planning cycles of a period, over all replicas: how many, their seconds, and counts up to each bound."""

    count: float = 0.0
    total_s: float = 0.0
    errors: float = 0.0
    up_to: Mapping[float, float]

    def since(self, earlier: Cycles) -> Cycles:
        """The cycles after `earlier` was taken."""
        return Cycles(
            count=self.count - earlier.count,
            total_s=self.total_s - earlier.total_s,
            errors=self.errors - earlier.errors,
            up_to={bound: count - earlier.up_to.get(bound, 0.0) for bound, count in self.up_to.items()},
        )

    @property
    def mean_s(self) -> float:
        """The mean duration."""
        return self.total_s / self.count if self.count else 0.0

    def share_s(self, share: float) -> float:
        """The smallest bound below which this share of the cycles is; infinite above the last one."""
        for bound, count in sorted(self.up_to.items()):
            if self.count and count >= share * self.count:
                return bound
        return float("inf")


def coda_parts(cluster: LocalCluster) -> list[str]:
    """The operators and extenders."""
    return [part for part in cluster.part_by_name if part.startswith((OPERATOR, EXTENDER))]


def processes_of(cluster: LocalCluster, part: str) -> dict[int, int]:
    """The part's process and all that it started (pid -> start in ticks)."""
    process = cluster.process(part)
    if process is None:
        return {}
    found, waiting = {}, [process.id.pid]
    while waiting:
        pid = waiting.pop()
        started = start_time_ticks(pid)
        if started is not None:
            found[pid] = started
            waiting += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def memory_bytes(pids: Iterable[int]) -> int:
    """The proportional set size of processes together; one that is gone counts nothing."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def memory_by_part(cluster: LocalCluster) -> dict[str, int]:
    """The memory of every part that runs."""
    return {
        part: memory_bytes(processes_of(cluster, part)) for part in cluster.part_by_name if cluster.is_running(part)
    }


def cpu_by_part(cluster: LocalCluster) -> dict[str, float]:
    """The CPU seconds of every part that runs, of this process, and of the whole machine."""
    found = {part: sum(map(_cpu_s, processes_of(cluster, part))) for part in cluster.part_by_name}
    busy = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    idle_ticks = int(busy[3]) + int(busy[4])
    found["machine"] = (sum(map(int, busy[:8])) - idle_ticks) / _TICKS_PER_S
    return found | {"this run": _cpu_s(os.getpid())}


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def errors_in_logs(cluster: LocalCluster, parts: Iterable[str]) -> dict[str, int]:
    """How many tracebacks each part has logged since the start of the cluster."""
    return {part: cluster.log_path(part).read_text(errors="replace").count("Traceback (most") for part in parts}


async def cycles(cluster: LocalCluster) -> Cycles:
    """The planning cycles so far, of all extenders that answer."""
    values: dict[str, float] = {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for part in coda_parts(cluster):
            if part.startswith(EXTENDER):
                for name, value in (await _samples(session, cluster, part)).items():
                    values[name] = values.get(name, 0.0) + value
    bounds = {name: value for name, value in values.items() if name.startswith(CYCLES + "_bucket")}
    return Cycles(
        count=values.get(CYCLES + "_count", 0.0),
        total_s=values.get(CYCLES + "_sum", 0.0),
        errors=values.get(_ERRORS, 0.0),
        up_to={float(name.split('"')[1].replace("+Inf", "inf")): value for name, value in bounds.items()},
    )


async def _samples(session: aiohttp.ClientSession, cluster: LocalCluster, part: str) -> dict[str, float]:
    url = (cluster.part_by_name[part].ready_url or "").replace("/readyz", "/metrics")
    try:
        async with session.get(url, ssl=False) as answer:
            text = await answer.text()
    except (TimeoutError, aiohttp.ClientError, OSError):
        return {}
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith((CYCLES, _ERRORS))]
    return {name: float(value) for name, _, value in lines}
