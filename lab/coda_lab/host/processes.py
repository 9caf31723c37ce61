"""Processes that never outlive their owner, and are never confused with processes of others. Linux only.

Each process starts in a session of its own and asks the kernel to kill it when its parent dies. A child of a child may
survive that. It has the owner's mark in its environment, and a clean-up kills only processes with the mark. Nothing
here belongs to an event loop, so tests that have a loop each can share a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "CODA_LOCAL_CLUSTER"
"""This environment variable says to which cluster's state folder a process belongs."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def dies_with(parent_pid: int) -> Callable[[], None]:
    """For `preexec_fn`: the kernel kills the child when its parent's thread ends, at once if it has already ended."""

    def ask_the_kernel() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)

    return ask_the_kernel


def start_time_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None if it is gone. Together with the pid it names one process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """One process. Its start time distinguishes it from a later process with the same pid."""

    pid: int
    started_ticks: int

    def is_alive(self) -> bool:
        """True while this process runs."""
        return start_time_ticks(self.pid) == self.started_ticks


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of one of Coda's programs: this interpreter, without the working folder on its path."""
    return (sys.executable, "-P", "-m", module, *arguments)


def python_path() -> str:
    """PYTHONPATH for a child, so that it finds the same modules as this process."""
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))  # the interpreter adds these
    return os.pathsep.join(path for path in sys.path if Path(path).is_dir() and path and not path.startswith(own))


class Process:
    """A program that `start` started: its identity and its end."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.started_s = time.time()
        self.id = ProcessId(pid=popen.pid, started_ticks=start_time_ticks(popen.pid) or 0)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N if signal N ended it."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children; do nothing if they are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.id.pid, number)

    async def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        while (code := self._popen.poll()) is None:
            descriptor = os.pidfd_open(self.id.pid)
            try:
                await readable(descriptor)
            finally:
                os.close(descriptor)
        return code

    def end_at_once(self) -> None:
        """Kill it and its children, and wait for its end: a short, blocking wait."""
        self.signal(signal.SIGKILL)
        self._popen.wait()


def start(argv: Sequence[str], *, environ: Mapping[str, str], log: Path, folder: Path) -> Process:
    """Start a program that dies with this process; its output is appended to `log`. Call it from the main thread only.

    The kernel ties the child to the thread that starts it: a child of a worker thread dies with the worker."""
    assert threading.current_thread() is threading.main_thread()
    with log.open("ab") as sink:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),
        )
    return Process(popen)


async def readable(descriptor: int) -> None:
    """Wait until `descriptor` can be read or has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def marked(mark: str) -> Iterator[int]:
    """The pids of this user's other processes that have `mark` in their environment."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid() and _carries(int(folder.name), mark):
            yield int(folder.name)


def kill_marked(mark: str) -> int:
    """Kill every process that has `mark`, wait until all are gone, and return their number.

    The pid is pinned by a descriptor and then checked again, so a process that reuses a pid is not killed."""
    killed = 0
    while pids := list(marked(mark)):
        for pid in pids:
            killed += _kill_pinned(pid, mark)
    return killed


def _kill_pinned(pid: int, mark: str) -> int:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        if not _carries(pid, mark):
            return 0
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], 5)
    except ProcessLookupError:
        return 0
    finally:
        os.close(descriptor)
    return 1


def _carries(pid: int, mark: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{MARK}={mark}".encode() in environ.split(b"\0")
