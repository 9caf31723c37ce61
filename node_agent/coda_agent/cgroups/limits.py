"""Reading and writing CPU limits of cgroups, in the one order that the kernel takes, each write read back.

A raise goes from the pod to its containers, a cut from the containers to the pod: v1 refuses a child above its parent,
and on v2 the wrong order gives the child less for a moment. What must not live here: what the limit should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coda.errors import InvalidInput, Outage
from coda_agent.cgroups.layout import Layout, Version
from coda_agent.cgroups.quota import CpuLimit, is_same_limit, limit_from_text
from coda_agent.host.files import Files

QUOTA = "cpu.cfs_quota_us"
PERIOD = "cpu.cfs_period_us"
MAX = "cpu.max"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """One cgroup's limit, as it is and as it shall be."""

    path: str
    now: CpuLimit
    wanted: CpuLimit

    @property
    def is_raise(self) -> bool:
        """Whether it gives more than now."""
        return self.wanted.cores > self.now.cores


def read_limit(files: Files, layout: Layout, path: str) -> CpuLimit:
    """The limit of cgroup `path`. OSError: as the kernel gave it; Outage: the file holds no limit."""
    try:
        if layout.version is Version.V2:
            return limit_from_text(files.cgroup.read_text(layout.cpu_file(path, MAX), most_bytes=4096))
        quota_us = files.cgroup.read_int(layout.cpu_file(path, QUOTA))
        period_us = files.cgroup.read_int(layout.cpu_file(path, PERIOD))
        return CpuLimit(quota_us=None if quota_us < 0 else quota_us, period_us=period_us)
    except InvalidInput as error:
        raise Outage(f"the CPU limit of {path} cannot be read: {error}") from error


def write_limit(files: Files, layout: Layout, path: str, limit: CpuLimit) -> None:
    """Make `limit` that of cgroup `path`, and read it back. On v1 the period must be the one in place.

    OSError: as the kernel gave it, nothing changed; Outage: another value is in place afterwards."""
    if layout.version is Version.V2:
        files.cgroup.write(layout.cpu_file(path, MAX), f"{limit}\n")
    else:
        quota = -1 if limit.quota_us is None else limit.quota_us
        files.cgroup.write(layout.cpu_file(path, QUOTA), f"{quota}\n")
    found = read_limit(files, layout, path)
    if not is_same_limit(found, limit):
        raise Outage(f"the CPU limit of {path} is {found} although {limit} was written")


def in_kernel_order(changes: Sequence[LimitChange]) -> tuple[LimitChange, ...]:
    """The changes in the order that the kernel takes: raises from the top, then cuts from the bottom; then by path.

    What is as wanted already is left out."""
    due = [change for change in changes if not is_same_limit(change.now, change.wanted)]
    raises = sorted((one for one in due if one.is_raise), key=lambda one: (one.path.count("/"), one.path))
    cuts = sorted((one for one in due if not one.is_raise), key=lambda one: (-one.path.count("/"), one.path))
    return (*raises, *cuts)
