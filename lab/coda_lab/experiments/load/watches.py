"""Follows the jobs and foreign pods of a load, and any other objects a run wants, by watches of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from coda_kube.api.client import Client
from coda_kube.api.watch_cache import Listener, WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION
from coda_lab.experiments.load.plans import NAMESPACE


def jobs_path(namespace: str) -> str:
    """The TrainingJobs of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs"


JOBS: Final = jobs_path(NAMESPACE)
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
ALL_JOBS: Final = f"/apis/{API_VERSION}/trainingjobs"
ALL_PODS: Final = "/api/v1/pods"


class Watches:
    """A cache for each path, with its listeners. `renew` lists again at once after an outage."""

    def __init__(self, client: Client, listeners_by_path: Iterable[tuple[str, tuple[Listener, ...]]]) -> None:
        self._client = client
        self._listeners = [(path, _all(listeners)) for path, listeners in listeners_by_path]
        self._caches = self._new_caches()
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Follow until the block is left; entered once the first lists are in."""
        self._start()
        try:
            for cache in self._caches:
                await cache.synced.wait()
            yield
        finally:
            await self._end()

    async def renew(self) -> None:
        """List again now: a watch that waits before its next try would see changes late."""
        await self._end()
        self._start()

    async def restored(self) -> None:
        """List again as if for the first time: the API server went back in time. What is not there has vanished."""
        await self._end()
        before, self._caches = self._caches, self._new_caches()
        self._start()
        for (_, listener), old, new in zip(self._listeners, before, self._caches, strict=True):
            await new.synced.wait()
            for key in [key for key in old.by_key if key not in new.by_key]:
                listener(old.by_key[key], None)

    def _new_caches(self) -> list[WatchCache]:
        return [WatchCache(self._client, path, listener=listener) for path, listener in self._listeners]

    def _start(self) -> None:
        self._tasks = [asyncio.create_task(cache.run()) for cache in self._caches]

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _all(listeners: tuple[Listener, ...]) -> Listener:
    def tell(old: Json | None, new: Json | None) -> None:
        for listener in listeners:
            listener(old, new)

    return tell


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` while the block lasts; if it fails, the block ends with its error."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        try:
            yield
        finally:
            task.cancel()
