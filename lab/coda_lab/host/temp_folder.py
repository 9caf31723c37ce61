"""A folder for the files of one cluster, for the time of a block, also if its owner is killed.

An owner that SIGKILL ends removes nothing. So each owner locks a file in its folder, and the kernel frees the lock. The
next owner removes the folders without a holder, and kills the processes that belong to them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from coda_lab.host.file_lock import Locked, locked
from coda_lab.host.processes import kill_marked

PREFIX: Final = "coda-local-"
_LOCK: Final = "owner.lock"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder; the end of the block removes it."""
    remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with locked(folder / _LOCK, wait=True):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> tuple[Path, ...]:
    """Remove the folders in `parent` whose owner is dead, and return them. Folders without a lock file stay."""
    removed = []
    for lock in sorted(parent.glob(f"{PREFIX}*/{_LOCK}")):
        with contextlib.suppress(Locked, OSError), locked(lock, wait=False):
            kill_marked(str(lock.parent))
            shutil.rmtree(lock.parent, ignore_errors=True)
            removed.append(lock.parent)
    return tuple(removed)
