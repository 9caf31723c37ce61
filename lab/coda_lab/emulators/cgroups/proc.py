"""The /proc of the emulated node's processes: their cgroups, when they began, which boot this is.

Paths are relative to the proc root.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from coda_lab.emulators.cgroups.tree import CgroupTree
from coda_lab.emulators.resctrl.tasks import Task

FILES = ("boot_id", "cgroup", "cpu_resctrl_groups", "stat")
TICKS_PER_PROCESS = 10  # processes begin in the order of their ids


class ProcTree:
    """Read-only file operations. Changing `boot_id` means that the machine was restarted.

    `groups_of`: the resctrl groups of a thread; None if the machine has no resctrl.
    """

    def __init__(self, tree: CgroupTree, groups_of: Callable[[Task], str] | None = None) -> None:
        self._tree = tree
        self._groups_of = groups_of
        self.boot_id = "5f1b0c1e-0000-4000-8000-000000000001"

    def listing(self, path: str) -> list[str]:
        """The names in a directory."""
        processes = {str(task.tid) for task in self._tree.tasks.all()}
        names = {"": sorted({"sys", *processes}), "sys": ["kernel"], "sys/kernel": ["random"]}
        names["sys/kernel/random"] = ["boot_id"]
        if path in processes:
            return ["cgroup", "stat"] if self._groups_of is None else ["cgroup", "cpu_resctrl_groups", "stat"]
        if path in names:
            return names[path]
        raise OSError(errno.ENOENT, "no such process", path)

    def directories(self, path: str) -> list[str]:
        """The names of the directories in a directory."""
        return [name for name in self.listing(path) if name not in FILES]

    def is_directory(self, path: str) -> bool:
        """True if the path, which must exist (else ENOENT), is a directory."""
        above, _, name = path.rpartition("/")
        if path and name not in self.listing(above):
            raise OSError(errno.ENOENT, "no such file", path)
        return name not in FILES

    def read(self, path: str) -> str:
        """The present content of the file."""
        if self.is_directory(path):
            raise OSError(errno.EISDIR, "a directory", path)
        tid, _, name = path.rpartition("/")
        if name == "boot_id":
            return f"{self.boot_id}\n"
        task = next(task for task in self._tree.tasks.all() if str(task.tid) == tid)
        if name == "cgroup":
            return task.cgroup
        if name == "cpu_resctrl_groups" and self._groups_of is not None:
            return self._groups_of(task)
        fields = ["S", *["0"] * 18, str(task.process * TICKS_PER_PROCESS), *["0"] * 30]
        return f"{task.process} (a (very) odd name) {' '.join(fields)}\n"

    def write(self, path: str, text: str) -> None:
        """EACCES."""
        raise OSError(errno.EACCES, "read-only", path)

    def mkdir(self, path: str) -> None:
        """EPERM."""
        raise OSError(errno.EPERM, "read-only", path)

    def rename(self, old: str, new: str) -> None:
        """EPERM."""
        raise OSError(errno.EPERM, "read-only", old)

    def rmdir(self, path: str) -> None:
        """EPERM."""
        raise OSError(errno.EPERM, "read-only", path)
