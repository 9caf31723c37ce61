"""CPU seconds and resident memory of processes, from /proc. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
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
    fields = _stat(f"/proc/{own}/stat")
    ticks = sum(map(int, fields[11:15]))  # with the children that have ended
    usage = Usage(cpu_s=ticks / _TICKS_PER_S, rss_bytes=int(fields[21]) * _PAGE_BYTES, pss_bytes=_pss_bytes(own))
    for child in children_of(own):
        with contextlib.suppress(OSError):
            more = usage_of(child)
            usage = Usage(
                cpu_s=usage.cpu_s + more.cpu_s,
                rss_bytes=usage.rss_bytes + more.rss_bytes,
                pss_bytes=usage.pss_bytes + more.pss_bytes,
            )
    return usage


def bytes_alone(pids: Collection[int]) -> int:
    """Resident memory of these processes together, as if no other process had mapped the same files.

    It is their PSS on a machine where they are the only ones of their kind. A page of a file that several of them have
    counts once, as far as the kernel tells: by mapping. Raises OSError when one is gone."""
    private, shared = 0, dict[str, int]()
    for pid in pids:
        mapping = ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            name, *words = line.split()
            if not name.endswith(":"):
                _, offset, *file = words[:4]
                mapping = " ".join([offset, *file])
            elif name.startswith("Private_") and name != "Private_Hugetlb:":
                private += int(words[0]) << 10
            elif name == "Shared_Clean:":
                shared[f"{pid} {mapping}"] = shared.get(f"{pid} {mapping}", 0) + (int(words[0]) << 10)
    most: dict[str, int] = {}
    for key, size in shared.items():
        mapping = key.partition(" ")[2]
        most[mapping] = max(most.get(mapping, 0), size)
    return private + sum(most.values())


def thread_cpu_s(pid: int) -> float:
    """CPU seconds of the process's first thread alone. Raises OSError when it is gone."""
    return sum(map(int, _stat(f"/proc/{pid}/task/{pid}/stat")[11:13])) / _TICKS_PER_S


def _stat(path: str) -> list[str]:
    """The fields of proc_pid_stat(5) from the third on: the name before may have blanks."""
    return Path(path).read_text().rpartition(")")[2].split()


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def children_of(pid: int) -> list[int]:
    """The processes that it has started and that live."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def usage_by_pid(pids: Mapping[str, int | None]) -> dict[str, Usage]:
    """By the names of the processes."""
    return {name: usage_of(pid) for name, pid in pids.items()}


def cpu_s_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """CPU seconds by process, the most first (ties by name); one that started meanwhile counts from its start."""
    spent = {name: usage.cpu_s - (before[name].cpu_s if name in before else 0.0) for name, usage in after.items()}
    return {name: round(cpu_s, 2) for name, cpu_s in sorted(spent.items(), key=lambda item: (-item[1], item[0]))}
