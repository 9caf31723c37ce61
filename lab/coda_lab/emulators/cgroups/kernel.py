"""The groups and the kernel's rules about their CPU limits, for both versions. Time moves only by `advance`.

Source: `kernel/sched/core.c`, `kernel/cgroup/cgroup.c`; tests compare the v1 rules with a real kernel.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

LEAST_US = 1000
LONGEST_PERIOD_US = 1_000_000
MOST_US = (1 << 44) - 1  # MAX_BW in us
WEIGHTS = range(1, 10_001)
SHARES = range(2, 262_145)


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """One cgroup. `demand_cores`: the cores its own tasks would use without limits."""

    path: str
    parent: Group | None
    children: dict[str, Group] = field(default_factory=dict)
    quota_us: int | None = None
    period_us: int = 100_000
    burst_us: int = 0
    weight: int = 100
    shares: int = 1024
    is_idle: bool = False
    demand_cores: float = 0.0
    used_us: float = 0.0
    periods: float = 0.0
    throttled_periods: float = 0.0
    throttled_us: float = 0.0
    served_cores: float = 0.0

    @property
    def cores(self) -> float:
        """The group's own limit in cores; infinite without."""
        return math.inf if self.quota_us is None else self.quota_us / self.period_us

    @property
    def name(self) -> str:
        """The last part of its path; empty for the root."""
        return self.path.rpartition("/")[2]

    def walk(self) -> Iterator[Group]:
        """The group and all below, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()


class Kernel:
    """One hierarchy with the cpu controller. Methods raise OSError as the kernel does, and then change nothing."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.root = Group(path="", parent=None)
        self.now_s = 0.0

    def find(self, path: str) -> Group:
        """The group at `path` (relative, "" is the root). ENOENT: there is none."""
        group = self.root
        for name in path.split("/") if path else ():
            if name not in group.children:
                raise OSError(errno.ENOENT, "no such cgroup", path)
            group = group.children[name]
        return group

    def add(self, path: str) -> Group:
        """mkdir. EEXIST, EINVAL for a newline in the name, ENOENT without parent."""
        above, _, name = path.rpartition("/")
        parent = self.find(above)
        if "\n" in name:
            raise OSError(errno.EINVAL, "newline in a cgroup's name", path)
        if name in parent.children:
            raise OSError(errno.EEXIST, "exists", path)
        parent.children[name] = Group(path=path, parent=parent)
        return parent.children[name]

    def remove(self, path: str, *, is_populated: bool) -> None:
        """rmdir. EBUSY with groups below or with tasks."""
        group = self.find(path)
        if group.parent is None or group.children or is_populated:
            raise OSError(errno.EBUSY, "cgroup is busy", path)
        del group.parent.children[group.name]

    def limit(self, group: Group, *, quota_us: int | None, period_us: int, burst_us: int) -> None:
        """Set the bandwidth of a group. EINVAL: out of range, burst above quota, or (v1) a child above its parent."""
        is_bounded = quota_us is not None
        if group.parent is None or not LEAST_US <= period_us <= LONGEST_PERIOD_US:
            raise OSError(errno.EINVAL, "out of range", group.path)
        if quota_us is not None and not LEAST_US <= quota_us <= MOST_US:
            raise OSError(errno.EINVAL, "out of range", group.path)
        if is_bounded and quota_us is not None and (burst_us > quota_us or burst_us + quota_us > MOST_US):
            raise OSError(errno.EINVAL, "burst above quota", group.path)
        before = group.quota_us, group.period_us, group.burst_us
        group.quota_us, group.period_us, group.burst_us = quota_us, period_us, burst_us
        if self.version == 1 and not _is_schedulable(self.root, None):
            group.quota_us, group.period_us, group.burst_us = before
            raise OSError(errno.EINVAL, "a child above its parent", group.path)

    def reweigh(self, group: Group, number: int) -> None:
        """Set weight (v2: ERANGE outside 1..10000, EINVAL while idle) or shares (v1: clamped)."""
        if self.version == 1:
            if group.parent is None:
                raise OSError(errno.EINVAL, "not for the root", group.path)
            group.shares = min(max(number, SHARES[0]), SHARES[-1])
            return
        if number not in WEIGHTS:
            raise OSError(errno.ERANGE, "weight out of range", group.path)
        if group.is_idle:
            raise OSError(errno.EINVAL, "the group is idle", group.path)
        group.weight = number

    def advance(self, seconds: float) -> None:
        """Let time pass: every group's tasks use what they demand, as far as all limits above them allow."""
        self.now_s += seconds
        wanted = {id(group): 0.0 for group in self.root.walk()}
        for group in reversed(tuple(self.root.walk())):  # children first
            inside = group.demand_cores + sum(wanted[id(child)] for child in group.children.values())
            wanted[id(group)] = min(inside, group.cores)
        _serve(self.root, wanted[id(self.root)], wanted, seconds)


def _serve(group: Group, cores: float, wanted: dict[int, float], seconds: float) -> None:
    """Give `group` these `cores`, shared among its tasks and children by what each can use."""
    inside = group.demand_cores + sum(wanted[id(child)] for child in group.children.values())
    group.served_cores = min(cores, inside)
    group.used_us += group.served_cores * seconds * 1e6
    if group.quota_us is not None and inside > 0:
        periods = seconds * 1e6 / group.period_us
        group.periods += periods
        if inside > group.cores:
            group.throttled_periods += periods
            group.throttled_us += (inside - group.cores) * seconds * 1e6
    part = group.served_cores / inside if inside else 0.0
    for child in group.children.values():
        _serve(child, wanted[id(child)] * part, wanted, seconds)


def _is_schedulable(group: Group, above: int | None) -> bool:
    """True if no group has a higher ratio of quota to period than the nearest limited group above it (v1)."""
    ratio = None if group.quota_us is None else (group.quota_us << 20) // group.period_us
    if ratio is not None and above is not None and ratio > above:
        return False
    return all(_is_schedulable(child, above if ratio is None else ratio) for child in group.children.values())
