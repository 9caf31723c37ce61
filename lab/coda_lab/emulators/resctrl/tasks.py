"""Threads, as the kernel's scheduler knows them: each has one class of service and one monitoring id.

Two kinds: invented threads, and the real ones of this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class Task:
    """One thread. `load`: the name of its load; `cgroup`: the text of its /proc/<tid>/cgroup."""

    tid: int
    process: int
    closid: int = 0
    rmid: int = 0
    load: str = ""
    cgroup: str = ""


class FakeTasks:
    """Invented threads."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._last = 1000

    def find(self, tid: int) -> Task | None:
        """The living thread."""
        return self._tasks.get(tid)

    def all(self) -> Iterable[Task]:
        """Every living thread, by tid."""
        return tuple(self._tasks.values())

    def adopt(self, tid: int) -> Task:
        """The thread of a program outside that writes `0`, which means itself."""
        return self._tasks.setdefault(tid, Task(tid=tid, process=tid))

    def spawn(self, load: str, threads: int = 1, cgroup: str = "") -> tuple[int, ...]:
        """A new process without a parent here, as after exec from a runtime: it begins in the root."""
        first = self._last + 1
        return tuple(self._add(Task(tid=0, process=first, load=load, cgroup=cgroup)) for _ in range(threads))

    def clone(self, tid: int, count: int = 1) -> tuple[int, ...]:
        """New threads of the same process; they inherit the groups of thread `tid`."""
        like = self._tasks[tid]
        return tuple(
            self._add(
                Task(
                    tid=0,
                    process=like.process,
                    closid=like.closid,
                    rmid=like.rmid,
                    load=like.load,
                    cgroup=like.cgroup,
                )
            )
            for _ in range(count)
        )

    def exit(self, tid: int) -> None:
        """The thread ends."""
        self._tasks.pop(tid, None)

    def _add(self, task: Task) -> int:
        self._last += 1
        task.tid = self._last
        self._tasks[task.tid] = task
        return task.tid


class RealTasks:
    """The threads of this machine. A new thread inherits from its process, and a new process from its parent. That is
    near to the kernel if somebody looks often enough. `loads` names the load of a process.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._tasks: dict[int, Task] = {}
        self.loads: dict[int, str] = {}

    def find(self, tid: int) -> Task | None:
        """The living thread."""
        ids = self._status(tid)
        if ids is None:
            self._tasks.pop(tid, None)
            return None
        process, parent = ids
        if tid not in self._tasks:
            like = self._tasks.get(process if process != tid else parent)
            closid, rmid = (0, 0) if like is None else (like.closid, like.rmid)
            self._tasks[tid] = Task(tid=tid, process=process, closid=closid, rmid=rmid)
        task = self._tasks[tid]
        task.load = self.loads.get(process, "")
        return task

    def all(self) -> Iterable[Task]:
        """Every living thread, by tid."""
        found: list[Task] = []
        for process in sorted(int(path.name) for path in self._proc.iterdir() if path.name.isdecimal()):
            with contextlib.suppress(OSError):
                threads = sorted(int(path.name) for path in (self._proc / str(process) / "task").iterdir())
                found += [task for task in map(self.find, threads) if task is not None]
        return tuple(found)

    def adopt(self, tid: int) -> Task:
        """The thread of the program that writes `0`, which means itself."""
        return self.find(tid) or Task(tid=tid, process=tid)

    def _status(self, tid: int) -> tuple[int, int] | None:
        """Process and parent process of a thread; None when it is gone."""
        try:
            lines = (self._proc / str(tid) / "status").read_text().splitlines()
        except OSError:
            return None
        words = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return int(words["Tgid"]), int(words["PPid"])
