"""The hierarchy as directories and files: kind, content and accepted writes of each path.

Paths are relative to the cgroup root, without a leading slash. On v2 the root is the hierarchy; on v1 it is above the
directory of the controllers `cpu,cpuacct`.
"""

from __future__ import annotations

import errno
import fnmatch
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coda_lab.emulators.cgroups.kernel import Group, Kernel
from coda_lab.emulators.resctrl.tasks import FakeTasks, Task

V1_DIRECTORY = "cpu,cpuacct"
Reader = Callable[[Group], str]


@dataclass(slots=True, kw_only=True)
class Switches:
    """Switches for tests. Patterns are shell-like, over "<operation> <path>" or, for `texts`, over the path."""

    errors: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


class CgroupTree:
    """The file operations of one kernel, from any thread. Every one raises OSError as the kernel would.

    `tasks`: all threads of the machine; one belongs to the group that its `cgroup` text names."""

    def __init__(self, kernel: Kernel, tasks: FakeTasks) -> None:
        self.kernel = kernel
        self.tasks = tasks
        self.switches = Switches()
        self.lock = threading.RLock()
        self.log: list[str] = []  # successful writes, in order
        readers = {1: self._v1_readers, 2: self._v2_readers}
        self._readers: Mapping[str, Reader] = readers[kernel.version]()

    def listing(self, path: str) -> list[str]:
        """The names in a directory. ENOTDIR: it is a file."""
        with self._entering("readdir", path):
            if self._is_above(path):
                return [V1_DIRECTORY]
            group = self._group(path)
            return [*group.children, *self._files(group)]

    def directories(self, path: str) -> list[str]:
        """The names of the groups in a group."""
        with self._entering("readdir", path):
            return [V1_DIRECTORY] if self._is_above(path) else list(self._group(path).children)

    def is_directory(self, path: str) -> bool:
        """True if the path, which must exist (else ENOENT), is a directory."""
        with self.lock:
            if self._is_above(path):
                return True
            above, _, name = path.rpartition("/")
            if not self._is_above(above) and name in self._files(self._group(above)):
                return False
            self._group(path)
            return True

    def read(self, path: str) -> str:
        """The present content of the file."""
        with self._entering("read", path):
            for pattern, text in self.switches.texts.items():
                if fnmatch.fnmatchcase(path, pattern):
                    return text
            if self.is_directory(path):
                raise OSError(errno.EISDIR, "a directory", path)
            above, _, name = path.rpartition("/")
            return self._readers[name](self._group(above))

    def write(self, path: str, text: str) -> None:
        """One write(2). EINVAL for files that take none."""
        with self._entering("write", path):
            if self.is_directory(path):
                raise OSError(errno.EISDIR, "a directory", path)
            above, _, name = path.rpartition("/")
            self._write(self._group(above), name, text.strip("\n"))
            self.log.append(f"{path} {text.strip()}")

    def mkdir(self, path: str) -> None:
        """A new group."""
        with self._entering("mkdir", path):
            if path.rpartition("/")[2] in self._readers:
                raise OSError(errno.EEXIST, "exists", path)
            self.kernel.add(self._inside(path))

    def rmdir(self, path: str) -> None:
        """Remove an empty group."""
        with self._entering("rmdir", path):
            if not self.is_directory(path):
                raise OSError(errno.ENOTDIR, "a file", path)
            inside = self._inside(path)
            self.kernel.remove(inside, is_populated=bool(self.members(self.kernel.find(inside))))

    def rename(self, old: str, new: str) -> None:
        """EPERM: cgroups keep their names."""
        raise OSError(errno.EPERM, "cgroups are not renamed", old)

    def membership(self, group: Group) -> str:
        """The text of /proc/<pid>/cgroup for tasks of `group`."""
        return f"0::/{group.path}\n" if self.kernel.version == 2 else f"4:{V1_DIRECTORY}:/{group.path}\n"

    def members(self, group: Group) -> tuple[Task, ...]:
        """The threads in `group` itself."""
        text = self.membership(group)
        return tuple(task for task in self.tasks.all() if task.cgroup == text)

    def _entering(self, operation: str, path: str) -> threading.RLock:
        for pattern, number in self.switches.errors.items():
            if fnmatch.fnmatchcase(f"{operation} {path}", pattern):
                raise OSError(number, "injected", path)
        return self.lock

    def _is_above(self, path: str) -> bool:
        return self.kernel.version == 1 and path == ""

    def _inside(self, path: str) -> str:
        if self.kernel.version == 2:
            return path
        first, _, rest = path.partition("/")
        if first != V1_DIRECTORY:
            raise OSError(errno.ENOENT, "no such hierarchy", path)
        return rest

    def _group(self, path: str) -> Group:
        above, _, name = path.rpartition("/")
        if above and name in self._readers:
            raise OSError(errno.ENOTDIR, "a file", path)
        return self.kernel.find(self._inside(path))

    def _files(self, group: Group) -> list[str]:
        if group.parent is not None:
            return list(self._readers)
        missing = ("cpu.max", "cpu.max.burst", "cpu.weight", "cpu.idle")
        return [name for name in self._readers if name not in missing]

    def _tids(self, group: Group) -> str:
        return "".join(f"{task.tid}\n" for task in self.members(group))

    def _processes(self, group: Group) -> str:
        return "".join(f"{process}\n" for process in sorted({task.process for task in self.members(group)}))

    def _v2_readers(self) -> Mapping[str, Reader]:
        return {
            "cgroup.controllers": lambda group: "cpuset cpu io memory pids\n",
            "cgroup.procs": self._processes,
            "cgroup.threads": self._tids,
            "cpu.idle": lambda group: f"{int(group.is_idle)}\n",
            "cpu.max": lambda group: f"{'max' if group.quota_us is None else group.quota_us} {group.period_us}\n",
            "cpu.max.burst": lambda group: f"{group.burst_us}\n",
            "cpu.pressure": _pressure,
            "cpu.stat": _v2_stat,
            "cpu.weight": lambda group: f"{0 if group.is_idle else group.weight}\n",
        }

    def _v1_readers(self) -> Mapping[str, Reader]:
        return {
            "cgroup.procs": self._processes,
            "cpu.cfs_burst_us": lambda group: f"{group.burst_us}\n",
            "cpu.cfs_period_us": lambda group: f"{group.period_us}\n",
            "cpu.cfs_quota_us": lambda group: f"{-1 if group.quota_us is None else group.quota_us}\n",
            "cpu.shares": lambda group: f"{group.shares}\n",
            "cpu.stat": _v1_stat,
            "cpuacct.usage": lambda group: f"{round(group.used_us * 1000)}\n",
            "tasks": self._tids,
        }

    def _write(self, group: Group, name: str, text: str) -> None:
        quota_us, period_us, burst_us = group.quota_us, group.period_us, group.burst_us
        if name == "cpu.max":
            quota_us, period_us = _max_from(text, period_us)
        elif name == "cpu.cfs_quota_us":
            number = _number(text)
            quota_us = None if number < 0 else number
        elif name == "cpu.cfs_period_us":
            period_us = _natural(text)
        elif name in ("cpu.cfs_burst_us", "cpu.max.burst"):
            burst_us = _natural(text)
        elif name in ("cpu.weight", "cpu.shares"):
            self.kernel.reweigh(group, _natural(text))
            return
        elif name == "cpu.idle":
            group.is_idle = bool(_number(text))
            return
        else:
            raise OSError(errno.EINVAL, "takes no writes", name)
        self.kernel.limit(group, quota_us=quota_us, period_us=period_us, burst_us=burst_us)


