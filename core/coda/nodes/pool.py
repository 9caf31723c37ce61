"""Which nodes are the pool's: those that nobody but Coda may put pods on."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Final

LISTS: Final = 2
"""Into this many lists the names are spread. One object holds 1 MiB: two hold 5000 names of any length, and 30 000 of
60 characters. Each list costs the API server one more evaluation per pod that names its node."""


def is_in_pool(taint_keys: Collection[str], gpus: int, *, pool_taint: str, is_shared: bool) -> bool:
    """True for a node with the pool's taint; in a shared pool, which has none, also for every node with GPUs."""
    return pool_taint in taint_keys or (is_shared and gpus > 0)


def pool_lists(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the names in `LISTS` lists, each in order. A name is in the same list for ever, so that no change of
    others takes it out of all lists for a moment. O(n log n)."""
    lists: list[list[str]] = [[] for _ in range(LISTS)]
    for name in sorted(names):
        lists[zlib.crc32(name.encode()) % LISTS].append(name)
    return tuple(map(tuple, lists))
