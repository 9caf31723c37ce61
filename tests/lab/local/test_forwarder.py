"""The Service's rule, with real connections on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from coda_kube.objects.json_types import Json
from coda_lab.host.ports import LOOPBACK
from coda_lab.local.forwarder import PORT_ANNOTATION, Backends, Forwarder


def pod(name: str, port: object) -> Json:
    return {"metadata": {"name": name, "namespace": "coda-system", "annotations": {PORT_ANNOTATION: str(port)}}}


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Scene:
    """A forwarder, and backends that answer each line with their name."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.backends = Backends()
        self.forwarder = Forwarder(self.backends)
        self.port = 0
        self._stack = stack
        self._handling: set[asyncio.Task[None]] = set()

    async def backend(self, name: str) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    writer.write(name.encode() + b":" + line)
                    await writer.drain()

        return await self._serve(answer)

    async def listen(self) -> None:
        self.port = await self._serve(self.forwarder.accept)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        self._stack.push_async_callback(closed, writer)
        return reader, writer

    async def ask(self) -> bytes:
        """What a new connection answers; empty when it is closed at once."""
        return await said(await self.connect())

    async def all_handled(self) -> None:
        """Wait for the servers' ends of all connections."""
        if self._handling:
            await asyncio.wait(self._handling, timeout=5)

    async def _serve(self, handler: Handler) -> int:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._handling.add(task)
            try:
                await handler(reader, writer)
            finally:
                await closed(writer)

        server = await asyncio.start_server(handle, LOOPBACK, 0)
        self._stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def said(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    reader, writer = connection
    async with asyncio.timeout(5):
        try:
            writer.write(b"hello\n")
            await writer.drain()
            return await reader.readline()
        except ConnectionError:
            return b""


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        ready = Scene(stack)
        stack.push_async_callback(ready.all_handled)
        await ready.listen()
        yield ready


async def test_without_a_leader_a_connection_is_closed_at_once(scene: Scene) -> None:
    assert await scene.ask() == b""


async def test_a_connection_reaches_the_labelled_pod_and_stays_open(scene: Scene) -> None:
    scene.backends.listener(None, pod("a", await scene.backend("a")))
    connection = await scene.connect()
    assert [await said(connection) for _ in range(3)] == [b"a:hello\n"] * 3


async def test_of_two_labelled_pods_the_newest_is_taken(scene: Scene) -> None:
    first = pod("z", await scene.backend("z"))
    scene.backends.listener(None, first)
    scene.backends.listener(None, pod("a", await scene.backend("a")))
    scene.backends.listener(first, first)  # an update of the older one changes nothing
    assert await scene.ask() == b"a:hello\n"


async def test_a_labelled_pod_whose_process_is_dead_is_passed_over(scene: Scene) -> None:
    scene.backends.listener(None, pod("a", await scene.backend("a")))
    ended = await asyncio.start_server(lambda _reader, _writer: None, LOOPBACK, 0)
    dead = int(ended.sockets[0].getsockname()[1])
    ended.close()
    scene.backends.listener(None, pod("b", dead))
    assert await scene.ask() == b"a:hello\n"


async def test_when_the_leader_changes_old_connections_are_closed(scene: Scene) -> None:
    old = pod("a", await scene.backend("a"))
    scene.backends.listener(None, old)
    connection = await scene.connect()
    assert await said(connection) == b"a:hello\n"

    scene.backends.listener(None, pod("b", await scene.backend("b")))
    scene.backends.listener(old, None)
    scene.forwarder.let_go()

    assert await said(connection) == b""
    assert await scene.ask() == b"b:hello\n"


async def test_connections_to_the_leader_survive_a_change_behind_it(scene: Scene) -> None:
    old = pod("a", await scene.backend("a"))
    scene.backends.listener(None, old)
    scene.backends.listener(None, pod("b", await scene.backend("b")))
    connection = await scene.connect()
    assert await said(connection) == b"b:hello\n"
    scene.backends.listener(old, None)
    scene.forwarder.let_go()
    assert await said(connection) == b"b:hello\n"


async def test_the_last_leader_gone_closes_its_connections(scene: Scene) -> None:
    only = pod("a", await scene.backend("a"))
    scene.backends.listener(None, only)
    connection = await scene.connect()
    assert await said(connection) == b"a:hello\n"
    scene.backends.listener(only, None)
    scene.forwarder.let_go()
    assert await said(connection) == b""
    assert await scene.ask() == b""


async def test_a_pod_without_a_usable_port_is_left_out(scene: Scene) -> None:
    scene.backends.listener(None, pod("a", await scene.backend("a")))
    bad = pod("b", "no-port")
    scene.backends.listener(None, bad)
    assert await scene.ask() == b"a:hello\n"
    scene.backends.listener(bad, None)
    assert await scene.ask() == b"a:hello\n"


async def test_a_large_answer_arrives_whole(scene: Scene) -> None:
    scene.backends.listener(None, pod("a", await scene.backend("a")))
    reader, writer = await scene.connect()
    line = b"x" * 60_000 + b"\n"
    for _ in range(20):
        writer.write(line)
        await writer.drain()
        assert len(await reader.readline()) == len(line) + 2
