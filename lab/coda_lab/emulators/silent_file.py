"""A file that can stop answering: whoever reads it then sleeps in the kernel, where no signal wakes it.

`python -m coda_lab.emulators.silent_file FOLDER MOUNT` shows FOLDER's files at MOUNT, and answers no read any more once
FOLDER has a file `hang`. FUSE lets a reader whose request was taken wait without being killable, as a driver does where
a GPU fell off the bus. When the program ends, all readers get an error."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coda_lab.emulators.resctrl.mounting import detach
from coda_lab.host.errors import LabFailure

HANG = "hang"
READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentFolder:
    """`folder` has the files, `mount` shows them."""

    folder: Path
    mount: Path

    def hang(self) -> None:
        """From now on no read ends."""
        (self.folder / HANG).touch()


@contextmanager
def silent_folder(folder: Path, mount: Path) -> Iterator[SilentFolder]:
    """Show `folder` at `mount` until the block ends; then those who wait get an error. Needs root and libfuse."""
    mount.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "coda_lab.emulators.silent_file", str(folder), str(mount)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None or server.stdout.readline().strip() != READY:
                raise LabFailure("FUSE did not start")
            yield SilentFolder(folder=folder, mount=mount)
        finally:
            server.kill()
            server.wait()
            with suppress(OSError):
                detach(mount)


def main() -> None:
    """Serve until killed."""
    import mfusepy  # raises OSError where libfuse is missing

    folder, mount = Path(sys.argv[1]), sys.argv[2]

    class Operations(mfusepy.Operations):  # type: ignore[misc]  # mfusepy ships no types
        use_ns = True

        def init(self, path: str) -> None:
            sys.stdout.write(f"{READY}\n")
            sys.stdout.flush()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            try:
                size = (folder / path.removeprefix("/")).stat().st_size
            except OSError:
                raise OSError(errno.ENOENT, path) from None
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": size}

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            if (folder / HANG).exists():
                threading.Event().wait()
            with (folder / path.removeprefix("/")).open("rb") as file:
                return os.pread(file.fileno(), size, offset)

    mfusepy.FUSE(Operations(), mount, foreground=True, nothreads=False, direct_io=True, attr_timeout=0, entry_timeout=0)


if __name__ == "__main__":
    main()
