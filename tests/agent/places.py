"""State directories in memory, where possible: thousands of synced writes take no time there."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")


def fresh_directory() -> Path:
    """An empty directory, gone when the tests are over."""
    directory = Path(tempfile.mkdtemp(prefix="coda-test-", dir=_MEMORY if _MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
