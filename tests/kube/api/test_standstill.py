"""Watches that stand still are noticed, and those of a quiet kind are not taken for such."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop

HOUR_S = 3600.0


def item(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Stored(Client):
    """Something is written each second: of this kind what `changes` says. Each watch lasts as long as asked for.

    `notice_s`: how often the server that watches are at learns of other kinds' versions. It tells of nothing else."""

    def __init__(self, *, notice_s: float, changes: bool = False, ends_s: float = float("inf")) -> None:
        self.lists = self.reads = 0
        self.notice_s, self.changes, self.ends_s = notice_s, changes, ends_s

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def version(self) -> int:
        return 100 + int(self.now_s())

    async def newest_version(self, path: str) -> int:
        self.reads += 1
        return self.version()

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        return version

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> AsyncIterator[Json]:
        self.lists += 1
        items = [item("p", self.version() if self.changes else 90)]
        items += [item("q", 80)] if self.now_s() < self.ends_s else []
        yield {"metadata": {"resourceVersion": str(self.version())}, "items": items}

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        async def events() -> AsyncIterator[Json]:
            await asyncio.sleep(float(query["timeoutSeconds"]))
            known = 100 + int(self.now_s() // self.notice_s * self.notice_s)
            told = max(int(query["resourceVersion"]), known)
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(told)}}}

        yield events()


def breaks_of(client: Stored, *, for_s: float, is_calm: bool = False) -> tuple[list[float], WatchCache]:
    """When the cache was out of touch."""
    breaks_s = list[float]()

    async def story() -> WatchCache:
        cache = WatchCache(client, "/api/v1/pods", is_calm=is_calm, on_break=lambda: breaks_s.append(client.now_s()))
        running = asyncio.create_task(cache.run())
        await asyncio.sleep(for_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return cache

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return breaks_s, runner.run(story())


def test_a_watch_that_stands_still_is_noticed() -> None:
    """Nothing would be seen for ever: neither a list nor an alert comes of it."""
    client = Stored(notice_s=1e9, changes=True)
    breaks_s, cache = breaks_of(client, for_s=610.0)
    assert client.lists <= 2 * len(breaks_s) + 2
    assert len(breaks_s) == pytest.approx(10, abs=1)
    assert breaks_s[0] < 120
    assert cache.newest >= 640


def test_so_is_one_that_does_not_tell_of_an_end() -> None:
    breaks_s, cache = breaks_of(Stored(notice_s=1e9, ends_s=20.0), for_s=610.0)
    assert list(cache.by_key) == ["p"]
    assert len(breaks_s) == 1


@pytest.mark.parametrize(("notice_s", "lists"), [(5.0, 1), (600.0, 7), (1e9, 7)])
@pytest.mark.parametrize("is_calm", [False, True])
def test_a_kind_of_which_nothing_changes_stays_in_touch(notice_s: float, lists: int, is_calm: bool) -> None:
    """Its bookmarks repeat a version that other kinds leave behind, until etcd's next progress notice."""
    client = Stored(notice_s=notice_s)
    breaks_s, _ = breaks_of(client, for_s=HOUR_S, is_calm=is_calm)
    assert breaks_s == []
    assert client.lists <= lists
    assert client.reads <= 15


class Told(Stored):
    """Its watches tell of a change just before they end, which a list has shown since their start."""

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        asked_s, began = self.now_s(), int(query["resourceVersion"])

        async def events() -> AsyncIterator[Json]:
            await asyncio.sleep(float(query["timeoutSeconds"]))
            if asked_s >= 60.0:
                yield {"type": "MODIFIED", "object": item("p", max(began + 1, 100 + int(asked_s)))}

        yield events()


def test_a_change_that_the_watch_still_tells_of_is_not_missed() -> None:
    breaks_s, _ = breaks_of(Told(notice_s=1e9, changes=True), for_s=HOUR_S)
    assert breaks_s == []
