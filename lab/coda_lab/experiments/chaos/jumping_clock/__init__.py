"""A wall clock that jumps, for one part of a cluster and all processes that it starts. No part knows of it.

The folder is on the part's PYTHONPATH, so every Python there imports `sitecustomize`, which adds the number in a file
to `time.time`. The monotonic clock stays, as on a machine whose clock is set. So does `datetime.now`, which is not
written in Python.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coda_lab.host.processes import python_path

CLOCK_FILE: Final = "LAB_CLOCK_FILE"
_OFFSET: Final = struct.Struct("d")


def environ(path: Path) -> Mapping[str, str]:
    """What a part must find in its environment so that its clock follows the file at `path`."""
    set_clock(path, 0.0)
    return {CLOCK_FILE: str(path), "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), python_path()))}


def set_clock(path: Path, ahead_s: float) -> None:
    """From now on the part's clock is ahead of the machine's by so much. One write: nobody reads a part of it."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0) as file:
        file.write(_OFFSET.pack(ahead_s))
