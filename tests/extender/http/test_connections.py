"""What a connection may cost, on a real server on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from coda_extender.http.connections import ConnectionLimits, OpenConnections, connections_of
from tests.extender.asgi import APP, request
from tests.extender.objects import pod_json

PATIENCE_S = 20.0
LONG = ConnectionLimits(request_s=600.0)
BODY = request(pod_json("foreign", gpus=1), "n2")
WHOLE = b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    port: int
    connections: OpenConnections
    refused: Counter[str]
    server: uvicorn.Server
    clients: list[Client]

    async def connect(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, sent: bytes) -> None:
        self._writer.write(sent)
        await self._writer.drain()

    async def ask(self) -> bytes:
        """The status line of the answer to a right request."""
        await self.send(WHOLE)
        return await self.answer()

    async def answer(self) -> bytes:
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.partition(b":")[2]))
        return head.partition(b"\r\n")[0]

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await asyncio.wait_for(self._reader.read(), PATIENCE_S)

    async def end(self) -> None:
        """Until the server closes; an answer may be lost where it has not read everything."""
        with contextlib.suppress(ConnectionError):
            await self.rest()

    def certificate(self) -> bytes:
        """The server's."""
        shown: bytes = self._writer.get_extra_info("ssl_object").getpeercert(True)
        return shown

    def reset(self) -> None:
        own: socket.socket = self._writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[Served]:
    refused: Counter[str] = Counter()
    connections = OpenConnections(limits, lambda reason: refused.update([reason]))
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(APP, http=connections_of(connections), ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    clients: list[Client] = []
    port = listening.getsockname()[1]
    try:
        yield Served(port=port, connections=connections, refused=refused, server=server, clients=clients)
    finally:
        for client in clients:
            await client.close()
        server.should_exit = server.force_exit = True
        await task


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(ConnectionLimits(request_s=0.05)) as served:
        assert await (await served.connect()).rest() == b""
        assert served.refused == {"late": 1}


async def test_half_a_head_and_half_a_body_are_not_waited_for() -> None:
    async with serving(ConnectionLimits(request_s=0.05)) as served:
        for half in (WHOLE[:30], WHOLE[:-5]):
            client = await served.connect()
            await client.send(half)
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_stays_after_a_request_and_not_after_half_of_the_next() -> None:
    async with serving(ConnectionLimits(request_s=0.05)) as served:
        idle, slow = await served.connect(), await served.connect()
        for client in (idle, slow):
            assert await client.ask() == b"HTTP/1.1 200 OK"
        await slow.send(WHOLE[:-5])
        assert (await slow.rest()).startswith(b"HTTP/1.1 408 ")
        assert await idle.ask() == b"HTTP/1.1 200 OK"


async def test_a_head_without_an_end_is_refused() -> None:
    async with serving(LONG) as served:
        client = await served.connect()
        await client.send(b"POST /filter HTTP/1.1\r\n" + b"X-More: and more\r\n" * 5000)
        await client.end()
        assert served.refused == {"head_too_large": 1}


async def test_bytes_that_are_neither_head_nor_body_count_too() -> None:
    async with serving(ConnectionLimits(request_s=600.0, request_bytes=100_000)) as served:
        client = await served.connect()
        await client.send(b"POST /filter HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.send(b"1;" + b"x" * 300_000)
        await client.end()
        assert served.refused == {"too_large": 1}


async def test_a_few_requests_sent_ahead_are_answered_in_turn_and_many_are_refused() -> None:
    async with serving(LONG) as served:
        few, many = await served.connect(), await served.connect()
        await few.send(WHOLE * 5)
        assert [await few.answer() for _ in range(5)] == [b"HTTP/1.1 200 OK"] * 5
        await many.send(WHOLE * 500)
        await many.end()
        assert served.refused == {"not_http": 1}


async def test_beyond_the_limit_the_oldest_silent_connection_gives_way() -> None:
    async with serving(ConnectionLimits(request_s=600.0, connections=3)) as served:
        scheduler = await served.connect()
        await scheduler.ask()
        silent = [await served.connect() for _ in range(4)]
        assert [await client.rest() for client in silent[:2]] == [b"", b""]
        assert [await client.ask() for client in (scheduler, *silent[2:])] == [b"HTTP/1.1 200 OK"] * 3
        assert served.refused == {"crowded": 2}


async def test_beyond_the_limit_the_longest_idle_gives_way_where_all_have_asked() -> None:
    async with serving(ConnectionLimits(request_s=600.0, connections=2)) as served:
        first, second = await served.connect(), await served.connect()
        for client in (first, second, first):
            await client.ask()
        third = await served.connect()
        assert await second.rest() == b""
        assert [await client.ask() for client in (first, third)] == [b"HTTP/1.1 200 OK"] * 2


async def test_of_too_many_unfinished_bytes_the_oldest_request_gives_way() -> None:
    async with serving(ConnectionLimits(request_s=600.0, unfinished_bytes=300_000)) as served:
        clients = [await served.connect() for _ in range(3)]
        for client in clients:
            await client.send(b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b" " * 120_000)
        assert (await clients[0].rest()).startswith(b"HTTP/1.1 503 ")
        for client in clients[1:]:
            await client.send(b" " * 80_000)
            assert await client.answer() == b"HTTP/1.1 200 OK"


async def test_nothing_is_left_of_a_connection_that_was_reset() -> None:
    """uvicorn alone keeps it until its keep-alive would have ended, here an hour."""
    async with serving(LONG) as served:
        client = await served.connect()
        await client.ask()
        (kept,) = [weakref.ref(each) for each in served.server.server_state.connections]
        client.reset()
        while len(served.connections):
            await asyncio.sleep(0)
        gc.collect()
        assert kept() is None
