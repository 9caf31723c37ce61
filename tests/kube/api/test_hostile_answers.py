"""One object of an answer harms itself only: what is nested too deeply, malformed or huge, and data from a backup."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda.errors import Outage
from coda_kube.api.bodies.json_text import CUT, CutJson, parse_deep, read_json
from coda_kube.api.client import Client, Expired
from coda_kube.api.credentials import Access
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop

PATH = "/apis/coda.scheduler/v1alpha1/trainingjobs"
DEPTHS = [900, 1015, 1024, 1100, 5000, 9990]


def deep(levels: int, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * levels + "1" + closing * levels


def thing(name: str, version: int = 1, more: str = '"x":1') -> str:
    metadata = {"name": name, "namespace": "team", "resourceVersion": str(version)}
    return f'{{"metadata":{json.dumps(metadata)},{more}}}'


def listing(*items: str, version: int = 9) -> str:
    return f'{{"items":[{",".join(items)}],"metadata":{{"resourceVersion":"{version}"}}}}'


def names(items: Any) -> list[str]:
    return [item["metadata"]["name"] for item in items]


@asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Client]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"), timeout_s=0.5)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def running(cache: WatchCache) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    try:
        async with asyncio.timeout(20):
            yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("levels", DEPTHS)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(lambda levels: f'"spec":{deep(levels)}', id="maps"),
        pytest.param(lambda levels: f'"spec":{deep(levels, "[", "]")}', id="lists"),
        pytest.param(lambda levels: f'"spec":{deep(levels)},"ä":"}}\\"{{ü"', id="not ASCII"),
        pytest.param(lambda levels: f'"spec":[{",".join([deep(levels)] * 6)}]', id="six of them"),
        pytest.param(lambda levels: f'"spec":{deep(levels, "[{"[0:1] + chr(10), "]")}', id="with blanks"),
    ],
)
async def test_what_is_nested_too_deeply_is_cut_out_alone(levels: int, more: Callable[[int], str]) -> None:
    text = listing(thing("one"), thing("bad", more=more(levels)), thing("two")).encode()
    answer = await read_json(text)
    assert names(answer["items"]) == ["one", "bad", "two"]
    assert answer["metadata"] == {"resourceVersion": "9"}
    assert [isinstance(item, CutJson) for item in answer["items"]] == [False, levels > 1020, False]
    if levels > 1020:
        assert CUT in orjson.dumps(answer).decode(), "and it can be written, which orjson does to 254 levels"


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":', b"nonsense", deep(2000).encode()[:-3], b'{"a":"' + b"[" * 2000])
async def test_what_is_no_json_raises_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        await read_json(text)
    with pytest.raises(ValueError, match=r"."):
        parse_deep(text)


async def test_a_cache_keeps_all_others_beside_a_deep_object_and_takes_it_once_it_is_mended() -> None:
    """With the list, with events of the watch, and at every start anew."""
    bad = thing("bad", 1, f'"spec":{deep(1100)}')
    told: asyncio.Queue[str] = asyncio.Queue()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            return web.Response(text=listing(thing("one"), bad, thing("two")))
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(f'{{"type":"MODIFIED","object":{await told.get()}}}\n'.encode())

    async with served(answer) as client:
        cache = WatchCache(client, PATH)
        async with running(cache):
            await cache.synced.wait()
            assert sorted(cache.by_key) == ["team/bad", "team/one", "team/two"]
            assert list(cache.unreadable) == ["team/bad"]
            told.put_nowait(thing("one", 10, f'"spec":{deep(3000)}'))
            told.put_nowait(thing("two", 11))
            await until(lambda: cache.by_key["team/two"]["metadata"]["resourceVersion"] == "11")
            assert sorted(cache.unreadable) == ["team/bad", "team/one"]
            told.put_nowait(thing("bad", 12))
            await until(lambda: "team/bad" not in cache.unreadable)
            told.put_nowait(thing("one", 13, f'"spec":{deep(1100)}'))
            told.put_nowait(thing("three", 14))
            await until(lambda: "team/three" in cache.by_key)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param('{"metadata":null}', id="no metadata"),
        pytest.param('{"metadata":{}}', id="no name"),
        pytest.param("7", id="no object"),
        pytest.param(thing("bad").replace('"1"', '"one"'), id="no version"),
    ],
)
async def test_an_item_that_is_no_object_is_left_out_alone(bad: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            await asyncio.sleep(60)
        return web.Response(text=listing(thing("one"), bad, thing("two")))

    async with served(answer) as client:
        cache = WatchCache(client, PATH)
        async with running(cache):
            await cache.synced.wait()
            assert {"team/one", "team/two"} <= cache.by_key.keys()
            assert len(cache.unreadable) == 1


async def test_a_listener_that_fails_for_one_object_hears_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard = []

    def listener(_old: Json | None, new: Json | None) -> None:
        if new is not None and new["metadata"]["name"] == "bad" and new["x"] < 5:
            raise RecursionError("too deep for us")
        heard.append(new)

    cache = WatchCache(Restored(), PATH, listener=listener)
    for version in range(1, 7):
        cache.put(json.loads(thing("bad", version, f'"x":{version}')))
        cache.put(json.loads(thing("good", version)))
    assert len(heard) == 8
    assert cache.unreadable == {}
    assert caplog.text.count("could not be taken over") == 1, "said once, not at every change"


async def test_an_answer_to_a_single_get_or_write_may_hold_a_deep_object() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=thing("bad", 3, f'"spec":{deep(1100)}'))

    async with served(answer) as client:
        for item in (await client.get("/x"), await client.patch("/x", {}), await client.create("/x", {})):
            assert isinstance(item, CutJson)
            assert item["metadata"]["name"] == "bad"


async def test_an_answer_that_is_no_json_is_an_outage() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>a proxy's page</html>")

    async with served(answer) as client:
        with pytest.raises(Outage, match="not JSON"):
            await client.get("/x")


# --- lists that arrive whatever their size --------------------------------------------------------------------------


async def test_a_page_that_takes_too_long_is_asked_for_at_half_the_size() -> None:
    """200 jobs of 1.4 MB are a page of 280 MB, which the server does not even begin to send in time."""
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        begin, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        asked.append(limit)
        if limit > 3:
            await asyncio.sleep(60)
        items = [thing(f"job-{number}") for number in range(begin, min(10, begin + limit))]
        token = f',"continue":"{begin + limit}"' if begin + limit < 10 else ""
        return web.Response(text=f'{{"items":[{",".join(items)}],"metadata":{{"resourceVersion":"9"{token}}}}}')

    async with served(answer) as client:
        found = [item async for page in client.pages(PATH, page=12) for item in page["items"]]
    assert names(found) == [f"job-{number}" for number in range(10)]
    assert asked == [12, 6, 3, 3, 3, 3]


async def test_a_page_that_arrives_slowly_but_steadily_is_read() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        text = listing(thing("one")).encode()
        for begin in range(0, len(text), 10):
            await response.write(text[begin : begin + 10])
            await asyncio.sleep(0.12)
        return response

    async with served(answer) as client:
        assert names((await client.list_pages(PATH))["items"]) == ["one"]


# --- data from a backup ----------------------------------------------------------------------------------------------


class Restored(Client):
    """An API server whose data go back to an earlier version when `restore` is called; every watch then ends."""

    def __init__(self) -> None:
        self.items = [json.loads(thing("kept", 40)), json.loads(thing("gone", 30)), json.loads(thing("changed", 50))]
        self.version = 50
        self.watched_from: list[int] = []
        self._restored = asyncio.Event()

    def restore(self, *, version: int) -> None:
        self.items = [json.loads(thing("kept", 10)), json.loads(thing("changed", 20)), json.loads(thing("back", 5))]
        self.version = version
        self._restored.set()

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 200) -> AsyncIterator[Json]:
        yield {"metadata": {"resourceVersion": str(self.version)}, "items": self.items}

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self.watched_from.append(int(query["resourceVersion"]))
        yield self._events()

    async def _events(self) -> AsyncIterator[Json]:
        await self._restored.wait()
        self._restored.clear()
        return
        yield {}


async def test_a_restored_backup_replaces_everything() -> None:
    client, restored = Restored(), []
    cache = WatchCache(client, PATH, on_restored=lambda: restored.append(sorted(cache.by_key)))
    async with running(cache):
        await until(lambda: client.watched_from == [50])
        cache.drop(json.loads(thing("back", 49)))
        client.restore(version=21)
        await until(lambda: len(client.watched_from) == 2)
        versions = {key: int(item["metadata"]["resourceVersion"]) for key, item in cache.by_key.items()}
        assert versions == {"team/kept": 10, "team/changed": 20, "team/back": 5}
        assert restored == [["team/changed", "team/gone", "team/kept"]]
        assert client.watched_from == [50, 21]


# --- watches ---------------------------------------------------------------------------------------------------------


class Expiring(Client):
    """Lists are fine, and every watch ends at once because its version is too old."""

    def __init__(self) -> None:
        self.lists = 0

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 200) -> AsyncIterator[Json]:
        self.lists += 1
        yield {"metadata": {"resourceVersion": "7"}, "items": []}

    async def newest_version(self, path: str) -> int:
        return 7

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        raise Expired("too old")
        yield _nothing()


async def _nothing() -> AsyncIterator[Json]:
    return
    yield {}


class Patient(Client):
    """Notes what watches ask for; each ends at the server's time limit."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    async def newest_version(self, path: str) -> int:
        return 7

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 200) -> AsyncIterator[Json]:
        yield {"metadata": {"resourceVersion": "7"}, "items": []}

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self.asked.append((int(query["timeoutSeconds"]), idle_s))
        await asyncio.sleep(self.asked[-1][0])
        yield _nothing()


