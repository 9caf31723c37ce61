"""CPU seconds and resident memory of processes, from /proc. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one process and its children: CPU time since it started, in user and kernel mode; memory as it is now.

    `pss_bytes` shares pages among those who have them; 0 where the kernel does not tell."""

    cpu_s: float
    rss_bytes: int
    pss_bytes: int = 0


def usage_of(pid: int | None = None) -> Usage:
    """What a process and its children have used; None means this one. Raises OSError when it is gone."""
    own = os.getpid() if pid is None else pid
    # The name before may have spaces; see proc_pid_stat(5), from field 3 on.
    fields = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))  # with the children that have ended
    usage = Usage(cpu_s=ticks / _TICKS_PER_S, rss_bytes=int(fields[21]) * _PAGE_BYTES, pss_bytes=_pss_bytes(own))
    for child in _children_of(own):
        with contextlib.suppress(OSError):
            more = usage_of(child)
            usage = Usage(
                cpu_s=usage.cpu_s + more.cpu_s,
                rss_bytes=usage.rss_bytes + more.rss_bytes,
                pss_bytes=usage.pss_bytes + more.pss_bytes,
            )
    return usage


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def usage_by_pid(pids: Mapping[str, int | None]) -> dict[str, Usage]:
    """By the names of the processes."""
    return {name: usage_of(pid) for name, pid in pids.items()}


def cpu_s_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """CPU seconds by process, the most first (ties by name); one that started meanwhile counts from its start."""
    spent = {name: usage.cpu_s - (before[name].cpu_s if name in before else 0.0) for name, usage in after.items()}
    return {name: round(cpu_s, 2) for name, cpu_s in sorted(spent.items(), key=lambda item: (-item[1], item[0]))}
