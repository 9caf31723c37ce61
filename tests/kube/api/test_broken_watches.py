"""A cache survives what no watch should say: events too large to read, half an event, and news told twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.api.credentials import Access
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json


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
