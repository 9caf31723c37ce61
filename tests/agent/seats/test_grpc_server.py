"""The server against gRPC's own client, and against clients that are none. Sockets are real."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.errors import Outage
from coda_agent.gpus.unary_call import CallFailed, call
from coda_agent.seats.grpc_server import (
    MOST_CALLS,
    MOST_CONNECTIONS,
    MOST_REQUEST_BYTES,
    GrpcServer,
    Refusal,
    Refused,
    Service,
)

PATIENCE_S = 300.0
_T = TypeVar("_T")


def shout(request: bytes) -> bytes:
    if request == b"no":
        raise Refused(Refusal.FAILED_PRECONDITION, "not today, 100 %\n")
    return request.upper()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GrpcServer]:
    made = GrpcServer(tmp_path / "p.sock", Service(calls={"/x/Shout": shout}, watch="/x/Watch"))
    await made.start()
    yield made
    made.stop()


def aside(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """Clients wait in a thread of their own."""
    return asyncio.get_running_loop().run_in_executor(None, work)


def ask(server: GrpcServer, request: bytes, method: str = "/x/Shout") -> asyncio.Future[bytes]:
    return aside(lambda: call(server.path, method, request, timeout_s=PATIENCE_S, most_bytes=1 << 20))


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():
            await asyncio.sleep(0.001)


def channel_to(server: GrpcServer) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{server.path}", options=[("grpc.use_local_subchannel_pool", 1)])


async def test_it_answers_grpcs_own_client_and_the_agents(server: GrpcServer) -> None:
    assert await ask(server, b"abc") == b"ABC"
    with channel_to(server) as channel:
        long = b"x" * (MOST_REQUEST_BYTES - 5)
        assert await aside(lambda: channel.unary_unary("/x/Shout")(long, timeout=PATIENCE_S)) == long.upper()


async def test_a_refusal_arrives_with_its_sentence(server: GrpcServer) -> None:
    with channel_to(server) as channel, pytest.raises(grpc.RpcError) as refused:
        await aside(lambda: channel.unary_unary("/x/Shout")(b"no", timeout=PATIENCE_S))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == "not today, 100 %\n"


async def test_a_method_that_is_not_there_and_a_request_that_is_too_long(server: GrpcServer) -> None:
    with pytest.raises(CallFailed, match="UNIMPLEMENTED"):
        await ask(server, b"", "/x/Sing")
    with channel_to(server) as channel, pytest.raises(grpc.RpcError) as refused:
        await aside(lambda: channel.unary_unary("/x/Shout")(b"x" * (1 << 20), timeout=PATIENCE_S))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await ask(server, b"abc") == b"ABC"


async def test_who_watches_is_told_what_is_and_what_becomes(server: GrpcServer) -> None:
    server.publish(b"first")
    with channel_to(server) as channel:
        stream = channel.unary_stream("/x/Watch")(b"", timeout=PATIENCE_S)
        assert await aside(lambda: next(stream)) == b"first"
        assert server.watchers == 1
        server.publish(b"second" * 9000)  # more than a frame
        assert await aside(lambda: next(stream)) == b"second" * 9000
        stream.cancel()
        await until(lambda: server.watchers == 0)


async def test_who_does_not_read_is_told_the_newest_once_it_reads(server: GrpcServer) -> None:
    """It gives a window of 65 535 bytes, and no more until the end."""
    h2, stream = await watcher(server)
    with closing(stream):
        for number in range(100):
            server.publish(bytes([number]) * 40_000)
        assert server.watchers == 1
        received = await frames(h2, stream, 5 + 40_005)
        assert received[10:] == bytes(40_000)  # after an empty message the first alone had room
        h2.increment_flow_control_window(1 << 20)
        h2.increment_flow_control_window(1 << 20, 1)
        stream.sendall(h2.data_to_send())
        assert (await frames(h2, stream, 40_005))[5:] == bytes([99]) * 40_000


async def watcher(server: GrpcServer) -> tuple[H2Connection, socket.socket]:
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(server.path))
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/x/Watch"), (":authority", "x")]
    h2.send_headers(1, headers)
    h2.send_data(1, bytes(5), end_stream=True)
    stream.sendall(h2.data_to_send())
    await until(lambda: server.watchers == 1)
    return h2, stream


async def frames(h2: H2Connection, stream: socket.socket, wanted: int) -> bytes:
    """That many bytes of data; the window stays as it is."""
    found = b""
    while len(found) < wanted:
        for event in h2.receive_data(await aside(lambda: stream.recv(1 << 16))):
            data = getattr(event, "data", None)
            if isinstance(data, bytes) and hasattr(event, "flow_controlled_length"):
                found += data
    return found


async def test_connections_are_bounded_and_one_that_ends_makes_room(server: GrpcServer) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(MOST_CONNECTIONS)]
    for one in idle:
        one.connect(str(server.path))
    for one in idle:
        assert await aside(lambda one=one: one.recv(9))  # type: ignore[misc]  # it was admitted
    with pytest.raises(CallFailed):
        await ask(server, b"abc")
    for one in idle:
        one.close()

    async def answered() -> bool:
        try:
            return await ask(server, b"abc") == b"ABC"
        except CallFailed:
            return False

    async with asyncio.timeout(PATIENCE_S):
        while not await answered():
            await asyncio.sleep(0.001)


async def test_more_calls_than_are_allowed_end_the_connection_alone(server: GrpcServer) -> None:
    h2, stream = await watcher(server)
    with closing(stream):
        h2.remote_settings.max_concurrent_streams = 1000
        headers = [(":method", "POST"), (":scheme", "http"), (":path", "/x/Watch"), (":authority", "x")]
        for number in range(MOST_CALLS + 1):
            h2.send_headers(3 + 2 * number, headers)
        stream.sendall(h2.data_to_send())
        await until(lambda: server.watchers == 0)
    assert await ask(server, b"abc") == b"ABC"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=300), st.booleans())
async def test_no_bytes_do_harm(server: GrpcServer, words: bytes, after_a_preface: bool) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(server.path))
        if after_a_preface:
            h2 = H2Connection(H2Configuration(client_side=True))
            h2.initiate_connection()
            stream.sendall(h2.data_to_send())
        stream.sendall(words)
        stream.shutdown(socket.SHUT_WR)
        await aside(lambda: drained(stream))
    assert await ask(server, b"abc") == b"ABC"


def drained(stream: socket.socket) -> None:
    try:
        while stream.recv(1 << 16):
            pass
    except ConnectionError:
        return


async def test_a_socket_that_a_killed_process_left_is_replaced(server: GrpcServer, tmp_path: Path) -> None:
    path = tmp_path / "stale.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    other = GrpcServer(path, server.service)
    await other.start()
    assert await ask(other, b"abc") == b"ABC"
    other.stop()
    assert not path.exists()


async def test_the_second_of_two_agents_takes_nothing_from_the_first(server: GrpcServer) -> None:
    second = GrpcServer(server.path, server.service)
    with pytest.raises(Outage, match=r"another program serves .*p\.sock"):
        await second.start()
    second.stop()
    assert server.is_there
    assert await ask(server, b"abc") == b"ABC"


async def test_a_socket_that_somebody_removed_or_replaced_is_not_its_own(server: GrpcServer) -> None:
    server.path.unlink()
    assert not server.is_there
    await server.start()
    assert server.is_there
    server.path.unlink()
    server.path.write_text("another's")
    server.stop()
    assert server.path.read_text() == "another's"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The kernel gives this process none, whatever it has."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


async def test_without_a_descriptor_for_its_socket_it_says_so(server: GrpcServer, tmp_path: Path) -> None:
    other = GrpcServer(tmp_path / "q.sock", server.service)
    with no_descriptors(), pytest.raises(Outage, match=r"q\.sock: no socket can be made there \(Too many open files\)"):
        await other.start()
    await other.start()
    assert await ask(other, b"abc") == b"ABC"
    other.stop()


async def test_a_folder_that_became_read_only_does_not_keep_it_from_ending(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        server.stop()
        assert server.path.exists()
        with pytest.raises(Outage, match="Read-only file system"):
            await server.start()
    await server.start()
    assert await ask(server, b"abc") == b"ABC"
