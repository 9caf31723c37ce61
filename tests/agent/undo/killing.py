"""Ends a program at any one of its steps: before it, after it, and for the journal also in the middle."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coda_agent.host.files import MOST_BYTES, Files, Tree
from coda_agent.host.state_dir import StateDir


class Killed(BaseException):
    """No program code catches this."""


def die() -> None:
    """As SIGKILL, without a process of its own."""
    raise Killed


def really_die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Steps:
    """Counts steps and ends the program at number `last`; None: never."""

    def __init__(self, last: int | None = None, end: Callable[[], None] = die) -> None:
        self.count = 0
        self._last = last
        self._end = end

    def step(self) -> None:
        self.count += 1
        if self.count == self._last:
            self._end()


class KillingTree(Tree):
    """One root, with a step before and after all that changes it; reading leaves nothing behind."""

    __slots__ = ("_inner", "_steps")

    _inner: Tree
    _steps: Steps

    def __init__(self, inner: Tree, steps: Steps) -> None:
        super().__init__(inner.path)
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_steps", steps)

    def read_bytes(self, relative: str, *, most_bytes: int = MOST_BYTES) -> bytes:
        return self._inner.read_bytes(relative, most_bytes=most_bytes)

    def listdir(self, relative: str = ".") -> tuple[str, ...]:
        return self._inner.listdir(relative)

    def directories(self, relative: str = ".") -> tuple[str, ...]:
        return self._inner.directories(relative)

    def exists(self, relative: str) -> bool:
        return self._inner.exists(relative)

    def write(self, relative: str, text: str) -> None:
        self._steps.step()
        self._inner.write(relative, text)
        self._steps.step()

    def mkdir(self, relative: str) -> None:
        self._steps.step()
        self._inner.mkdir(relative)
        self._steps.step()

    def rmdir(self, relative: str) -> None:
        self._steps.step()
        self._inner.rmdir(relative)
        self._steps.step()

    def rename(self, old: str, new: str) -> None:
        self._steps.step()
        self._inner.rename(old, new)
        self._steps.step()

    @contextmanager
    def locked(self, relative: str = ".") -> Iterator[None]:
        with self._inner.locked(relative):
            yield


class KillingDisk(StateDir):
    """A state directory, with steps between the parts of a write; half a record stays when killed within one."""

    def __init__(self, disk: StateDir, steps: Steps, *, is_full: bool = False) -> None:
        super().__init__(disk.directory)
        self._steps = steps
        self._is_full = is_full

    def append(self, name: str, record: bytes) -> None:
        self._require_space()
        self._steps.step()
        half = len(record) // 2
        super().append(name, record[:half])
        self._steps.step()
        super().append(name, record[half:])
        self._steps.step()

    def replace(self, name: str, content: bytes) -> None:
        self._require_space()
        self._steps.step()
        (self.directory / f"{name}.new").write_bytes(content[: len(content) // 2])
        self._steps.step()
        super().replace(name, content)
        self._steps.step()

    def _require_space(self) -> None:
        if self._is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


def killing_files(files: Files, steps: Steps) -> Files:
    """`files` with every step counted."""
    counted = Files(sys=files.sys.path)
    counted.cgroup = KillingTree(files.cgroup, steps)
    counted.proc = KillingTree(files.proc, steps)
    counted.resctrl = KillingTree(files.resctrl, steps)
    return counted
