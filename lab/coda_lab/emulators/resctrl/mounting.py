"""The emulated machine behind a FUSE mount, and getting rid of mounts that nobody serves any more.

A mount names its owner (process id and start time), so what a killed test left is known as dead and detached by the
next one. What must not live here: any rule of resctrl. Needs root, /dev/fuse and libfuse."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mfusepy

from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.tree import Tree

SOURCE = "coda-resctrl"
WRITABLE = {"tasks", "schemata", "cpus", "cpus_list", "mode", "mbm_L3_assignments", "mba_MBps_event"}
_END = ".end"  # looking for this name ends the loop, even where another mount namespace still has the mount
_DETACH = 2  # MNT_DETACH
_STARTED_WITHIN_S = 20.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Operations(mfusepy.Operations):  # type: ignore[misc]  # mfusepy ships no types
    use_ns = True
    flag_nullpath_ok = 1  # a file of a removed group has no path any more

    def __init__(self, machine: Machine, ready: threading.Event) -> None:
        self._tree = Tree(machine)
        self._ready = ready
        self.may_end = False
        self._handles = itertools.count(1)
        self._texts: dict[int, bytes] = {}

    def init(self, path: str) -> None:
        self._ready.set()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        name = _relative(path)
        if name == _END and self.may_end:
            mfusepy.fuse_exit()
        if self._tree.is_directory(name):
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        mode = 0o644 if name.rpartition("/")[2] in WRITABLE else 0o444
        return {"st_mode": stat.S_IFREG | mode, "st_nlink": 1}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._tree.listing(_relative(path))]

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and path.rpartition("/")[2] not in WRITABLE:
            raise OSError(errno.EACCES, path)
        return next(self._handles)

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        if path is None:
            raise OSError(errno.ENODEV, "the group is gone")
        if offset == 0 or fh not in self._texts:
            self._texts[fh] = self._tree.read(_relative(path)).encode()
        return self._texts[fh][offset : offset + size]

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        if path is None:
            raise OSError(errno.ENODEV, "the group is gone")
        self._tree.write(_relative(path), data.decode("latin-1"), mfusepy.fuse_get_context()[2])
        return len(data)

    def release(self, path: str | None, fh: int) -> int:
        self._texts.pop(fh, None)
        return 0

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        return 0  # opening with O_TRUNC changes nothing

    def mkdir(self, path: str, mode: int) -> int:
        self._tree.mkdir(_relative(path))
        return 0

    def rmdir(self, path: str) -> int:
        self._tree.rmdir(_relative(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        self._tree.rename(_relative(old), _relative(new))
        return 0

    def create(self, path: str, mode: int, flags: int) -> int:
        raise OSError(errno.EACCES, path)

    def mknod(self, path: str, mode: int, dev: int) -> int:
        raise OSError(errno.EPERM, path)

    def unlink(self, path: str) -> int:
        raise OSError(errno.EPERM, path)


def _relative(path: str) -> str:
    return path.removeprefix("/")


@contextmanager
def mounted(machine: Machine, directory: Path) -> Iterator[Path]:
    """`machine` at `directory` until the block ends; then everything is reset, as the kernel does.

    A profile that is not mounted leaves the directory as it is. Raises OSError: EBUSY when the machine is mounted
    already, or another one that is alive is there."""
    if not machine.profile.is_mounted:
        yield directory
        return
    if machine.is_mounted:
        raise OSError(errno.EBUSY, "resctrl can be mounted only once", str(directory))
    detach_stale()
    if any(point == str(directory) for _, point in _mounts()):
        raise OSError(errno.EBUSY, "something is mounted there", str(directory))
    ready = threading.Event()
    failures: list[BaseException] = []
    operations = _Operations(machine, ready)
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
            (directory / _END).stat()
        with contextlib.suppress(OSError):  # libfuse has done it, if it was quick
            detach(directory)
        thread.join(_STARTED_WITHIN_S)
        _take_signals_back()
        with machine.lock:
            machine.is_mounted = False
            machine.reset()


def detach_stale() -> None:
    """Detach every emulated resctrl whose process has ended, wherever it is mounted."""
    for source, point in _mounts():
        if source.startswith(SOURCE + "-") and not _is_alive(source):
            with contextlib.suppress(OSError):  # another test was faster
                detach(Path(point))


def detach(directory: Path) -> None:
    """Unmount, at once for new visitors and for those inside when they are done."""
    if _LIBC.umount2(os.fsencode(directory), _DETACH) != 0:
        raise OSError(ctypes.get_errno(), "cannot unmount", str(directory))


def _serve(operations: _Operations, directory: Path, ready: threading.Event, failures: list[BaseException]) -> None:
    options: dict[str, object] = {"direct_io": True, "entry_timeout": 60, "attr_timeout": 60}
    if mfusepy.fuse_version_major == 2:
        options["big_writes"] = True  # one write(2) must come as one
    try:
        mfusepy.FUSE(
            operations,
            str(directory),
            foreground=True,
            nothreads=True,
            fsname=f"{SOURCE}-{os.getpid()}-{_start_of(os.getpid())}",
            **options,
        )
    except BaseException as failure:  # reported by the thread that waits
        failures.append(failure)
    finally:
        ready.set()


def _take_signals_back() -> None:
    """libfuse takes signals that are at their default, and on its end sets SIGPIPE to it; Python's idea holds."""
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
