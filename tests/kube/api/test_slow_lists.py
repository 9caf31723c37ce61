"""Lists at an API server that is slow whatever is asked."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_kube.api import client as api_client
from coda_kube.api.client import Client, TooSlow
from coda_kube.api.credentials import Access

PATH = "/api/v1/pods"
ANSWER_S = 0.6


async def test_it_gets_more_time_once_smaller_pages_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no cache would ever fill there, nor learn the newest version after a break."""
    asked: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(int(request.query["limit"]))
        await asyncio.sleep(ANSWER_S)
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": [{}]})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application, host="127.0.0.1") as server:
        client = Client(Access(host=f"http://127.0.0.1:{server.port}"), timeout_s=0.1)
        assert len((await client.list_pages(PATH, page=200))["items"]) == 1
        assert asked[:4] == [200, 100, 50, 25]
        assert await client.newest_version(PATH) == 9
        monkeypatch.setattr(api_client, "LONGEST_PAGE_S", 0.2)
        with pytest.raises(TooSlow):
            await client.list_pages(PATH)
        await client.close()
