"""Cgroups of this machine's kernel, version 1, made for one test and removed after it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from coda_agent.host.files import Files

CPU = Path("/sys/fs/cgroup/cpu")
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
SPIN = "while True: pass"
REST = "import signal; signal.pause()"


def has_v1() -> bool:
    return os.geteuid() == 0 and (CPU / "cpu.cfs_quota_us").exists() and (CPUACCT / "cpuacct.usage").exists()


@contextlib.contextmanager
def groups(*paths: str) -> Iterator[None]:
    """Directories below both hierarchies, in this order; removed with what was made below them."""
    try:
        for path in paths:
            for tree in {CPU.resolve(), CPUACCT.resolve()}:
                (tree / path).mkdir(parents=True)
            (CPU / path.split("/")[0] / "cpu.shares").write_text("262144")  # also if other work runs on the machine
        yield
    finally:
        for tree in {CPU.resolve(), CPUACCT.resolve()}:
            for top in sorted({path.split("/")[0] for path in paths}):
                _remove(tree / top)


def files_inside(top: str, directory: Path, resctrl: Path = Path("/nonexistent")) -> Files:
    """The agent's file access to this machine, seeing nothing of its cgroups but those below `top`."""
    for tree in (CPU, CPUACCT):
        (directory / tree.name).symlink_to(tree.resolve() / top)
    return Files(cgroup=directory, resctrl=resctrl)


@contextlib.contextmanager
def running(path: str, processes: int, program: str = SPIN) -> Iterator[None]:
    """Processes in the cgroup at `path`."""
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(processes)]
    try:
        for process in started:
            for tree in {CPU.resolve(), CPUACCT.resolve()}:
                (tree / path / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _remove(directory: Path) -> None:
    for above, names, _ in os.walk(directory, topdown=False):
        for name in names:
            _rmdir(Path(above) / name)
    _rmdir(directory)


def _rmdir(directory: Path) -> None:
    """A group is busy for a moment after its last process was reaped."""
    deadline_s = time.monotonic() + 5
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