class Restarting(Patient):
    """An API server that restarts now and then: the watch breaks, and the new server does not know its version."""

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self.every_s = every_s
        self.lists_s: list[float] = []
        self.restarts_s: list[float] = []

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 200) -> AsyncIterator[Json]:
        self.lists_s.append(asyncio.get_running_loop().time())
        yield {"metadata": {"resourceVersion": "7"}, "items": []}

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        now_s = asyncio.get_running_loop().time()
        due_s = self.lists_s[-1] + self.every_s
        await asyncio.sleep(min(float(query["timeoutSeconds"]), due_s - now_s))
        if asyncio.get_running_loop().time() >= due_s:
            self.restarts_s.append(due_s)
            raise Expired("too old")
        yield _nothing()


@pytest.mark.parametrize("every_s", [12.0, 45.0, 86_400.0])
def test_a_server_that_restarts_again_and_again_is_listed_at_once_each_time(every_s: float) -> None:
    """Else every restart of a long life would blind the process for longer, at last for 10 s."""

    async def seen() -> Restarting:
        client = Restarting(every_s)
        task = asyncio.create_task(WatchCache(client, PATH).run())
        await asyncio.sleep(12 * every_s)
        task.cancel()
        await asyncio.wait({task})
        return client

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        client = runner.run(seen())
    blind_s = [list_s - restart_s for restart_s, list_s in zip(client.restarts_s, client.lists_s[1:], strict=False)]
    assert len(blind_s) >= 10
    assert max(blind_s) < 0.5


def test_lists_in_a_row_have_growing_pauses() -> None:
    async def listed_in(seconds: float) -> int:
        client = Expiring()
        task = asyncio.create_task(WatchCache(client, PATH).run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait({task})
        return client.lists

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(listed_in(100)) <= 16


def test_a_calm_watch_asks_seldom_and_at_random_moments() -> None:
    async def asked_in(seconds: float, *, is_calm: bool) -> list[tuple[int, float]]:
        client = Patient()
        task = asyncio.create_task(WatchCache(client, PATH, is_calm=is_calm).run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait({task})
        return client.asked

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        asked = runner.run(asked_in(36_000, is_calm=True))
        assert 60 <= len(asked) <= 121
        assert all(300 <= server_s <= 600 and idle_s > 60 for server_s, idle_s in asked)
        assert len(set(asked)) > 20
        assert len(runner.run(asked_in(3600, is_calm=False))) > 100
