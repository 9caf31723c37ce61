"""The file system calls of the emulated resctrl, as libfuse wants them. Importing this needs libfuse."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from pathlib import Path

import mfusepy

from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.tree import Tree

WRITABLE = {"tasks", "schemata", "cpus", "cpus_list", "mode", "mbm_L3_assignments", "mba_MBps_event"}
END = ".end"  # looking for this name ends the loop, even where another mount namespace still has the mount


class Operations(mfusepy.Operations):  # type: ignore[misc]  # mfusepy ships no types
    """Each call is one of `Tree`'s."""

    use_ns = True
    flag_nullpath_ok = 1  # a file of a removed group has no path any more

    def __init__(self, machine: Machine, ready: threading.Event) -> None:
        self._tree = Tree(machine)
        self._ready = ready
        self.may_end = False
        self._handles = itertools.count(1)
        self._texts: dict[int, bytes] = {}

    def init(self, path: str) -> None:
        """The mount answers from now on."""
        self._ready.set()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Directories and files have the modes of the kernel, and no size."""
        name = _relative(path)
        if name == END and self.may_end:
            mfusepy.fuse_exit()
        if self._tree.is_directory(name):
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        mode = 0o644 if name.rpartition("/")[2] in WRITABLE else 0o444
        return {"st_mode": stat.S_IFREG | mode, "st_nlink": 1}

    def readdir(self, path: str, fh: int) -> list[str]:
        """The names in a directory."""
        return [".", "..", *self._tree.listing(_relative(path))]

    def open(self, path: str, flags: int) -> int:
        """A handle; a read-only file cannot be opened for writing."""
        if flags & (os.O_WRONLY | os.O_RDWR) and path.rpartition("/")[2] not in WRITABLE:
            raise OSError(errno.EACCES, path)
        return next(self._handles)

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        """The content of the file when reading begins; then the rest of that."""
        if path is None:
            raise OSError(errno.ENODEV, "the group is gone")
        if offset == 0 or fh not in self._texts:
            self._texts[fh] = self._tree.read(_relative(path)).encode()
        return self._texts[fh][offset : offset + size]

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        """One command."""
        if path is None:
            raise OSError(errno.ENODEV, "the group is gone")
        self._tree.write(_relative(path), data.decode("latin-1"), mfusepy.fuse_get_context()[2])
        return len(data)

    def release(self, path: str | None, fh: int) -> int:
        """Release the handle."""
        self._texts.pop(fh, None)
        return 0

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        """Nothing: opening with O_TRUNC changes no membership."""
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        """Create a group."""
        self._tree.mkdir(_relative(path))
        return 0

    def rmdir(self, path: str) -> int:
        """Remove a group."""
        self._tree.rmdir(_relative(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        """Move a monitoring group."""
        self._tree.rename(_relative(old), _relative(new))
        return 0

    def create(self, path: str, mode: int, flags: int) -> int:
        """Refused: files are the kernel's."""
        raise OSError(errno.EACCES, path)

    def mknod(self, path: str, mode: int, dev: int) -> int:
        """Refused."""
        raise OSError(errno.EPERM, path)

    def unlink(self, path: str) -> int:
        """Refused."""
        raise OSError(errno.EPERM, path)


def _relative(path: str) -> str:
    return path.removeprefix("/")


def serve(operations: Operations, directory: Path, source: str) -> None:
    """Mount and answer until unmounted, or told to end; `source` is what /proc/mounts shows."""
    options: dict[str, object] = {"direct_io": True, "entry_timeout": 60, "attr_timeout": 60}
    if mfusepy.fuse_version_major == 2:
        options["big_writes"] = True  # one write(2) must come as one
    mfusepy.FUSE(operations, str(directory), foreground=True, nothreads=True, fsname=source, **options)
