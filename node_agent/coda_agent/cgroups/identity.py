"""Which pod and container a process belongs to, from `/proc/<pid>/cgroup`, and when a process began.

The path may have any prefix: a kubelet's `--cgroup-root`, a nested node, `/../..` in a private namespace. So the pod's
segment is searched for, never counted. A runtime without systemd under a kubelet with it makes one segment of systemd's
words, `<pod>.slice:cri-containerd:<container>`, below its own cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass

POD_SEGMENT = re.compile(r"(?:^|-)pod([0-9a-f][0-9a-f_-]{30,}[0-9a-f])(?:\.slice)?$")
CONTAINER_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
MONITOR = "conmon"  # older CRI-O keeps a container's monitor in a scope with the container's own id
START_FIELD = 19  # of /proc/<pid>/stat, counted after the command's name


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerIdentity:
    """The pod, and where known the container, of a process."""

    pod_uid: str
    container_id: str | None = None


def pod_uid_from(segment: str) -> str | None:
    """Return the pod's uid in one segment of a cgroup path, as the API writes it; None if it names no pod.

    The systemd driver writes `_` for `-`. The uid of a static pod is the hash of its configuration: 32 hexadecimal
    digits."""
    found = POD_SEGMENT.search(segment)
    return found.group(1).replace("_", "-") if found else None


def container_id_from(segment: str) -> str | None:
    """Return the container's id in one segment of a cgroup path; None if it names no container."""
    found = None if MONITOR in segment else CONTAINER_ID.search(segment)
    return found.group(1) if found else None


def owner_from(text: str) -> ContainerIdentity | None:
    """Return the owner of a process, from `/proc/<pid>/cgroup`; None for a process of no pod, and for garbage.

    The outermost pod counts, with the container right below it: everything nested inside belongs to them."""
    paths = (line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2)
    owners = (_owner_in_path(path) for path in paths)
    return next((owner for owner in owners if owner is not None), None)


def start_ticks_from(text: str) -> int | None:
    """Return when a process began, clock ticks since boot, from `/proc/<pid>/stat`; None for garbage.

    A pid is used again; pid and start together name one process for the life of the machine."""
    fields = text.rpartition(")")[2].split()  # the command's name may hold blanks and parentheses
    if len(fields) <= START_FIELD or not fields[START_FIELD].isascii() or not fields[START_FIELD].isdigit():
        return None
    return int(fields[START_FIELD])


def _owner_in_path(path: str) -> ContainerIdentity | None:
    segments = path.split("/")
    for index, segment in enumerate(segments):
        pod, _, inside = segment.partition(":")
        pod_uid = pod_uid_from(pod)
        if pod_uid is not None:
            below = inside or (segments[index + 1] if index + 1 < len(segments) else "")
            return ContainerIdentity(pod_uid=pod_uid, container_id=container_id_from(below))
    return None
