"""What one connection may cost: time, bytes, requests sent ahead; and which gives way when there are too many.

The protocol has no authentication, so whoever reaches the port may send anything, slowly. uvicorn bounds none of this:
it waits for ever for the rest of a request, and keeps whatever a client calls a header. A scheduler that works sends a
request within milliseconds and waits for its answer. Nothing here looks into a body.
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
    """Of one server. A scheduler has a connection or two, some hundred bytes of head, and nothing sent ahead.

    `request_s`: from a request's first byte to its last, and from the opening of a connection to the first request.
    `head_bytes`: request line and headers. `request_bytes`: all of a request, the framing of its chunks included.
    `sent_ahead`: requests before the answer of an earlier one. `connections`: fewer than the files a process may open
    (1024 where nobody raised it). `unfinished_bytes`: of all requests that have not arrived whole, together.
    """

    request_s: float = 5.0
    head_bytes: int = 64 * 1024
    request_bytes: int = 6 * 1024 * 1024
    sent_ahead: int = 8
    connections: int = 800
    unfinished_bytes: int = 64 * 1024 * 1024


class OpenConnections:
    """All connections of a server, in the order in which they give way. `on_refused` is told each reason."""

    def __init__(self, limits: ConnectionLimits, on_refused: Callable[[str], None]) -> None:
        self.limits = limits
        self.refused = on_refused
        self._silent: dict[Connection, None] = {}  # without a whole request so far, oldest first
        self._heard: dict[Connection, None] = {}  # the one whose last request is longest ago first
        self._unfinished_bytes: dict[Connection, int] = {}  # the request that began first is first
        self._total_bytes = 0

    def __len__(self) -> int:
        return len(self._silent) + len(self._heard)

    def join(self, connection: Connection) -> None:
        """A new connection. Beyond the limit one that never said anything whole gives way, else the longest idle."""
        self._silent[connection] = None
        if len(self) > self.limits.connections:
            next(iter(self._silent if len(self._silent) > 1 else self._heard)).refuse("crowded")

    def hear(self, connection: Connection) -> None:
        """A whole request has arrived on it."""
        self._settle(connection)
        self._silent.pop(connection, None)
        self._heard.pop(connection, None)
        self._heard[connection] = None

    def wait_for(self, connection: Connection, size: int) -> None:
        """So many bytes of a request have arrived, and it goes on. Beyond the limit the oldest such gives way."""
        self._total_bytes += size - self._unfinished_bytes.get(connection, 0)
        self._unfinished_bytes[connection] = size
        if self._total_bytes > self.limits.unfinished_bytes:
            next(iter(self._unfinished_bytes)).refuse("crowded")

    def has_heard(self, connection: Connection) -> bool:
        """True once a whole request has arrived on it."""
        return connection in self._heard

    def leave(self, connection: Connection) -> None:
        """It is closed, or about to be."""
        self._settle(connection)
        self._silent.pop(connection, None)
        self._heard.pop(connection, None)

    def _settle(self, connection: Connection) -> None:
        self._total_bytes -= self._unfinished_bytes.pop(connection, 0)


class Connection(HttpToolsProtocol):
    """uvicorn's connection within the limits of its `crowd`, which `connections_of` sets."""

    crowd: ClassVar[OpenConnections]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._received_bytes = 0  # of the request that is being read
        self._reading = False
        self._in_head = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Let it join; the time for its first request begins."""
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)
        self._arm()
        self.crowd.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind that would keep it in memory: no timer, and no request that waits for its turn."""
        self._disarm()
        self.crowd.leave(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn forgets it after a reset: an hour of memory for each
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Read on, then see what is still open."""
        self._received_bytes += len(data)
        super().data_received(data)
        if self._reading and not self.transport.is_closing():
            self._judge_unfinished()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._reading = self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole. What raises here ends as a 400."""
        self._in_head = False
        if len(self.pipeline) >= self.crowd.limits.sent_ahead:
            raise httptools.HttpParserError("too many requests sent ahead")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._reading = False
        self._received_bytes = 0
        self._disarm()
        self.crowd.hear(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is handed over. Nobody need take it: then the time runs, too."""
        self._joined.flush()
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and close."""
        self.crowd.refused("not_http")
        self._leave()
        super().send_400_response(msg)

    def refuse(self, reason: str) -> None:
        """Close it, with an answer if there is somebody in the middle of asking."""
        self.crowd.refused(reason)
        asked_midway = self._reading and (self.cycle is None or not self.cycle.response_started or self._in_head)
        self._leave()
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()  # close() would wait until the client reads
            return
        if asked_midway and reason in _STATUS_BY_REASON:
            head = b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head % _STATUS_BY_REASON[reason])
        self.transport.close()

    def _judge_unfinished(self) -> None:
        limits = self.crowd.limits
        if self._in_head and self._received_bytes > limits.head_bytes:
            self.refuse("head_too_large")
        elif self._received_bytes > limits.request_bytes:
            self.refuse("too_large")
        else:
            self._arm()
            self.crowd.wait_for(self, self._received_bytes)

    def _leave(self) -> None:
        self._disarm()
        self.crowd.leave(self)

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.crowd.limits.request_s, self._too_late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._reading or not self.crowd.has_heard(self):
            self.refuse("late")
        elif self.transport.get_write_buffer_size() > 0:
            self.refuse(_NOBODY_READS)


def connections_of(crowd: OpenConnections) -> type[Connection]:
    """The class that uvicorn makes connections of."""
    return type("BoundedConnection", (Connection,), {"crowd": crowd})
