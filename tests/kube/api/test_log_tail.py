"""The end of a log: of any size in little memory, and one clear error where it cannot be had."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from coda.errors import CodaError, Outage
from coda_kube.api.client import Client, NotFound, Rejected

KEEP = 1 << 20


@asynccontextmanager
async def client_of(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Client]:
    application = web.Application()
    application.router.add_get("/log", answer)
    async with TestServer(application) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("/")).rstrip("/")
        client = Client(configuration)
        yield client
        await client.close()


async def tail(client: Client, limit_s: float = 20.0) -> bytes:
    return await client.tail("/log", {"tailLines": "9"}, keep_bytes=KEEP, limit_s=limit_s)


async def test_of_one_line_of_a_gigabyte_the_end_is_kept_and_no_more_is_held() -> None:
    """64 MiB stand for it, which is what the operator lets a kubelet send; no line ends in between."""

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(64):
            await response.write(b"x" * (1 << 20))
        await response.write(b"the end")
        return response

    async with client_of(endless) as client:
        tracemalloc.start()
        kept = await tail(client)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (len(kept), kept[-7:]) == (KEEP, b"the end")
    assert peak_bytes < 16 * KEEP


@pytest.mark.parametrize(
    ("status", "raised", "said"),
    [
        pytest.param(403, Rejected, "pods/log is forbidden", id="forbidden"),
        pytest.param(404, NotFound, "pods/log is forbidden", id="gone"),
        pytest.param(500, Outage, "HTTP 500", id="no kubelet"),
    ],
)
async def test_a_refusal_is_an_error_of_ours(status: int, raised: type[CodaError], said: str) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        gone = {"reason": "NotFound", "details": {"name": "pod-0", "kind": "pods"}} if status == 404 else {}
        return web.json_response({"kind": "Status", "message": "pods/log is forbidden"} | gone, status=status)

    async with client_of(refuse) as client:
        with pytest.raises(raised, match=said):
            await tail(client)


async def test_a_server_that_stops_sending_is_an_outage_after_the_limit() -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"epoch 1\n")
        await asyncio.sleep(60)
        return response

    async with client_of(stall) as client:
        with pytest.raises(Outage, match=r"no answer within 0\.3 s"):
            await tail(client, limit_s=0.3)
