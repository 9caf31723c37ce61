"""Lists at an API server that is slow whatever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_kube.api import client as api_client
from coda_kube.api.client import Client, Rejected, TooSlow
from coda_kube.api.credentials import Access
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop

PATH = "/api/v1/pods"
ANSWER_S = 0.6


async def test_it_gets_more_time_once_smaller_pages_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no cache would ever fill there, nor learn the newest version after a break."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(ANSWER_S)
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": [{}]})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"), timeout_s=0.1)
        assert len((await client.list_pages(PATH, page=200))["items"]) == 1
        assert await client.newest_version(PATH) == 9
        monkeypatch.setattr(api_client, "LONGEST_PAGE_S", 0.2)
        with pytest.raises(TooSlow):
            await client.list_pages(PATH)
        await client.close()


class Waiting(Client):
    """A request is answered `takes_s` after it was asked, and never if that was before `silent_s`."""

    def __init__(self, *, silent_s: float = 0.0, takes_s: float = 0.0) -> None:
        super().__init__(Access(host="http://nowhere"))
        self.silent_s, self.takes_s = silent_s, takes_s
        self.asked: list[int] = []

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any = None,
        content_type: str | None = None,
        timeout_s: float | None = None,
    ) -> Json:
        self.asked.append(int((query or {})["limit"]))
        takes_s = float("inf") if asyncio.get_running_loop().time() < self.silent_s else self.takes_s
        await asyncio.sleep(min(takes_s, timeout_s or 0.0))
        if takes_s > (timeout_s or 0.0):
            raise TooSlow("nothing came")
        return {"metadata": {"resourceVersion": "9"}, "items": [{}]}


@pytest.mark.parametrize(("silent_s", "there_s"), [(12.0, 15.0), (26.0, 30.0), (72.0, 77.0), (200.0, 206.0)])
def test_after_a_silence_a_list_is_soon_there(silent_s: float, there_s: float) -> None:
    """What was asked meanwhile is never answered: as after a balancer's stall, or a moved address."""

    async def story() -> float:
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        while True:
            started_s = now_s()
            try:
                await client.list_pages(PATH)
                return now_s() - began_s
            except TooSlow:
                assert now_s() - started_s <= 80.0

    client = Waiting(silent_s=silent_s)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(story()) <= there_s


def test_the_next_page_of_a_slow_kind_gets_its_time_at_once() -> None:
    async def story() -> None:
        await client.list_pages(PATH, page=200)
        assert client.asked[:4] == [200, 100, 50, 25]
        client.asked.clear()
        await client.list_pages(PATH, page=200)
        assert client.asked == [200]
        client.takes_s = 1.0
        await client.list_pages(PATH, page=200)
        client.silent_s = asyncio.get_running_loop().time() + 7.0
        await client.list_pages(PATH, page=200)
        assert asyncio.get_running_loop().time() < client.silent_s + 5.0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    client = Waiting(takes_s=58.0)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())


def test_a_refusal_ends_the_wait() -> None:
    class Refusing(Waiting):
        async def _call(self, *call: Any) -> Json:
            if len(self.asked) == 4:
                raise Rejected(403, "Forbidden", "no")
            return await super()._call(*call)

    async def story() -> None:
        with pytest.raises(Rejected):
            await client.list_pages(PATH)
        assert asyncio.get_running_loop().time() - began_s < 21.0

    client = Refusing(takes_s=100.0)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        began_s = runner.get_loop().time()
        runner.run(story())
