"""A gate between one part and the API server: a TCP proxy that passes, drops, delays or resets. Knows no parts.

Dropping is as on a real wire: data in flight is neither lost nor seen, because TCP sends it again once the wire works.
So after a drop a connection continues where it stopped, unless an end gave up. A connection begun meanwhile is made
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from coda_lab.experiments.chaos.schedule import Kind
from coda_lab.host.ports import LOOPBACK

_BUFFER_BYTES: Final = 1 << 18
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends RST


class Gate:
    """Joins each connection it accepts to the port behind it. Made by `opened`."""

    def __init__(self, upstream_port: int) -> None:
        self.connections = 0
        self._upstream_port = upstream_port
        self._pairs: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._whole = asyncio.Event()
        self._whole.set()
        self._resetting = False
        self._delay_s = 0.0

    @classmethod
    @asynccontextmanager
    async def opened(cls, port: int, upstream_port: int) -> AsyncIterator[Gate]:
        """A gate that listens on `port` until the block is left; then its connections are gone too."""
        gate = cls(upstream_port)
        server = await asyncio.start_server(gate.accept, LOOPBACK, port, limit=_BUFFER_BYTES)
        try:
            yield gate
        finally:
            server.close()
            tasks = list(gate._pairs)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

    def cut(self, kind: Kind, *, delay_s: float = 0.0) -> None:
        """Drop, delay by `delay_s`, or reset until `heal`."""
        if kind is Kind.DROP:
            self._whole.clear()
        elif kind is Kind.DELAY:
            self._delay_s = delay_s
        elif kind is Kind.RESET:
            self._resetting = True
            for writers in self._pairs.values():
                for writer in writers:
                    _reset(writer)

    def heal(self) -> None:
        """Let everything pass again."""
        self._resetting = False
        self._delay_s = 0.0
        self._whole.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        if self._resetting:
            _reset(writer)
            return
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        self._pairs[task] = (writer,)
        try:
            await self._whole.wait()
            with contextlib.suppress(OSError):
                upstream, onward = await asyncio.open_connection(LOOPBACK, self._upstream_port, limit=_BUFFER_BYTES)
                self._pairs[task] = (writer, onward)
                await _first_of(self._pass(reader, onward), self._pass(upstream, writer))
        except asyncio.CancelledError:
            pass  # the gate is closed: only closing is left
        finally:
            for each in self._pairs.pop(task):
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = _Wire(writer=writer)
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_BUFFER_BYTES):
                await self._whole.wait()
                await wire.send(chunk, self._delay_s)
            await self._whole.wait()
            await wire.flushed()


@dataclass(slots=True, kw_only=True)
class _Wire:
    """One direction: late bytes stay in order, and behind a delay that has ended."""

    writer: asyncio.StreamWriter
    due_s: float = 0.0  # by the loop's clock: when the last byte is through

    async def send(self, chunk: bytes, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if not delay_s and self.due_s <= now_s:
            self.writer.write(chunk)
            await self.writer.drain()
            return
        self.due_s = max(self.due_s + 1e-6, now_s + delay_s)  # the loop keeps no order among equal times
        loop.call_at(self.due_s, self._write, chunk)

    async def flushed(self) -> None:
        await asyncio.sleep(max(0.0, self.due_s - asyncio.get_running_loop().time()))
        await self.writer.drain()

    def _write(self, chunk: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(chunk)


async def _first_of(*directions: Coroutine[Any, Any, None]) -> None:
    tasks = {asyncio.create_task(direction) for direction in directions}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end learns it at once, with data on its way or not."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None and not writer.transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
