"""A collection read in pages, and the cache that is filled from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.api import watch_cache
from coda_kube.api.client import Client, Expired, Rejected, error_from_answer
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.say_again import SayAgain

VIRTUAL_CLUSTERS = "/apis/coda.scheduler/v1alpha1/virtualclusters"


def thing(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Paged(Client):
    """Has these items, lists them as asked, and tells nothing more. The list numbered `expires` ends before its
    second page."""

    def __init__(self, *items: Json, expires: int = 0) -> None:
        self.items = list(items)
        self.asked: list[int] = []  # where each page began
        self.expires = expires
        self.on_page: Callable[[], None] = lambda: None
        self.watched_from = asyncio.Queue[str]()

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any = None,
        content_type: str | None = None,
        timeout_s: float | None = None,
    ) -> Json:
        assert query is not None
        begin, limit = int(query.get("continue") or 0), int(query["limit"])
        self.asked.append(begin)
        self.on_page()
        if begin and self.asked.count(0) == self.expires:
            raise Expired("the continue token is too old")
        end = begin + limit
        token = str(end) if end < len(self.items) else ""
        return {"metadata": {"resourceVersion": "9", "continue": token}, "items": self.items[begin:end]}

    async def newest_version(self, path: str) -> int:
        return 10

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        return version

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self.watched_from.put_nowait(query["resourceVersion"])
        await asyncio.Event().wait()
        yield _nothing()


async def _nothing() -> AsyncIterator[Json]:
    return
    yield {}


@pytest.mark.parametrize(("count", "pages"), [(0, [0]), (2, [0]), (3, [0, 2]), (4, [0, 2]), (5, [0, 2, 4])])
async def test_pages_hold_every_item_once_and_in_order(count: int, pages: list[int]) -> None:
    client = Paged(*(thing(f"item-{number}", 1) for number in range(count)))
    found = [item async for page in client.pages("/api/v1/pods", page=2) for item in page["items"]]
    assert (found, client.asked) == (client.items, pages)
    assert await client.list_pages("/api/v1/pods", page=2) == {
        "metadata": {"resourceVersion": "9", "continue": ""},
        "items": client.items,
    }


@pytest.mark.parametrize("expires", [0, 1])
async def test_a_cache_holds_what_all_pages_of_one_list_hold(expires: int) -> None:
    """What was known before and is in none of them is gone, unless it is newer than the list."""
    client = Paged(*(thing(f"item-{number}", 1) for number in range(450)), expires=expires)
    cache = WatchCache(client, "/api/v1/pods")
    for known in (thing("gone", 8), thing("item-3", 1)):
        cache.put(known)
    newer = thing("newer", 10)  # a write of our own while the last page is read
    client.on_page = lambda: cache.put(newer) if client.asked[-1] == 400 else None
    running = asyncio.create_task(cache.run())
    assert await client.watched_from.get() == "9"
    assert cache.by_key.keys() == {each["metadata"]["name"] for each in client.items} | {"newer"}
    assert client.asked.count(0) == (2 if expires else 1)
    running.cancel()
    await asyncio.wait({running})


async def test_a_kind_that_the_server_does_not_know_has_no_objects_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Helm does not install new kinds at an upgrade. Nothing may wait for that."""
    monkeypatch.setattr(watch_cache, "MISSING_S", 0.01)
    server, is_known, looks = Paged(thing("lab", 1)), False, 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if not is_known:
            raise error_from_answer(404, "404 page not found\n")

    server.on_page = look
    cache = WatchCache(server, VIRTUAL_CLUSTERS, may_be_missing=True)
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        await cache.synced.wait()
        assert cache.in_touch.is_set()
        assert cache.by_key == {}
        is_known = True
        await server.watched_from.get()
    assert list(cache.by_key) == ["lab"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_objects_go_with_their_kind_also_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its definition is deleted while the watch is broken: no event says so."""
    monkeypatch.setattr(watch_cache, "MISSING_S", 0.01)
    server, heard = Paged(thing("other", 9)), list[tuple[Json | None, Json | None]]()
    known, is_known = thing("lab", 8), False

    def look() -> None:
        if not is_known:
            raise error_from_answer(404, "404 page not found\n")

    server.on_page = look
    cache = WatchCache(server, VIRTUAL_CLUSTERS, listener=lambda *change: heard.append(change), may_be_missing=True)
    cache.put(known)
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        await cache.synced.wait()
        assert (heard, cache.by_key, cache.in_touch.is_set()) == ([(None, known), (known, None)], {}, True)
        is_known = True
        await server.watched_from.get()
    assert list(cache.by_key) == ["other"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("error", [Rejected(403, "Forbidden", "no"), Outage("HTTP 500")], ids=["403", "500"])
async def test_nobody_waits_for_a_kind_that_may_be_missing_and_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A new image before the new ClusterRole, or a broken conversion."""
    monkeypatch.setattr(watch_cache, "pause_s", lambda *_args, **_options: 0.001)
    server, is_readable = Paged(thing("lab", 1)), False

    def look() -> None:
        if not is_readable:
            raise error

    server.on_page = look
    cache = WatchCache(server, VIRTUAL_CLUSTERS, may_be_missing=True)
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        await cache.synced.wait()
        assert len(server.asked) == watch_cache.WITHOUT_AFTER + 1
        is_readable = True
        await server.watched_from.get()
    assert list(cache.by_key) == ["lab"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_known_kind_that_is_not_found_is_an_outage() -> None:
    server, looks = Paged(thing("lab", 1)), 0

    def refuse() -> None:
        nonlocal looks
        looks += 1
        raise error_from_answer(404, "404 page not found\n")

    server.on_page = refuse
    cache = WatchCache(server, "/api/v1/pods")
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        while looks < 2:
            await asyncio.sleep(0.01)
    assert not cache.synced.is_set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("every_s", "said"), [(600.0, 1), (0.0, 22)])
async def test_an_outage_that_lasts_is_said_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, every_s: float, said: int
) -> None:
    monkeypatch.setattr(watch_cache, "pause_s", lambda *_args, **_options: 0.001)
    monkeypatch.setattr(watch_cache, "SayAgain", lambda **_: SayAgain(every_s=every_s))
    server, tries, over = Paged(), 0, asyncio.Event()

    def away() -> None:
        nonlocal tries
        tries += 1
        if tries == 22:
            over.set()
        raise Outage("away")

    server.on_page = away
    running = asyncio.create_task(WatchCache(server, "/api/v1/pods").run())
    async with asyncio.timeout(5):
        await over.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("/api/v1/pods: away; trying again") == said


