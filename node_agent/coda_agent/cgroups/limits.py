"""Reads and writes CPU limits of cgroups, in the only order that the kernel takes, and reads each write back.

A raise goes from the pod to its containers, a cut from the containers to the pod. v1 refuses a child above its parent;
on v2 the wrong order gives the child less for a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coda.errors import InvalidInput, Outage
from coda_agent.cgroups.layout import Layout, Version, list_containers
from coda_agent.cgroups.quota import CpuLimit, is_same_limit, limit_from_text
from coda_agent.host import Files

QUOTA = "cpu.cfs_quota_us"
PERIOD = "cpu.cfs_period_us"
MAX = "cpu.max"
BURST_BY_VERSION = {Version.V1: "cpu.cfs_burst_us", Version.V2: "cpu.max.burst"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """One cgroup's limit, now and as wanted."""

    path: str
    now: CpuLimit
    wanted: CpuLimit

    @property
    def is_raise(self) -> bool:
        """True if the wanted limit is higher."""
        return self.wanted.cores > self.now.cores


def read_limit(files: Files, layout: Layout, path: str) -> CpuLimit:
    """Return the limit of cgroup `path`. Raises OSError as the kernel gave it; Outage if the file holds no limit."""
    try:
        if layout.version is Version.V2:
            return limit_from_text(files.cgroup.read_text(layout.cpu_file(path, MAX), most_bytes=4096))
        quota_us = files.cgroup.read_int(layout.cpu_file(path, QUOTA))
        period_us = files.cgroup.read_int(layout.cpu_file(path, PERIOD))
        return CpuLimit(quota_us=None if quota_us < 0 else quota_us, period_us=period_us)
    except InvalidInput as error:
        raise Outage(f"the CPU limit of {path} cannot be read: {error}") from error


def find_container(files: Files, layout: Layout, pod: str, container_id: str) -> str | None:
    """Return the path of a container of the pod at `pod`; None if it is not there or cannot be looked for."""
    try:
        return next((one.path for one in list_containers(files, layout, pod) if one.id == container_id), None)
    except OSError:
        return None


def cores_in_force(files: Files, layout: Layout, pod: str, container_id: str) -> float | None:
    """Return how many cores the kernel lets a container of the pod at `pod` use: the least along its path.

    Infinite if unlimited. None if its cgroup is not there or cannot be read."""
    try:
        own = [one.path for one in list_containers(files, layout, pod) if one.id == container_id]
        limits = [read_limit(files, layout, path).cores for path in own and [pod, *own]]
    except (OSError, Outage):
        return None
    return min(limits, default=None)


def write_limit(files: Files, layout: Layout, path: str, limit: CpuLimit) -> None:
    """Set the limit of cgroup `path`, and read it back. On v1 the period must be the one in place.

    Raises OSError as the kernel gave it, nothing changed; Outage if another value is in place afterwards."""
    if layout.version is Version.V2:
        files.cgroup.write(layout.cpu_file(path, MAX), f"{limit}\n")
    else:
        quota = -1 if limit.quota_us is None else limit.quota_us
        files.cgroup.write(layout.cpu_file(path, QUOTA), f"{quota}\n")
    found = read_limit(files, layout, path)
    if not is_same_limit(found, limit):
        raise Outage(f"the CPU limit of {path} is {found} although {limit} was written")


def read_burst(files: Files, layout: Layout, path: str) -> int:
    """Return how much unused time, in us, a cgroup may use above its quota; 0 where the kernel has no bursts."""
    try:
        return files.cgroup.read_int(layout.cpu_file(path, BURST_BY_VERSION[layout.version]))
    except FileNotFoundError:
        return 0


def write_burst(files: Files, layout: Layout, path: str, burst_us: int) -> None:
    """Set the burst of cgroup `path`. Raises OSError as the kernel gave it: EINVAL for more than the quota."""
    files.cgroup.write(layout.cpu_file(path, BURST_BY_VERSION[layout.version]), f"{burst_us}\n")


def in_kernel_order(changes: Sequence[LimitChange]) -> tuple[LimitChange, ...]:
    """Return the changes in the order that the kernel takes: raises from the top, then cuts from the bottom; then by
    path.

    Limits that are already as wanted are left out."""
    due = [change for change in changes if not is_same_limit(change.now, change.wanted)]
    raises = sorted((one for one in due if one.is_raise), key=lambda one: (one.path.count("/"), one.path))
    cuts = sorted((one for one in due if not one.is_raise), key=lambda one: (-one.path.count("/"), one.path))
    return (*raises, *cuts)
