"""The emulated machine behind a FUSE mount, and the removal of mounts that nobody serves any more.

A mount names its owner (process id and start time), so the next test recognises and detaches the mount of a killed one.
Mounting needs root, /dev/fuse and libfuse; importing this does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coda_lab.emulators.resctrl.machine import Machine

if TYPE_CHECKING:
    from coda_lab.emulators.resctrl.operations import Operations

SOURCE = "coda-resctrl"
_DETACH = 2  # MNT_DETACH
_STARTED_WITHIN_S = 20.0
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def mounted(machine: Machine, directory: Path) -> Iterator[Path]:
    """Mount `machine` at `directory` until the block ends; then everything is reset, as the kernel does.

    A profile that is not mounted leaves the directory as it is. Raises OSError: EBUSY if the machine is mounted
    already, or another living one is there.
    """
    if not machine.profile.is_mounted:
        yield directory
        return
    if machine.is_mounted:
        raise OSError(errno.EBUSY, "resctrl can be mounted only once", str(directory))
    detach_stale()
    if any(point == str(directory) for _, point in _mounts()):
        raise OSError(errno.EBUSY, "something is mounted there", str(directory))
    from coda_lab.emulators.resctrl.operations import END, Operations  # needs libfuse, which only mounting may ask for

    ready = threading.Event()
    failures: list[BaseException] = []
    operations = Operations(machine, ready)
    arguments = (operations, directory, ready, failures)
    thread = threading.Thread(target=_serve, args=arguments, name="resctrl", daemon=True)
    thread.start()
    if not ready.wait(_STARTED_WITHIN_S) or failures:
        raise OSError(errno.EIO, f"FUSE did not start: {failures[0] if failures else 'no answer'}", str(directory))
    _take_signals_back()
    machine.is_mounted = True
    try:
        yield directory
    finally:
        operations.may_end = True
        with contextlib.suppress(OSError):
            (directory / END).stat()
        thread.join(_STARTED_WITHIN_S)
        with contextlib.suppress(OSError):  # libfuse has done it as its loop ended
            detach(directory)
        _take_signals_back()
        with machine.lock:
            machine.is_mounted = False
            machine.reset()


def detach_stale() -> None:
    """Detach every emulated resctrl whose process has ended, at any mount point."""
    for source, point in _mounts():
        if source.startswith(SOURCE + "-") and not _is_alive(source):
            with contextlib.suppress(OSError):  # another test was faster
                detach(Path(point))


def detach(directory: Path) -> None:
    """Unmount: at once for new visitors, for those inside when they are done."""
    if _LIBC.umount2(os.fsencode(directory), _DETACH) != 0:
        raise OSError(ctypes.get_errno(), "cannot unmount", str(directory))


def _serve(operations: Operations, directory: Path, ready: threading.Event, failures: list[BaseException]) -> None:
    from coda_lab.emulators.resctrl.operations import serve

    try:
        serve(operations, directory, f"{SOURCE}-{os.getpid()}-{_start_of(os.getpid())}")
    except BaseException as failure:  # reported by the thread that waits
        failures.append(failure)
    finally:
        ready.set()


def _take_signals_back() -> None:
    """Restore Python's signal handlers: libfuse takes those at their default, and at its end sets SIGPIPE to the
    default.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        handler = signal.getsignal(number)
        if handler in (signal.SIG_DFL, signal.SIG_IGN):
            _LIBC.signal(int(number), ctypes.c_void_p(int(handler)))


def _mounts() -> list[tuple[str, str]]:
    """Source and mount point of everything mounted."""
    lines = (line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines())
    return [(words[0], re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words[1])) for words in lines]


def _is_alive(source: str) -> bool:
    owner = source.removeprefix(SOURCE + "-").split("-")
    return len(owner) == 2 and all(word.isdecimal() for word in owner) and _start_of(int(owner[0])) == int(owner[1])


def _start_of(process: int) -> int | None:
    """When the process began, in ticks since boot; None when it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])
