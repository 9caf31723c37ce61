"""How much memory this process may still use before a limit of its own cgroup kills it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from coda_agent.host import Files, Tree

_V1: Final = ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = ("", "memory.max", "memory.current", "inactive_file")
_OWN_MOUNT: Final = "self/root/sys/fs/cgroup"
"""This process's own view of cgroup v2: in a namespace of its own, its cgroup is the root there."""


def memory_headroom_bytes(files: Files) -> int | None:
    """Return the least that a limit on this process's path leaves; None if no limit is visible.

    File pages not used lately count as free, as for the kubelet. A container that is not privileged has its own cgroup
    namespace (on v2): there only its own limit is seen."""
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
        found = [_headroom_at(files.cgroup, f"{tree}{at}", *names) for at in (own, *own.parents)]
        if path == "/" and not controllers:
            found.append(_headroom_at(files.proc, _OWN_MOUNT, *names))
        rooms += [room for room in found if room is not None]
    return min(rooms, default=None)


def _headroom_at(files: Tree, at: str, limit: str, used: str, idle: str) -> int | None:
    try:
        left = files.read_int(f"{at}/{limit}") - files.read_int(f"{at}/{used}")
        words = (line.split() for line in files.read_text(f"{at}/memory.stat").splitlines())
        return max(0, left + next((int(amount) for name, amount in words if name == idle), 0))
    except (OSError, ValueError):  # no limit: it says `max`, or there is no such file
        return None
