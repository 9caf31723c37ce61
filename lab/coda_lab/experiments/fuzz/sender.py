"""Sends hostile requests: workers that go through the requests, and holders that keep connections busy with nothing.

Counts the answers and judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import Counter
from collections.abc import Iterator

from coda_lab.experiments.fuzz.hostile_requests import Hostile, post
from coda_lab.host.ports import LOOPBACK

PATIENCE_S = 30.0  # several times what the extender gives a request
_DRIP_S = 0.5
_AGAIN_S = 0.05
_HANDSHAKES = 16  # of holders, at once: hundreds would give way to one another for ever while the machine is busy
_GONE = (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Sender:
    """The requests sent to one port and its answers: `outcomes` counts (kind, status) and (kind, `closed`)."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._context = context  # with the scheduler's certificate: the hostile are not stopped at the door
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.sent: Counter[str] = Counter()
        self.held: Counter[str] = Counter()  # open connections, by how they are held
        self.held_ends: Counter[str] = Counter()  # connections that the extender closed
        self._may_greet = asyncio.Semaphore(_HANDSHAKES)
        self._held_more = asyncio.Event()

    async def work(self, requests: Iterator[Hostile]) -> None:
        """Send from `requests`, which workers may share, until there are no more."""
        open_now: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        for hostile in requests:
            if open_now is not None and not hostile.reusable:
                await _close(open_now[1])
                open_now = None
            reader, writer = open_now or await self._connect()
            self.sent[hostile.kind] += 1
            lasts = await self._send(hostile, reader, writer)
            open_now = (reader, writer) if lasts and hostile.reusable else None
            if open_now is None:
                await _close(writer)
        if open_now is not None:
            await _close(open_now[1])

    async def _connect(self, **more: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection. A handshake gives way to newer ones, so it may take several tries."""
        while True:
            try:
                return await asyncio.open_connection(LOOPBACK, self._port, ssl=self._context, **more)
            except (ConnectionError, ssl.SSLError):
                await asyncio.sleep(_AGAIN_S)

    async def _send(self, hostile: Hostile, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True if every answer came and the connection lasts."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(hostile.sent)
                with contextlib.suppress(
                    ConnectionError
                ):  # the answer may be there although not all of the request was read
                    await writer.drain()
                if not hostile.answers:
                    self.outcomes[hostile.kind, "not awaited"] += 1
                for _ in range(hostile.answers):
                    status, lasts = await read_answer(reader)
                    self.outcomes[hostile.kind, status] += 1
                    if not lasts:
                        return False
        except _GONE:
            self.outcomes[hostile.kind, "closed"] += 1
            return False
        except TimeoutError:
            self.outcomes[hostile.kind, "nothing"] += 1
            return False
        return True

    async def hold(self, number: int, seed: int) -> None:
        """Keep one connection open in one of five ways; open it again when it is closed. Until cancelled."""
        rng = random.Random(f"{seed} {number}")
        way = ("silent", "slow_head", "slow_body", "deaf", "idle")[number % 5]
        while True:
            with contextlib.suppress(*_GONE):
                async with self._may_greet:
                    reader, writer = await self._connect(limit=1024)
                self.held[way] += 1
                self._held_more.set()
                try:
                    await self._keep(way, rng, reader, writer)
                finally:
                    self.held[way] -= 1
                    writer.transport.abort()
            self.held_ends[way] += 1

    async def holds(self, connections: float) -> None:
        """Wait until so many connections are held at once."""
        while self.held.total() < connections:
            self._held_more.clear()
            await self._held_more.wait()

    async def _keep(
        self, way: str, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Return, or raise, when the other side has closed it."""
        whole = post(rng, b"{" * 300)
        if way in ("slow_head", "slow_body"):
            start = whole.partition(b"Content")[0] if way == "slow_head" else post(rng, b"{" * 300, length=100_000)
            await self._drip(start, b"X-a: b\r\n" if way == "slow_head" else b"{", reader, writer)
        elif way == "deaf":
            writer.write(b"".join(post(rng, b'{"Pod":{"metadata":{"name":"%b"}}}' % (b"x" * 9000)) for _ in range(8)))
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport can
            await asyncio.sleep(PATIENCE_S)
        else:
            if way == "idle":
                writer.write(whole)
            while await reader.read(1024):
                pass

    async def _drip(
        self, start: bytes, drop: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(start)
        ended = asyncio.ensure_future(reader.read(1))
        try:
            while not ended.done():
                writer.write(drop)
                await writer.drain()
                await asyncio.wait({ended}, timeout=_DRIP_S)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """The status of the next answer, and whether the connection lasts."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = head.split(" ", 2)[1]
    lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length:")]
    await reader.readexactly(int(lengths[0]) if lengths and status not in ("204", "304") else 0)
    return status, "connection: close" not in head


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError, TimeoutError):
        await writer.wait_closed()
