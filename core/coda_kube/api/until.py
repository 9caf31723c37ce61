"""Waits until the objects of a collection are as wanted, by watching them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json


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
