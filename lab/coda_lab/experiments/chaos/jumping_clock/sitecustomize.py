"""Imported by Python itself at its start, where the folder is on PYTHONPATH: `time.time` then follows a file.

Imports nothing of Coda: it comes before everything else.
"""

from __future__ import annotations

import os
import struct
import time


def follow(path: str) -> None:
    """Add the number in the file at `path` to every `time.time` of this process."""
    real, descriptor, size = time.time, os.open(path, os.O_RDONLY | os.O_CLOEXEC), struct.calcsize("d")

    def jumping() -> float:
        (ahead_s,) = struct.unpack("d", os.pread(descriptor, size, 0))
        return real() + float(ahead_s)

    time.time = jumping


if _path := os.environ.get("LAB_CLOCK_FILE"):
    follow(_path)