@pytest.mark.parametrize(("every_s", "said"), [(600.0, 0), (0.0, 3)])
def test_an_object_that_cannot_be_read_is_said_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, every_s: float, said: int
) -> None:
    monkeypatch.setattr(watch_cache, "SayAgain", lambda **_: SayAgain(every_s=every_s))

    def listener(_old: Json | None, new: Json | None) -> None:
        if new is not None and new["metadata"]["name"] == "bad":
            raise ValueError("not a quantity")

    cache = WatchCache(Paged(), "/api/v1/nodes", listener=listener)
    for version, name in enumerate(("bad", "good", "good", "good"), 1):
        cache.put({"metadata": {"name": name, "resourceVersion": str(version)}})
    assert caplog.text.count("bad cannot be read (ValueError: not a quantity)") == 1
    assert caplog.text.count("bad still cannot be read (ValueError: not a quantity)") == said


@pytest.mark.parametrize(("again_s", "said"), [(60.0, 1), (0.0, 21)])
async def test_a_refusal_is_logged_at_once_and_then_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, again_s: float, said: int
) -> None:
    """It is tried again every second, until somebody mends the roles: nobody reads a log of that."""
    monkeypatch.setattr(watch_cache, "pause_s", lambda *_args, **_options: 0.001)
    monkeypatch.setattr(watch_cache, "SAY_AGAIN_S", again_s)
    server, tries, over = Paged(), 0, asyncio.Event()

    def refuse() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Outage("gone for a moment")
        if tries == 22:
            over.set()
        raise Rejected(403, "Forbidden", "no")

    server.on_page = refuse
    running = asyncio.create_task(WatchCache(server, "/api/v1/pods").run())
    async with asyncio.timeout(5):
        await over.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("/api/v1/pods: no; trying again") == said


def not_served() -> Exception:
    return error_from_answer(404, "404 page not found\n")


async def test_one_answer_that_the_kind_is_unknown_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One API server of three may lack it for a moment; else tenants would be without limits until the next edit."""
    monkeypatch.setattr(watch_cache, "MISSING_S", 0.01)
    server, heard, answers = Paged(thing("lab", 8)), list[tuple[Json | None, Json | None]](), 0

    def look() -> None:
        nonlocal answers
        answers += 1
        if answers < watch_cache.ABSENT_AFTER:
            raise not_served()

    server.on_page = look
    cache = WatchCache(server, VIRTUAL_CLUSTERS, listener=lambda *change: heard.append(change), may_be_missing=True)
    cache.put(thing("lab", 8))
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        await server.watched_from.get()
    assert (heard, list(cache.by_key)) == ([(None, thing("lab", 8))], ["lab"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_went_with_its_kind_comes_back_with_it_in_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_cache, "MISSING_S", 0.01)
    server, gone = Paged(thing("lab", 8)), asyncio.Event()

    def look() -> None:
        if not gone.is_set():
            raise not_served()

    server.on_page = look
    cache = WatchCache(
        server, VIRTUAL_CLUSTERS, listener=lambda _old, new: gone.set() if new is None else None, may_be_missing=True
    )
    cache.put(thing("lab", 8))
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        await server.watched_from.get()
    assert list(cache.by_key) == ["lab"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_list_brings_back_what_was_thought_gone_but_not_what_is_not_wanted() -> None:
    server, heard = Paged(thing("there", 8), thing("unwanted", 8)), list[str]()
    cache = WatchCache(
        server, "/api/v1/pods", listener=lambda _old, new: heard.append(new["metadata"]["name"] if new else "gone")
    )
    for item in (thing("there", 8), thing("unwanted", 8)):
        cache.put(item)
    cache.forget("unwanted")
    cache.drop(thing("there", 8))
    heard.clear()
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(5):
        await server.watched_from.get()
    assert (heard, list(cache.by_key)) == (["there"], ["there"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
