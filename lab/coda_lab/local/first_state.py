"""What etcd holds when a cluster begins: Kubernetes' own objects, and Coda's definitions and roles.

To write them takes the control plane 4 s of CPU and 4 s of waiting, so they are kept once written, and copied.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from coda_lab.host.errors import failure_from_os_error
from coda_lab.host.file_lock import Locked, locked

_KEPT: Final = 2  # 64 MiB each: that of another checkout stays
_POLL_S: Final = 0.05  # no event tells that a lock is free, and a wait for it inside the kernel cannot be interrupted


class FirstState:
    """A folder of the cache for what these programs make of these files."""

    def __init__(self, cache: Path, programs: Iterable[Path], files: Iterable[Path], more: str) -> None:
        digest = hashlib.sha256(more.encode())
        for program in sorted({program.resolve() for program in programs}):
            found = program.stat()
            digest.update(f"{program} {found.st_size} {found.st_mtime_ns}\0".encode())
        for file in files:
            digest.update(file.read_bytes() + b"\0")
        self._home = cache / "first-state"
        self._folder = self._home / digest.hexdigest()[:16]

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """While the block lasts, no other process reads or keeps one."""
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(self._home / "lock", wait=False))
                    break
                except Locked:
                    await asyncio.sleep(_POLL_S)
            yield

    def copy_to(self, data: Path) -> bool:
        """Begin the data folder of an etcd with it; False if it is not kept yet. Raises LabFailure."""
        if not self._folder.is_dir():
            return False
        try:
            _copy(self._folder, data)
        except OSError as error:
            raise failure_from_os_error(error, f"copying {self._folder}") from error
        return True

    def keep(self, data: Path) -> None:
        """Keep the data folder of an etcd that has ended, and forget the oldest ones. Raises LabFailure."""
        unfinished = self._folder.with_suffix(".unfinished")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            _copy(data, unfinished)
            for file in (path for path in unfinished.rglob("*") if path.is_file()):
                with file.open("rb") as written:
                    os.fsync(written.fileno())  # a loss of power must not leave half of it under the final name
            unfinished.rename(self._folder)
            folders = [path for path in self._home.iterdir() if path.is_dir()]
            folders.sort(key=lambda folder: folder.stat().st_ctime_ns)
            for folder in folders[:-_KEPT]:
                shutil.rmtree(folder)
        except OSError as error:
            raise failure_from_os_error(error, f"keeping {self._folder}") from error


def _copy(source: Path, target: Path) -> None:
    """Unlike `shutil.copytree` it raises the error itself, such as that of a full disk."""
    target.mkdir(mode=0o700, parents=True)
    for path in sorted(source.rglob("*")):  # folders come before their files
        copied = target / path.relative_to(source)
        if path.is_dir():
            copied.mkdir(mode=0o700)
        else:
            shutil.copy2(path, copied)
