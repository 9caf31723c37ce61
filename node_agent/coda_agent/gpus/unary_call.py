"""One gRPC call of one message each way over a unix socket, by an HTTP/2 library alone.

The gRPC library takes 12 MiB for this, of the agent's 80. Source: gRPC over HTTP/2 (PROTOCOL-HTTP2.md of grpc/grpc).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

_PREFIX = 5  # before a message: one byte (1: compressed), then its length in four
_RECEIVED_AT_ONCE = 1 << 16
_STATUS = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)  # by number


class CallFailed(Exception):
    """There is no answer. `status`: gRPC's name of the reason, such as `UNAVAILABLE`."""

    def __init__(self, status: str, details: str = "") -> None:
        super().__init__(f"{status}: {details}" if details else status)
        self.status = status


def call(path: Path, method: str, request: bytes, *, timeout_s: float, most_bytes: int) -> bytes:
    """Return the answer of the server at the socket `path` to `method`, such as `/v1.PodResourcesLister/List`.

    Each call has a connection of its own. Raises CallFailed: nobody listens, the server refused, it did not answer
    within `timeout_s`, the answer has more than `most_bytes`, or it is none of gRPC."""
    ends_s = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            return _answer_on(stream, path, method, request, ends_s=ends_s, most_bytes=most_bytes)
    except TimeoutError:
        raise CallFailed("DEADLINE_EXCEEDED", f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise CallFailed("UNAVAILABLE", error.strerror or str(error)) from error
    except H2Error as error:
        raise CallFailed("INTERNAL", f"the answer is not HTTP/2: {error}") from error


@dataclass(slots=True)
class _Answer:
    """What came so far."""

    most_bytes: int
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def take(self, event: Event) -> None:
        """Raises CallFailed if the call is over without an answer."""
        match event:
            case ResponseReceived() | TrailersReceived():
                self.headers.update(_bytes_of(event.headers))
            case DataReceived():
                self.body += event.data or b""
                is_message = self.headers.get(b":status") == b"200"
                if len(self.body) > self.most_bytes + _PREFIX or (is_message and self._announced() > self.most_bytes):
                    raise CallFailed("RESOURCE_EXHAUSTED", f"the answer has more than {self.most_bytes} bytes")
            case StreamEnded():
                self.is_whole = True
            case StreamReset() | ConnectionTerminated():
                raise CallFailed("UNAVAILABLE", f"the server ended the call (HTTP/2 error {event.error_code})")

    def message(self) -> bytes:
        """Raises CallFailed if the server refused, or there is not one message."""
        if (status := self.headers.get(b":status", b"")) != b"200":
            raise CallFailed("UNAVAILABLE", f"the server answered HTTP {_text(status) or 'without a status'}")
        if (code := self.headers.get(b"grpc-status", b"")) != b"0":
            raise CallFailed(_status_name(code), unquote(_text(self.headers.get(b"grpc-message", b""))))
        if len(self.body) < _PREFIX or self.body[0] or self._announced() != len(self.body) - _PREFIX:
            raise CallFailed("INTERNAL", "the answer is not one message without compression")
        return bytes(memoryview(self.body)[_PREFIX:])

    def _announced(self) -> int:
        return int.from_bytes(self.body[1:_PREFIX]) if len(self.body) >= _PREFIX else 0


def _answer_on(
    stream: socket.socket, path: Path, method: str, request: bytes, *, ends_s: float, most_bytes: int
) -> bytes:
    stream.settimeout(_left_s(ends_s))
    stream.connect(str(path))
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    number = connection.get_next_available_stream_id()
    connection.send_headers(number, _request_headers(method, _left_s(ends_s)))
    connection.send_data(number, bytes(1) + len(request).to_bytes(4) + request, end_stream=True)
    answer = _Answer(most_bytes)
    while not answer.is_whole:
        stream.settimeout(_left_s(ends_s))
        if to_send := connection.data_to_send():
            stream.sendall(to_send)
        if not (received := stream.recv(_RECEIVED_AT_ONCE)):
            raise CallFailed("UNAVAILABLE", "the server closed the connection")
        for event in connection.receive_data(received):
            answer.take(event)
            if isinstance(event, DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length or 0, number)
    return answer.message()


def _request_headers(method: str, timeout_s: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{max(1, round(timeout_s * 1000))}m"),
    ]


def _left_s(ends_s: float) -> float:
    """Seconds that are left. Raises TimeoutError: none."""
    left_s = ends_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _bytes_of(headers: Iterable[tuple[bytes | str, bytes | str]] | None) -> dict[bytes, bytes]:
    return {_as_bytes(name): _as_bytes(value) for name, value in headers or ()}


def _as_bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _status_name(code: bytes) -> str:
    number = int(code) if code.isdigit() and len(code) <= len(str(len(_STATUS))) else -1
    return _STATUS[number] if 0 < number < len(_STATUS) else f"UNKNOWN (status {_text(code)[:20] or 'missing'})"
