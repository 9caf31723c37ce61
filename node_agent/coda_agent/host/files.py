"""The agent's only access to kernel files: bounded reads, and writes by single system calls.

Kernel files take one command per write(2), so nothing is buffered. Errors keep the kernel's errno, because callers
decide by it. Paths are relative to a root and may not leave it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 20  # of one file; the longest honest one lists every thread of a node
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: a pipe in a file's place must not hang the agent
_WRITE = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Tree:
    """One root. Every method takes a path relative to it and raises OSError as the kernel gave it.

    A path that would leave the root is EINVAL."""

    path: Path

    def read_text(self, relative: str, *, most_bytes: int = MOST_BYTES) -> str:
        """Return the whole file; bytes that are not UTF-8 become replacement characters. EFBIG: longer than
        `most_bytes`."""
        return self.read_bytes(relative, most_bytes=most_bytes).decode(errors="replace")

    def read_bytes(self, relative: str, *, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the whole file, for binary tables. EFBIG: longer than `most_bytes`."""
        descriptor = os.open(self._absolute(relative), _READ)
        try:
            return _read(descriptor, most_bytes, relative)
        finally:
            os.close(descriptor)

    def read_int(self, relative: str) -> int:
        """Return the decimal number that is the whole content. EBADMSG: anything else."""
        text = self.read_text(relative, most_bytes=4096).strip()
        if not text.removeprefix("-").isdecimal() or not text.isascii():
            raise OSError(errno.EBADMSG, f"not a whole number: {text[:40]!r}", relative)
        return int(text)

    def write(self, relative: str, text: str) -> None:
        """Give `text` to the file by one write(2); create nothing. EIO: the kernel took only a part."""
        command = text.encode()
        descriptor = os.open(self._absolute(relative), _WRITE)
        try:
            taken = os.write(descriptor, command)
        finally:
            os.close(descriptor)
        if taken != len(command):
            raise OSError(errno.EIO, f"only {taken} of {len(command)} bytes were taken", relative)

    def listdir(self, relative: str = ".") -> tuple[str, ...]:
        """Return the names in a directory, sorted."""
        return tuple(sorted(path.name for path in Path(self._absolute(relative)).iterdir()))

    def directories(self, relative: str = ".") -> tuple[str, ...]:
        """Return the names of the directories in a directory, sorted; links do not count."""
        with os.scandir(self._absolute(relative)) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))

    def mkdir(self, relative: str) -> None:
        """Create one directory."""
        Path(self._absolute(relative)).mkdir()

    def rmdir(self, relative: str) -> None:
        """Remove one directory; the kernel's own files in it go with it."""
        Path(self._absolute(relative)).rmdir()

    def rename(self, old: str, new: str) -> None:
        """Rename within the root."""
        Path(self._absolute(old)).rename(self._absolute(new))

    def exists(self, relative: str) -> bool:
        """True if there is such a file or directory. Raises every error except its absence."""
        try:
            Path(self._absolute(relative)).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @contextmanager
    def locked(self, relative: str = ".") -> Iterator[None]:
        """Hold the advisory lock of a file or directory. EWOULDBLOCK at once if another program has it."""
        descriptor = os.open(self._absolute(relative), _READ)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    def _absolute(self, relative: str) -> str:
        if relative.startswith("/") or "\0" in relative or ".." in relative.split("/"):
            raise OSError(errno.EINVAL, "the path leaves its root", relative)
        return f"{self.path}/{relative}"


def _read(descriptor: int, most_bytes: int, relative: str) -> bytes:
    """Read until the end: kernel files give a page at a time."""
    pieces: list[bytes] = []
    left = most_bytes + 1
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 16))):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise OSError(errno.EFBIG, f"longer than {most_bytes} bytes", relative)
    return b"".join(pieces)


class Files:
    """The trees that the agent reads and writes. Tests use other directories."""

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        resctrl: Path = Path("/sys/fs/resctrl"),
    ) -> None:
        self.proc = Tree(proc)
        self.sys = Tree(sys)
        self.cgroup = Tree(cgroup)
        self.resctrl = Tree(resctrl)
