"""Creating objects, seeing their pods bound, and clearing them away again: the same client and watch in both arms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from coda_kube.api.client import Client
from coda_kube.api.watch_cache import Listener, WatchCache
from coda_kube.objects.json_types import Json
from rig.arms import Arms, Run
from rig.loads import JOBS, PODS
from rig.usage import cpu_s_between

Item = TypeVar("Item")
AT_ONCE: Final = 16  # requests of this client under way


async def timed(arms: Arms, arm: str, work: Awaitable[None]) -> Run:
    """How long `work` takes and what it costs, in the arm that the cluster is in."""
    before, began_s = arms.usage(), time.monotonic()
    await work
    lasted_s = time.monotonic() - began_s
    return Run(arm=arm, lasted_s=lasted_s, cpu_s_by_part=cpu_s_between(before, arms.usage()))


async def bind(client: Client, path: str, items: Iterable[Json], pods: int) -> None:
    """Create `items` in a namespace without pods, and wait until `pods` are bound."""
    async with following(client, PODS, query={"fieldSelector": "spec.nodeName!="}) as bound:
        await create_all(client, path, items)
        await bound.until(lambda by_key: len(by_key) >= pods)


async def create_all(client: Client, path: str, items: Iterable[Json]) -> None:
    """Create the objects in their order."""
    await _each(items, lambda item: client.create(path, item))


async def clear(client: Client) -> None:
    """Delete every job and pod of the namespace, and wait until the last is gone."""
    for path in (JOBS, PODS):
        names = [item["metadata"]["name"] for item in (await client.list_pages(path))["items"]]
        await _each(names, lambda name: client.delete(f"{path}/{name}", grace_s=0))  # noqa: B023  awaited in this round
        async with following(client, path) as left:
            await left.until(lambda by_key: not by_key)


class Followed:
    """A collection as a watch shows it."""

    def __init__(self) -> None:
        self.cache: WatchCache
        self._changed = asyncio.Event()

    def listener(self, _old: Json | None, _new: Json | None) -> None:
        """Listener for `watching.Cache`."""
        self._changed.set()

    async def until(self, satisfied: Callable[[dict[str, Json]], bool]) -> None:
        """Wait until `satisfied` says so of the objects by `namespace/name`."""
        while not satisfied(self.cache.by_key):
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def following(
    client: Client, path: str, *, query: dict[str, str] | None = None, listener: Listener | None = None
) -> AsyncIterator[Followed]:
    """Follow a collection until the block is left; entered once the first list is in. `listener` hears it first."""
    followed = Followed()

    def hear(old: Json | None, new: Json | None) -> None:
        if listener is not None:
            listener(old, new)
        followed.listener(old, new)

    followed.cache = WatchCache(client, path, listener=hear, query=query)
    task = asyncio.create_task(followed.cache.run())
    try:
        await followed.cache.synced.wait()
        yield followed
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _each(items: Iterable[Item], request: Callable[[Item], Awaitable[object]]) -> None:
    left = iter(items)

    async def work() -> None:
        for item in left:
            await request(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
