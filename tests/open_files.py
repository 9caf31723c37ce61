"""More open files than `select.select` can wait for: it takes no descriptor above 1023."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

COUNT = 1100


@contextlib.contextmanager
def many_open_files() -> Iterator[None]:
    """What this process opens in the block has a descriptor above 1023. The limit is as before afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * COUNT), hard))
    opened: list[int] = []
    try:
        while len(opened) < COUNT:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
