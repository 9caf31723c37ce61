"""A gRPC call against servers that are none: whatever they send, the call ends in time and says why."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda_agent.gpus.unary_call import CallFailed, call

METHOD = "/v1.PodResourcesLister/List"
OK = ((":status", "200"), ("content-type", "application/grpc"))
Headers = Sequence[tuple[str, str]]


@contextmanager
def server(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serves one connection by `serve`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            stream, _ = listener.accept()
            with stream:
                serve(stream)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            path.unlink()


def answers(headers: Headers, body: bytes = b"", trailers: Headers | None = None) -> Callable[[socket.socket], None]:
    """A server that reads the question, and answers it with these."""

    def serve(stream: socket.socket) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        stream.sendall(connection.data_to_send())
        while not any(isinstance(event, StreamEnded) for event in connection.receive_data(stream.recv(1 << 16))):
            stream.sendall(connection.data_to_send())
        connection.send_headers(1, headers, end_stream=not body and trailers is None)
        if body:
            connection.send_data(1, body, end_stream=trailers is None)
        if trailers is not None:
            connection.send_headers(1, trailers, end_stream=True)
        stream.sendall(connection.data_to_send())
        while stream.recv(1 << 16):  # until the client is gone
            pass

    return serve


def says_http_1(stream: socket.socket) -> None:
    stream.recv(1 << 16)
    stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def says_an_odd_frame(stream: socket.socket) -> None:
    stream.recv(1 << 16)
    stream.sendall(b"\0\0\1\4\0\0\0\0\0a")  # SETTINGS of one byte


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(payload)) + payload


def asked(path: Path, *, timeout_s: float = 10.0) -> bytes:
    return call(path, METHOD, b"question", timeout_s=timeout_s, most_bytes=1000)


def test_one_message_is_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with server(path, answers(OK, message(b"answer"), [("grpc-status", "0")])):
        assert asked(path) == b"answer"


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (answers([*OK, ("grpc-status", "8"), ("grpc-message", "too%20many")]), "^RESOURCE_EXHAUSTED: too many$"),
        (answers(OK, message(b"answer"), [("grpc-status", "13")]), "^INTERNAL$"),
        (answers(OK, message(b"answer"), [("grpc-status", "99")]), "status 99"),
        (answers(OK, message(b"answer")), "status missing"),
        (answers(OK, b"", [("grpc-status", "0")]), "INTERNAL: .*not one message"),
        (answers(OK, message(b"a") + message(b"b"), [("grpc-status", "0")]), "INTERNAL: .*not one message"),
        (answers(OK, message(b"a", compressed=True), [("grpc-status", "0")]), "without compression"),
        (answers(OK, message(bytes(1001)), [("grpc-status", "0")]), "RESOURCE_EXHAUSTED: .*more than 1000 bytes"),
        (answers([(":status", "404")], b"no such page"), "UNAVAILABLE: the server answered HTTP 404"),
        (says_http_1, "UNAVAILABLE: the server closed the connection"),
        (says_an_odd_frame, "INTERNAL: the answer is not HTTP/2"),
        (lambda stream: None, "^UNAVAILABLE"),
    ],
)
def test_what_is_no_answer_says_why(tmp_path: Path, serve: Callable[[socket.socket], None], says: str) -> None:
    path = tmp_path / "s"
    with server(path, serve), pytest.raises(CallFailed, match=says):
        asked(path)


def test_a_server_that_says_something_now_and_then_is_left_in_time(tmp_path: Path) -> None:
    """A limit for each read alone would never end the call."""
    is_over = threading.Event()

    def serve(stream: socket.socket) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        while not is_over.wait(0.02):
            connection.ping(b"01234567")
            try:
                stream.sendall(connection.data_to_send())
            except OSError:
                return

    path = tmp_path / "s"
    with server(path, serve):
        try:
            with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
                asked(path, timeout_s=0.3)
        finally:
            is_over.set()


@given(bytes_sent=st.binary(max_size=300), is_framed=st.booleans())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_an_answer_or_a_failed_call(tmp_path: Path, bytes_sent: bytes, is_framed: bool) -> None:
    """`is_framed`: after an honest beginning, so that frames and header blocks are made up too."""
    beginning = b"\0\0\0\4\0\0\0\0\0" if is_framed else b""  # an empty SETTINGS frame

    def serve(stream: socket.socket) -> None:
        stream.sendall(beginning + bytes_sent)
        stream.shutdown(socket.SHUT_WR)

    path = tmp_path / "s"
    with server(path, serve), pytest.raises(CallFailed):
        asked(path)
