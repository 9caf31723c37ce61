"""CPU seconds and resident memory of processes, from /proc. Linux only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one process: CPU time since it started, in user and kernel mode; memory as it is now."""

    cpu_s: float
    rss_bytes: int


def usage_of(pid: int | None = None) -> Usage:
    """What a process has used; None means this one. Raises OSError when it is gone."""
    stat = Path(f"/proc/{os.getpid() if pid is None else pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()  # the name before may have spaces; see proc_pid_stat(5), from field 3 on
    return Usage(cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S, rss_bytes=int(fields[21]) * _PAGE_BYTES)


def usage_by_pid(pids: Mapping[str, int | None]) -> dict[str, Usage]:
    """By the names of the processes."""
    return {name: usage_of(pid) for name, pid in pids.items()}


def cpu_s_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """CPU seconds by process, the most first (ties by name); one that started meanwhile counts from its start."""
    spent = {name: usage.cpu_s - (before[name].cpu_s if name in before else 0.0) for name, usage in after.items()}
    return {name: round(cpu_s, 2) for name, cpu_s in sorted(spent.items(), key=lambda item: (-item[1], item[0]))}
