"""Waits until the objects of a collection are as wanted, or until it is sure that nobody serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from coda_kube.api.client import Client, NotServed
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json

T = TypeVar("T")

_LOOKS: Final = 4  # our choice, as of the caches: one API server of several may lack a kind for a moment
_LOOK_EVERY_S: Final = 2.0


async def read_or_absent(read: Callable[[], Awaitable[T]], absent: T) -> T:
    """Return what `read` returns; `absent` if the API server does not know the kind at several looks."""
    for _ in range(_LOOKS - 1):
        try:
            return await read()
        except NotServed:
            await asyncio.sleep(_LOOK_EVERY_S)
    try:
        return await read()
    except NotServed:
        return absent


async def until(
    api: Client,
    path: str,
    satisfied: Callable[[Mapping[str, Json]], bool],
    *,
    query: Mapping[str, str] | None = None,
) -> None:
    """Watch the collection until `satisfied` is true of its objects, by `namespace/name`."""
    changed = asyncio.Event()

    def listener(_old: Json | None, _new: Json | None) -> None:
        changed.set()

    cache = WatchCache(api, path, listener=listener, query=query)
    watching = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        while not satisfied(cache.by_key):
            await changed.wait()
            changed.clear()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