def _max_from(text: str, period_us: int) -> tuple[int | None, int]:
    """Parse `cpu.max` as the kernel does: a quota or `max`, and perhaps a period; further words do not count."""
    words = text.split()
    if not words:
        raise OSError(errno.EINVAL, "empty")
    if len(words) > 1 and words[1].isdecimal():
        period_us = int(words[1])
    return None if words[0] == "max" else _number(words[0]), period_us


def _number(text: str) -> int:
    """As kstrtoll with base 0. EINVAL: no number; ERANGE: too large for 64 bits."""
    try:
        number = int(text, 0) if text == text.strip() else int("")
    except ValueError:
        raise OSError(errno.EINVAL, "not a number", text[:40]) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise OSError(errno.ERANGE, "too large", text[:40])
    return number


def _natural(text: str) -> int:
    """As kstrtoull: no sign."""
    number = _number(text)
    if text.startswith("-"):
        raise OSError(errno.EINVAL, "negative", text[:40])
    return number


def _v1_stat(group: Group) -> str:
    return (
        f"nr_periods {int(group.periods)}\nnr_throttled {int(group.throttled_periods)}\n"
        f"throttled_time {int(group.throttled_us * 1000)}\nnr_bursts 0\nburst_time 0\n"
    )


def _v2_stat(group: Group) -> str:
    used_us = int(group.used_us)
    text = f"usage_usec {used_us}\nuser_usec {used_us}\nsystem_usec 0\nnice_usec 0\n"
    if group.parent is None:
        return text
    return text + (
        f"nr_periods {int(group.periods)}\nnr_throttled {int(group.throttled_periods)}\n"
        f"throttled_usec {int(group.throttled_us)}\nnr_bursts 0\nburst_usec 0\n"
    )


def _pressure(group: Group) -> str:
    """The present share of time without a CPU as all averages: the emulator keeps no history."""
    waiting = group.demand_cores - group.served_cores if group.demand_cores > group.served_cores else 0.0
    share = 100 * waiting / group.demand_cores if waiting else 0.0
    some = f"some avg10={share:.2f} avg60={share:.2f} avg300={share:.2f} total={int(group.throttled_us)}\n"
    return some + "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
