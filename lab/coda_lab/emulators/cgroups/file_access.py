"""Emulated trees in place of the agent's file access, in the same process: fast enough for thousands of runs.

Cgroups and processes, and resctrl if there is one. The agent's own path checks stay in force.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from coda_agent.host.files import MOST_BYTES, Files, Tree
from coda_lab.emulators.resctrl import tree as resctrl_tree
from coda_lab.emulators.resctrl.machine import Machine


class Operations(Protocol):
    """File operations on paths relative to a root, which is ""; they raise OSError as a kernel does."""

    def listing(self, path: str) -> list[str]:
        """The names in a directory."""

    def directories(self, path: str) -> list[str]:
        """The names of the directories in a directory."""

    def is_directory(self, path: str) -> bool:
        """True if the path, which must exist, is a directory."""

    def read(self, path: str) -> str:
        """The present content of the file."""

    def write(self, path: str, text: str) -> None:
        """One write(2)."""

    def mkdir(self, path: str) -> None:
        """Create a directory."""

    def rmdir(self, path: str) -> None:
        """Remove a directory."""

    def rename(self, old: str, new: str) -> None:
        """Rename."""


class EmulatedTree(Tree):
    """An emulated root of the agent."""

    __slots__ = ("_operations",)

    _operations: Operations

    def __init__(self, operations: Operations) -> None:
        super().__init__(Path("/emulated"))
        object.__setattr__(self, "_operations", operations)

    def read_bytes(self, relative: str, *, most_bytes: int = MOST_BYTES) -> bytes:
        """As the agent's own tree."""
        content = self._operations.read(self._inside(relative)).encode()
        if len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"longer than {most_bytes} bytes", relative)
        return content

    def write(self, relative: str, text: str) -> None:
        """As the agent's own tree."""
        self._operations.write(self._inside(relative), text)

    def listdir(self, relative: str = ".") -> tuple[str, ...]:
        """As the agent's own tree."""
        return tuple(sorted(self._operations.listing(self._inside(relative))))

    def directories(self, relative: str = ".") -> tuple[str, ...]:
        """As the agent's own tree."""
        return tuple(sorted(self._operations.directories(self._inside(relative))))

    def mkdir(self, relative: str) -> None:
        """As the agent's own tree."""
        self._operations.mkdir(self._inside(relative))

    def rmdir(self, relative: str) -> None:
        """As the agent's own tree."""
        self._operations.rmdir(self._inside(relative))

    def rename(self, old: str, new: str) -> None:
        """As the agent's own tree."""
        self._operations.rename(self._inside(old), self._inside(new))

    @contextmanager
    def locked(self, relative: str = ".") -> Iterator[None]:
        """True: no other agent can be there."""
        self._operations.is_directory(self._inside(relative))
        yield

    def exists(self, relative: str) -> bool:
        """As the agent's own tree."""
        try:
            self._operations.is_directory(self._inside(relative))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _inside(self, relative: str) -> str:
        self._absolute(relative)  # refuses paths that leave the root
        return "/".join(part for part in relative.split("/") if part not in ("", "."))


class _Resctrl:
    """Resctrl for callers that may write from any thread. Its refusals get the type that a system call gives them."""

    def __init__(self, machine: Machine) -> None:
        self._tree = resctrl_tree.Tree(machine)

    def listing(self, path: str) -> list[str]:
        with _as_by_a_call(path):
            return self._tree.listing(path)

    def directories(self, path: str) -> list[str]:
        paths = ((name, f"{path}/{name}".lstrip("/")) for name in self.listing(path))
        return [name for name, below in paths if self.is_directory(below)]

    def is_directory(self, path: str) -> bool:
        with _as_by_a_call(path):
            return self._tree.is_directory(path)

    def read(self, path: str) -> str:
        with _as_by_a_call(path):
            return self._tree.read(path)

    def write(self, path: str, text: str) -> None:
        with _as_by_a_call(path):
            self._tree.write(path, text, writer=1)

    def mkdir(self, path: str) -> None:
        with _as_by_a_call(path):
            self._tree.mkdir(path)

    def rmdir(self, path: str) -> None:
        with _as_by_a_call(path):
            self._tree.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        with _as_by_a_call(old):
            self._tree.rename(old, new)


@contextmanager
def _as_by_a_call(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as refusal:
        raise OSError(refusal.errno, refusal.strerror or str(refusal), path) from refusal


def files_over(*, cgroup: Operations, proc: Operations, machine: Machine | None = None) -> Files:
    """The agent's file access with emulated cgroups and processes, and resctrl if there is a `machine`."""
    files = Files(sys=Path("/nonexistent"), resctrl=Path("/nonexistent"))
    files.cgroup = EmulatedTree(cgroup)
    files.proc = EmulatedTree(proc)
    if machine is not None:
        files.resctrl = EmulatedTree(_Resctrl(machine))
    return files
