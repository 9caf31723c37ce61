"""A cache survives what no watch should say: events too large to read, half an event, and news told twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.api.credentials import Access
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop


def added(escaped: int) -> bytes:
    """An event of an object with this many characters that take six bytes each."""
    item = {"metadata": {"name": "p", "resourceVersion": "2"}, "x": "<" * escaped}
    return json.dumps({"type": "ADDED", "object": item}).replace("<", "\\u003c").encode() + b"\n"


async def test_the_largest_object_there_can_be_is_read_from_a_watch() -> None:
    """Otherwise everybody who may create a pod could end every watch of pods, at each change of the pod."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(added(3 << 19))  # 1.5 MiB, etcd's limit
        await asyncio.Event().wait()
        return response

    seen = asyncio.Event()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"))
        cache = WatchCache(client, "/api/v1/pods", listener=lambda *_: seen.set())
        running = asyncio.create_task(cache.run())
        await asyncio.wait_for(seen.wait(), 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
    assert list(cache.by_key) == ["p"]


@pytest.mark.parametrize("said", [added(3 << 20), b'{"type": "ADDED", "obj'], ids=["too large", "half an event"])
async def test_what_no_watch_should_say_leads_to_a_list(said: bytes) -> None:
    lists = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if not request.query.get("watch"):
            lists += 1
            return web.json_response({"metadata": {"resourceVersion": str(lists)}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        if lists == 1:
            await response.write(said)
            await response.write_eof()
        else:
            await asyncio.sleep(60)
        return response

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"))
        running = asyncio.create_task(WatchCache(client, "/api/v1/pods").run())
        async with asyncio.timeout(10):
            while lists < 2 and not running.done():
                await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


def event(kind: str, version: int) -> Json:
    return {"type": kind, "object": {"metadata": {"name": "p", "resourceVersion": str(version)}}}


class Breaking(Client):
    """Sends an object that was created again, breaks off, and sends everything after the version asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def _call(self, *_: object) -> Json:
        return {"metadata": {"resourceVersion": "3" if self.asked else "0"}, "items": []}

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        return version

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self.asked.append(query["resourceVersion"])
        yield self._events(int(query["resourceVersion"]))
        if len(self.asked) < 2:
            raise Outage("broken off")

    async def _events(self, after: int) -> AsyncIterator[Json]:
        for kind, version in (("ADDED", 1), ("DELETED", 2), ("ADDED", 3)):
            if version > after:
                yield event(kind, version)
        if len(self.asked) > 1:
            await asyncio.Event().wait()


async def test_a_watch_that_broke_goes_on_where_it_was() -> None:
    client, told = Breaking(), list[tuple[bool, bool]]()
    cache = WatchCache(
        client, "/api/v1/pods", listener=lambda old, new: told.append((old is not None, new is not None))
    )
    running = asyncio.create_task(cache.run())
    async with asyncio.timeout(10):
        while len(client.asked) < 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert client.asked == ["0", "3"]
    assert told == [(False, True), (True, False), (False, True)]


def test_a_deletion_that_is_told_late_leaves_the_namesake() -> None:
    cache = WatchCache(Breaking(), "/api/v1/pods")
    cache.put(event("ADDED", 3)["object"])
    cache.drop(event("DELETED", 2)["object"])
    assert list(cache.by_key) == ["p"]


class Unstreamed(Client):
    """A server behind a proxy that does not stream: each watch ends, cleanly, `lasts_s` after it began."""

    def __init__(self, lasts_s: float) -> None:
        self.began_s: list[float] = []
        self.asked = 0
        self.lasts_s = lasts_s

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> AsyncIterator[Json]:
        self.asked += 1
        item = {"metadata": {"name": "p", "resourceVersion": "9"}}
        yield {"metadata": {"resourceVersion": "9"}, "items": [item]}

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        self.asked += 1
        return version

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self.asked += 1
        self.began_s.append(asyncio.get_running_loop().time())

        async def events() -> AsyncIterator[Json]:
            await asyncio.sleep(self.lasts_s)
            for nothing in list[Json]():
                yield nothing

        yield events()


async def watched_for_a_minute(client: Unstreamed, *, is_calm: bool) -> None:
    running = asyncio.create_task(WatchCache(client, "/api/v1/pods", is_calm=is_calm).run())
    await asyncio.sleep(60.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("is_calm", [False, True])
@pytest.mark.parametrize("lasts_s", [0.0, 0.5])
def test_watches_that_end_at_once_are_no_storm_of_requests(lasts_s: float, is_calm: bool) -> None:
    client = Unstreamed(lasts_s)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(watched_for_a_minute(client, is_calm=is_calm))
    assert 5 < client.asked < 120
    pauses_s = [after - before for before, after in pairwise(client.began_s[-5:])]
    assert len(set(pauses_s)) == len(pauses_s)  # many clients meet the same server: not in step


def test_watches_that_end_after_seconds_go_on_at_once() -> None:
    client = Unstreamed(5.0)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(watched_for_a_minute(client, is_calm=False))
    assert 12 <= len(client.began_s) <= 13
