"""The gate between a part and the API server, with real connections on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from coda_lab.experiments.chaos.proxy import Gate
from coda_lab.experiments.chaos.schedule import Kind
from coda_lab.host.ports import LOOPBACK, free_ports

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SOON_S = 5.0  # far more than loopback needs; only a broken gate waits so long
NEVER_S = 0.2  # what must not come is given so long to come


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[tuple[Gate, int]]:
    """A gate before a server that sends everything back; and the gate's port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65_536):
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()

    upstream = await asyncio.start_server(answer, LOOPBACK, 0)
    behind: int = upstream.sockets[0].getsockname()[1]
    (port,) = free_ports(1, random.Random())
    async with upstream, Gate.opened(port, behind) as gate:
        yield gate, port


async def asked(streams: Streams, words: bytes) -> bytes:
    reader, writer = streams
    writer.write(words)
    async with asyncio.timeout(SOON_S):
        return await reader.readexactly(len(words))


async def is_reset(port: int) -> bool:
    """True when a new connection ends without an answer."""
    with contextlib.suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"words")
        try:
            return not await reader.read(1)
        finally:
            writer.close()
    return True


async def test_a_whole_gate_lets_everything_pass() -> None:
    async with echo() as (_, port):
        streams = await asyncio.open_connection(LOOPBACK, port)
        large = random.Random(1).randbytes(3_000_000)
        streams[1].write(large)
        async with asyncio.timeout(SOON_S):
            assert await streams[0].readexactly(len(large)) == large
        streams[1].close()


async def test_what_is_dropped_arrives_once_the_gate_is_whole_again() -> None:
    """As on a wire: TCP sends it again."""
    async with echo() as (gate, port):
        before = await asyncio.open_connection(LOOPBACK, port)
        assert await asked(before, b"one") == b"one"
        gate.cut(Kind.DROP)
        during = await asyncio.open_connection(LOOPBACK, port)
        for _, writer in (before, during):
            writer.write(b"two")
        for reader, _ in (before, during):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(NEVER_S):
                    await reader.read(1)
        gate.heal()
        async with asyncio.timeout(SOON_S):
            assert [await reader.readexactly(3) for reader, _ in (before, during)] == [b"two", b"two"]
        for _, writer in (before, during):
            writer.close()


async def test_what_is_delayed_comes_late_and_in_order() -> None:
    async with echo() as (gate, port):
        streams = await asyncio.open_connection(LOOPBACK, port)
        assert await asked(streams, b"fast") == b"fast"
        gate.cut(Kind.DELAY, delay_s=0.15)
        began_s = asyncio.get_running_loop().time()
        streams[1].write(b"slow")
        await asyncio.sleep(0.02)
        gate.heal()
        streams[1].write(b"next")
        async with asyncio.timeout(SOON_S):
            assert await streams[0].readexactly(8) == b"slownext"
        assert asyncio.get_running_loop().time() - began_s >= 0.15
        streams[1].close()


async def test_a_reset_ends_open_connections_and_new_ones_until_the_gate_is_whole_again() -> None:
    async with echo() as (gate, port):
        before = await asyncio.open_connection(LOOPBACK, port)
        assert await asked(before, b"one") == b"one"
        gate.cut(Kind.RESET)
        async with asyncio.timeout(SOON_S):
            with pytest.raises(ConnectionResetError):
                await before[0].read(1)
            assert await is_reset(port)
        gate.heal()
        after = await asyncio.open_connection(LOOPBACK, port)
        assert await asked(after, b"three") == b"three"
        after[1].close()


async def test_a_closed_upstream_port_ends_the_connection() -> None:
    port, nobody = free_ports(2, random.Random())
    async with Gate.opened(port, nobody):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        async with asyncio.timeout(SOON_S):
            assert await reader.read(1) == b""
        writer.close()


async def test_a_closed_gate_leaves_no_connection_behind() -> None:
    async with echo() as (_, port):
        streams = await asyncio.open_connection(LOOPBACK, port)
        assert await asked(streams, b"one") == b"one"
    async with asyncio.timeout(SOON_S):
        with contextlib.suppress(ConnectionError):
            assert await streams[0].read(1) == b""
    streams[1].close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(LOOPBACK, port)
