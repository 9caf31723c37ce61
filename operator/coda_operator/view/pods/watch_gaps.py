"""What breaks of a watch hide: until when it told all changes as they happened, and what a later list lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coda_kube.api.watch_cache import WatchCache, version_of
from coda_kube.objects.json_types import Json

CATCH_UP_S: Final = 60.0
"""Within this a watch that goes on has told what it missed. Our choice: it comes at once, in thousands of events."""


class WatchGap:
    """The last break of one watch. `clock` is the operator's; the loop's time measures how long ago things were."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = 0.0  # when it began
        self._failed_s = 0.0  # the last failed try to go on, by the loop

    def begin(self, cache: WatchCache) -> None:
        """The watch broke, or did not start again."""
        at_s = asyncio.get_running_loop().time()
        had_caught_up = self._failed_s < cache.touched_s < at_s - CATCH_UP_S
        if not self._since_s or had_caught_up:
            self._since_s = self._clock()
        self._failed_s = at_s

    def seen_until_s(self, cache: WatchCache) -> float:
        """Return until when the cache saw all changes as they happened: now, or the break before. 0: none was seen."""
        if not cache.synced.is_set():
            return 0.0
        catches_up = asyncio.get_running_loop().time() <= cache.touched_s + CATCH_UP_S
        is_open = self._since_s > 0 and (catches_up or not cache.in_touch.is_set())
        return self._since_s if is_open else self._clock()


def drop_older(cache: WatchCache, item: Json, version: int) -> None:
    """Drop an item that a list of that version lacks, unless the item is newer than the list."""
    if version_of(item) <= version:
        cache.drop(item)
