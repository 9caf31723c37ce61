"""gRPC on a unix socket, served by an HTTP/2 library alone: calls of one message, and one call that is kept informed.

The gRPC library takes 12 MiB for this, of the agent's 80. Nobody here is trusted with memory: requests, calls and
connections are bounded, and who does not read gets the newest message only, once it reads again. All in the event loop.
Source: gRPC over HTTP/2 (PROTOCOL-HTTP2.md of grpc/grpc)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error, NoSuchStreamError, StreamClosedError
from h2.settings import SettingCodes

from coda.errors import Outage

MOST_REQUEST_BYTES: Final = 1 << 16
MOST_CONNECTIONS: Final = 8
MOST_CALLS: Final = 16
MOST_UNREAD_BYTES: Final = 1 << 18
"""On one connection. The kubelet has one connection, and one call at a time beside the one that is kept informed."""

_GONE: Final = (StreamClosedError, NoSuchStreamError)
"""The caller gave up. HTTP/2 reads everything that came before it tells of the first of it."""

_PREFIX: Final = 5  # before a message: one byte (1: compressed), then its length in four


class Refusal(Enum):
    """Why a call is refused; gRPC's numbers."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13


class Refused(Exception):
    """A call is answered with this instead of a message."""

    def __init__(self, why: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is served. `calls`: by method; `watch`: the method that is told what `published` last got."""

    calls: Mapping[str, Callable[[bytes], bytes]]
    watch: str


class GrpcServer:
    """Serves at `path` from `start` to `stop`."""

    def __init__(self, path: Path, service: Service) -> None:
        self.path = path
        self.service = service
        self.message = b""
        self._connections: set[_Connection] = set()
        self._server: asyncio.AbstractServer | None = None
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen, in place of what an earlier process left. Raises Outage: another process serves there, or no socket
        can be made."""
        self.stop()
        try:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise Outage(f"{self.path}: no socket can be made there ({error.strerror or error})") from error
        try:
            if _is_served(self.path):
                raise Outage(f"another program serves {self.path}")
            self.path.unlink(missing_ok=True)
            listening.bind(str(self.path))
            self.path.chmod(0o600)
            self._identity = _identity_of(self.path)
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Connection(self), sock=listening
            )
        except OSError as error:
            listening.close()
            raise Outage(f"{self.path}: no socket can be made there ({error.strerror or error})") from error
        except BaseException:
            listening.close()
            raise

    def stop(self) -> None:
        """Close the socket and every connection. Never raises: a name that cannot be removed stays, as after a kill.

        A socket that another process made there stays."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            connection.abort()
        self._connections.clear()
        if self._identity is not None and _identity_of(self.path) == self._identity:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
        self._identity = None

    @property
    def is_there(self) -> bool:
        """True while its own socket lies at the path: a kubelet that starts empties the folder."""
        return self._identity is not None and _identity_of(self.path) == self._identity

    @property
    def watchers(self) -> int:
        """How many calls are kept informed."""
        return sum(len(connection.watching) for connection in self._connections)

    def publish(self, message: bytes) -> None:
        """Tell all who watch, and all who will."""
        self.message = message
        for connection in tuple(self._connections):
            connection.tell(message)

    def admit(self, connection: _Connection) -> bool:
        """False: there are too many."""
        if len(self._connections) >= MOST_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: _Connection) -> None:
        """It is over."""
        self._connections.discard(connection)


@dataclass(slots=True)
class _Call:
    method: str
    body: bytearray = field(default_factory=bytearray)


class _Connection(asyncio.Protocol):
    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = MOST_CALLS
        self._h2.local_settings.acknowledge()
        self._calls: dict[int, _Call] = {}
        self.watching: dict[int, bytes | None] = {}  # by stream; what is still to be told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            self.abort()
            return
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.watching.clear()
        self._server.leave(self)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
            self._flush()
        except H2Error:
            self._flush()  # the reason, as the library has it
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def tell(self, message: bytes) -> None:
        for stream in self.watching:
            self.watching[stream] = message
        try:
            self._tell_what_is_left()
            self._flush()
        except H2Error:
            self.abort()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                headers = dict(event.headers or ())
                self._calls[event.stream_id or 0] = _Call(_text(headers.get(b":path", b"")))
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
                self._add(event.stream_id or 0, event.data or b"")
            case StreamEnded():
                call = self._calls.pop(event.stream_id or 0, None)
                if call is not None:
                    with contextlib.suppress(*_GONE):
                        self._answer(event.stream_id or 0, call)
            case StreamReset():
                self._calls.pop(event.stream_id or 0, None)
                self.watching.pop(event.stream_id or 0, None)
            case WindowUpdated() | RemoteSettingsChanged():
                self._tell_what_is_left()
            case ConnectionTerminated():
                if self._transport is not None:
                    self._transport.close()

    def _add(self, stream: int, some: bytes) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        call.body += some
        if len(call.body) > MOST_REQUEST_BYTES:
            del self._calls[stream]
            with contextlib.suppress(*_GONE):
                self._refuse(stream, Refused(Refusal.RESOURCE_EXHAUSTED, f"more than {MOST_REQUEST_BYTES} bytes"))

    def _answer(self, stream: int, call: _Call) -> None:
        service = self._server.service
        try:
            request = _message_in(call.body)
            if call.method == service.watch:
                self._begin(stream)
                self.watching[stream] = self._server.message
                self._tell_what_is_left()
                return
            if call.method not in service.calls:
                raise Refused(Refusal.UNIMPLEMENTED, "there is no such method here")
            answer = _framed(service.calls[call.method](request))
            if not self._fits(stream, answer):
                raise Refused(Refusal.RESOURCE_EXHAUSTED, "the caller has no room for the answer")
        except Refused as refused:
            self._refuse(stream, refused)
            return
        self._begin(stream)
        self._send(stream, answer)
        self._h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    def _begin(self, stream: int) -> None:
        self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])

    def _refuse(self, stream: int, refused: Refused) -> None:
        headers = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", str(refused.why.value)),
            ("grpc-message", quote(str(refused), safe=" ,.;:/'()")),
        ]
        self._h2.send_headers(stream, headers, end_stream=True)

    def _tell_what_is_left(self) -> None:
        for stream, message in tuple(self.watching.items()):
            if message is None:
                continue
            try:
                if self._fits(stream, framed := _framed(message)):
                    self._send(stream, framed)
                    self.watching[stream] = None
            except _GONE:
                del self.watching[stream]

    def _fits(self, stream: int, framed: bytes) -> bool:
        return len(framed) <= self._h2.local_flow_control_window(stream)

    def _send(self, stream: int, framed: bytes) -> None:
        most = self._h2.max_outbound_frame_size
        for start in range(0, len(framed), most):
            self._h2.send_data(stream, framed[start : start + most])

    def _flush(self) -> None:
        if self._transport is None:
            return
        self._transport.write(self._h2.data_to_send())
        if self._transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self.abort()


def _framed(message: bytes) -> bytes:
    return bytes(1) + len(message).to_bytes(4) + message


def _message_in(body: bytearray) -> bytes:
    """Raises Refused."""
    if len(body) < _PREFIX or body[0] or int.from_bytes(body[1:_PREFIX]) != len(body) - _PREFIX:
        raise Refused(Refusal.INTERNAL, "the request is not one message without compression")
    return bytes(memoryview(body)[_PREFIX:])


def _is_served(path: Path) -> bool:
    """True if a process listens there. Never waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        code = asking.connect_ex(str(path))
    return code in (0, errno.EAGAIN, errno.EINPROGRESS)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """None: there is nothing."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
