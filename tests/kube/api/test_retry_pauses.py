"""Pauses before a request is tried again: they grow, differ from client to client, and keep to what the server asks."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.api.credentials import Access
from coda_kube.api.retry_pauses import LONGEST_S, SPREAD_S, pause_s, write_pause_s
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop

PATH = "/api/v1/pods"


@pytest.mark.parametrize("failures", [0, 1, 5, 10_000])
def test_a_calm_pause_is_anything_up_to_its_bound(failures: int) -> None:
    bound_s = min(LONGEST_S, 0.8 * 2 ** min(failures, 20))
    found = [pause_s(failures, 0.0, is_calm=True) for _ in range(2000)]
    assert all(0 <= pause <= bound_s for pause in found)
    assert statistics.mean(found) == pytest.approx(bound_s / 2, rel=0.1)
    assert max(found) - min(found) > 0.9 * bound_s


@pytest.mark.parametrize("is_calm", [True, False])
def test_no_pause_is_shorter_than_the_server_asks(is_calm: bool) -> None:
    assert all(pause_s(failures, 10.0, is_calm=is_calm) >= 10.0 for failures in range(100))
    assert all(write_pause_s(failures, 10.0, first_s=1.0, longest_s=30.0) >= 10.0 for failures in range(100))


@pytest.mark.parametrize(
    ("header", "asked_s"),
    [
        ({}, 0.0),
        ({"Retry-After": "10"}, 10.0),
        ({"Retry-After": "99999999"}, 60.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "\u0663"}, 0.0),
    ],
)
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_the_server_asks_for_is_told_with_the_error(
    status: int, header: Mapping[str, str], asked_s: float
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=header)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"))
        with pytest.raises(Outage) as raised:
            await client.get("/api/v1/nodes")
        with pytest.raises(Outage) as watched:
            async with client.watch(PATH, {}, idle_s=1.0):
                pass
        await client.close()
    assert raised.value.retry_after_s == watched.value.retry_after_s == asked_s


class Recovering(Client):
    """Refuses every request while it is away; then watches last until `breaks_after_s`."""

    def __init__(self, *, asks_s: float = 0.0) -> None:
        self.is_away = True
        self.asks_s = asks_s
        self.breaks_after_s = 3600.0
        self.asked_s: list[float] = []

    async def _call(self, *_: object) -> Json:
        self._ask()
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def newest_version(self, path: str) -> int:
        self._ask()
        return 1

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self._ask()
        yield self._events()

    async def _events(self) -> AsyncIterator[Json]:
        await asyncio.sleep(self.breaks_after_s)
        raise Outage("reset")
        yield {}

    def _ask(self) -> None:
        self.asked_s.append(asyncio.get_running_loop().time())
        if self.is_away:
            raise Outage("away", retry_after_s=self.asks_s)


async def running(client: Recovering, seconds: float) -> list[float]:
    """The times of a calm cache's requests."""
    task = asyncio.create_task(WatchCache(client, PATH, is_calm=True).run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait({task})
    return client.asked_s


def test_a_server_that_stays_away_is_asked_seldom() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        asked_s = runner.run(running(Recovering(), 3600))
        assert 3600 / 30 <= len(asked_s) <= 3600 / 10
        assert len(runner.run(running(Recovering(asks_s=10.0), 3600))) <= 3600 / 20


def test_a_watch_that_lasted_ends_the_row_of_failures() -> None:
    """Else one short break, long after an outage, would blind an agent for half a minute."""

    async def pauses() -> list[float]:
        client = Recovering()
        asyncio.get_running_loop().call_later(300, setattr, client, "is_away", False)
        client.breaks_after_s = 100.0
        asked_s = await running(client, 3600)
        return [after - before for before, after in pairwise(asked_s) if before > 500]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(pauses())
    assert len(found) > 20
    assert max(found) < 100 + 0.8 + SPREAD_S + 0.1


def test_watches_that_break_at_once_have_growing_pauses() -> None:
    async def asked() -> int:
        client = Recovering()
        client.is_away, client.breaks_after_s = False, 0.0
        return len(await running(client, 3600))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(asked()) <= 2 * 3600 / 10
