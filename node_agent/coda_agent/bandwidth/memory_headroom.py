"""How much memory this process may still use before a limit of its own cgroup kills it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from coda_agent.host import Files

_V1: Final = ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = ("", "memory.max", "memory.current", "inactive_file")


def memory_headroom_bytes(files: Files) -> int | None:
    """Return the least that a limit on this process's path leaves; None if no limit is visible.

    File pages not used lately count as free, as for the kubelet. A process in its own cgroup namespace sees no path of
    the host; a privileged container is in the host's namespace."""
    try:
        lines = files.proc.read_text("self/cgroup").splitlines()
    except OSError:
        return None
    rooms: list[int] = []
    for _number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "memory" not in controllers.split(","):
            continue
        tree, *names = _V1 if controllers else _V2
        own = PurePosixPath(path.strip("/"))
        found = (_headroom_at(files, f"{tree}{at}", *names) for at in (own, *own.parents))
        rooms += [room for room in found if room is not None]
    return min(rooms, default=None)


def _headroom_at(files: Files, at: str, limit: str, used: str, idle: str) -> int | None:
    try:
        left = files.cgroup.read_int(f"{at}/{limit}") - files.cgroup.read_int(f"{at}/{used}")
        words = (line.split() for line in files.cgroup.read_text(f"{at}/memory.stat").splitlines())
        return max(0, left + next((int(amount) for name, amount in words if name == idle), 0))
    except (OSError, ValueError):  # no limit: it says `max`, or there is no such file
        return None
