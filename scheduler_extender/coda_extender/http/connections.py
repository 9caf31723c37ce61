"""Limits of one connection (time, bytes, requests sent ahead), and which connection is closed when there are too many.

The protocol has no authentication: everybody who reaches the port may send anything, slowly. uvicorn has no such
limits. It never stops waiting for the rest of a request, and keeps headers of any size. A working scheduler sends a
request within milliseconds and waits for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coda_extender.http.joined_writes import JoinedWrites

_NOBODY_READS: Final = "not_read"
_STATUS_BY_REASON: Final = {
    "late": b"408 Request Timeout",
    "head_too_large": b"431 Request Header Fields Too Large",
    "too_large": b"413 Content Too Large",
    "crowded": b"503 Service Unavailable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one server. A scheduler has one or two connections, some hundred bytes of head, nothing sent ahead.

    `request_s`: from the first byte of a request to its last, and from the opening of a connection to a request.
    `head_bytes`: request line and headers. `request_bytes`: a whole request, with the framing of its chunks.
    `sent_ahead`: requests sent before the answer of an earlier one. `connections`: fewer than the files that a process
    may open (1024 by default). `unfinished_bytes`: of all requests together that have not arrived whole.
    """

    request_s: float = 5.0
    head_bytes: int = 64 * 1024
    request_bytes: int = 6 * 1024 * 1024
    sent_ahead: int = 8
    connections: int = 800
    unfinished_bytes: int = 64 * 1024 * 1024


class OpenConnections:
    """All connections of a server, in the order in which they are closed. `on_refused` is called with each reason."""

    def __init__(self, limits: ConnectionLimits, on_refused: Callable[[str], None]) -> None:
        self.limits = limits
        self.refused = on_refused
        self._silent: dict[Connection, None] = {}  # no whole request so far, oldest first
        self._heard: dict[Connection, None] = {}  # by the time of the last request, oldest first
        self._unfinished_bytes: dict[Connection, int] = {}  # by the beginning of the request, oldest first
        self._total_bytes = 0

    def __len__(self) -> int:
        return len(self._silent) + len(self._heard)

    def add(self, connection: Connection) -> None:
        """Add a connection. Beyond the limit, one without a whole request is closed, else the one idle longest."""
        self._silent[connection] = None
        if len(self) > self.limits.connections:
            next(iter(self._silent if len(self._silent) > 1 else self._heard)).refuse("crowded")

    def note_request(self, connection: Connection) -> None:
        """A whole request has arrived on the connection."""
        self._settle(connection)
        self._silent.pop(connection, None)
        self._heard.pop(connection, None)
        self._heard[connection] = None

    def note_unfinished(self, connection: Connection, size_bytes: int) -> None:
        """`size_bytes` of a request have arrived, and more follow. Beyond the limit, the oldest such one is closed."""
        self._total_bytes += size_bytes - self._unfinished_bytes.get(connection, 0)
        self._unfinished_bytes[connection] = size_bytes
        if self._total_bytes > self.limits.unfinished_bytes:
            next(iter(self._unfinished_bytes)).refuse("crowded")

    def has_heard(self, connection: Connection) -> bool:
        """True once a whole request has arrived on the connection."""
        return connection in self._heard

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed, or about to be."""
        self._settle(connection)
        self._silent.pop(connection, None)
        self._heard.pop(connection, None)

    def _settle(self, connection: Connection) -> None:
        self._total_bytes -= self._unfinished_bytes.pop(connection, 0)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, within the limits of `open_connections`, which `connections_of` sets."""

    open_connections: ClassVar[OpenConnections]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._received_bytes = 0  # of the request that is being read
        self._reading = False
        self._in_head = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Add it; the time for its first request begins."""
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)
        self._arm()
        self.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove all that would keep it in memory: its timer, and requests that wait for their turn."""
        self._disarm()
        self.open_connections.remove(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn forgets this after a reset, which costs an hour of memory each
        self.pipeline.clear()

    def let_go(self) -> None:
        """Cut the circle with its parser, if it was never made; else it is lost later, and uvicorn does the same."""
        if self.transport is None:
            self.parser = None

    def data_received(self, data: bytes) -> None:
        """Read, then judge a request that has not arrived whole."""
        self._received_bytes += len(data)
        super().data_received(data)
        if self._reading and not self.transport.is_closing():
            self._judge_unfinished()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._reading = self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole. An error raised here ends as a 400."""
        self._in_head = False
        if len(self.pipeline) >= self.open_connections.limits.sent_ahead:
            raise httptools.HttpParserError("too many requests sent ahead")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._reading = False
        self._received_bytes = 0
        self._disarm()
        self.open_connections.note_request(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent. The time runs while the client does not read it."""
        self._joined.flush()
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, and close."""
        self.open_connections.refused("not_http")
        self._remove()
        super().send_400_response(msg)

    def refuse(self, reason: str) -> None:
        """Close it, with an answer if a request is half sent."""
        self.open_connections.refused(reason)
        asked_midway = self._reading and (self.cycle is None or not self.cycle.response_started or self._in_head)
        self._remove()
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()  # close() would wait until the client reads
            return
        if asked_midway and reason in _STATUS_BY_REASON:
            head = b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head % _STATUS_BY_REASON[reason])
        self.transport.close()

    def _judge_unfinished(self) -> None:
        limits = self.open_connections.limits
        if self._in_head and self._received_bytes > limits.head_bytes:
            self.refuse("head_too_large")
        elif self._received_bytes > limits.request_bytes:
            self.refuse("too_large")
        else:
            self._arm()
            self.open_connections.note_unfinished(self, self._received_bytes)

    def _remove(self) -> None:
        self._disarm()
        self.open_connections.remove(self)

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.open_connections.limits.request_s, self._time_out)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self._deadline = None
        if self._reading or not self.open_connections.has_heard(self):
            self.refuse("late")
        elif self.transport.get_write_buffer_size() > 0:
            self.refuse(_NOBODY_READS)


def connections_of(connections: OpenConnections) -> type[Connection]:
    """Return the class of connection that uvicorn creates."""
    return type("BoundedConnection", (Connection,), {"open_connections": connections})
