"""Who is answered on the verbs' port: clients with a certificate of Coda's authority, also while it is renewed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from coda.errors import InvalidInput
from coda_extender.http.connections import Connection, ConnectionLimits, OpenConnections, connections_of
from coda_extender.http.server import HANDSHAKES, TRIM_AFTER, TrimTimes, VerbServer
from coda_extender.http.tls import ServerTls
from coda_kube.certificates import SERVER_NAME, KeyPair, new_authority, new_leaf
from tests.extender.asgi import APP
from tests.extender.http.test_connections import Client

AUTHORITY = new_authority(time.time())


def write(folder: Path, pair: KeyPair, authority: KeyPair = AUTHORITY) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.certificate)):
        (folder / name).write_bytes(content)
    return folder


def client_context(folder: Path, pair: KeyPair | None, authority: KeyPair = AUTHORITY) -> ssl.SSLContext:
    """As kube-scheduler's; without a pair it shows no certificate."""
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.certificate)
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if pair is not None:
        write(folder, pair, authority)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def leaf(*, serves: bool, authority: KeyPair = AUTHORITY, now_s: float | None = None) -> KeyPair:
    return new_leaf(authority, serves=serves, now_s=time.time() if now_s is None else now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    port: int
    tls: ServerTls
    folder: Path
    refused: Counter[str]
    clients: list[Client]

    async def connect(self, context: ssl.SSLContext | None) -> Client:
        name = SERVER_NAME if context is not None else None
        reached = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
        self.clients.append(Client(*reached))
        return self.clients[-1]

    async def is_answered(self, context: ssl.SSLContext | None) -> bool:
        """True if a right request gets its answer."""
        try:
            client = await self.connect(context)
            return (await client.ask()).startswith(b"HTTP/1.1 200")
        except (OSError, asyncio.IncompleteReadError):
            return False


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    folder = write(tmp_path / "server", leaf(serves=True))
    async with serving(folder) as found:
        yield found


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Served]:
    refused: Counter[str] = Counter()
    connections = OpenConnections(ConnectionLimits(), lambda reason: refused.update([reason]))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    tls = ServerTls(folder)
    config = uvicorn.Config(APP, http=connections_of(connections), ws="none", lifespan="off", log_config=None)
    server = VerbServer(config, listening, tls, lambda reason: refused.update([reason]))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    clients: list[Client] = []
    try:
        yield Served(port=listening.getsockname()[1], tls=tls, folder=folder, refused=refused, clients=clients)
    finally:
        for client in clients:
            with contextlib.suppress(OSError):
                await client.close()
        server.should_exit = True
        server.force_exit = True
        await task


async def test_the_scheduler_is_answered(served: Served, tmp_path: Path) -> None:
    assert await served.is_answered(client_context(tmp_path / "client", leaf(serves=False)))


async def test_nobody_else_is_answered(served: Served, tmp_path: Path) -> None:
    other = new_authority(time.time())
    strangers = {
        "plain": None,
        "no certificate": client_context(tmp_path / "a", None),
        "the server's own": client_context(tmp_path / "b", leaf(serves=True)),
        "over": client_context(tmp_path / "c", leaf(serves=False, now_s=time.time() - 365 * 86_400)),
    }
    stranger = client_context(tmp_path / "d", leaf(serves=False, authority=other), other)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    strangers["another authority"] = stranger
    for who, context in strangers.items():
        assert not await served.is_answered(context), who
    assert served.refused["no_certificate"] == len(strangers)
    assert await served.is_answered(client_context(tmp_path / "client", leaf(serves=False)))


async def test_a_renewed_certificate_is_taken_up_and_open_connections_go_on(served: Served, tmp_path: Path) -> None:
    context = client_context(tmp_path / "client", leaf(serves=False))
    before = await served.connect(context)
    assert await before.ask() == b"HTTP/1.1 200 OK"
    old = before.certificate()
    write(served.folder, leaf(serves=True))
    served.tls.look()
    after = await served.connect(context)
    assert after.certificate() != old
    assert await after.ask() == await before.ask() == b"HTTP/1.1 200 OK"


async def test_files_that_do_not_fit_together_change_nothing(served: Served, tmp_path: Path) -> None:
    context = client_context(tmp_path / "client", leaf(serves=False))
    (served.folder / "tls.key").write_bytes(leaf(serves=True).key)
    served.tls.look()
    assert await served.is_answered(context)
    write(served.folder, leaf(serves=True))
    served.tls.look()
    assert await served.is_answered(context)


async def test_a_flood_of_silent_connections_keeps_out_neither_old_nor_new(served: Served, tmp_path: Path) -> None:
    context = client_context(tmp_path / "client", leaf(serves=False))
    before = await served.connect(context)
    assert await before.ask() == b"HTTP/1.1 200 OK"
    for _ in range(3 * HANDSHAKES):
        await served.connect(None)
    assert await before.ask() == b"HTTP/1.1 200 OK"
    assert await served.is_answered(context)
    assert served.refused["crowded"] >= HANDSHAKES


async def test_a_handshake_that_has_just_begun_gives_way_to_nobody(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of TLS 1.3 sends its request when its own side has ended; it would get no answer."""
    for limit in ("HANDSHAKE_LEAST_S", "HANDSHAKE_S"):
        monkeypatch.setattr(f"coda_extender.http.server.{limit}", 60.0)
    began = socket.create_connection(("127.0.0.1", served.port))
    for _ in range(3 * HANDSHAKES):
        await served.connect(None)
    context = client_context(tmp_path / "client", leaf(serves=False))
    scheduler = Client(*await asyncio.open_connection(sock=began, ssl=context, server_hostname=SERVER_NAME))
    served.clients.append(scheduler)
    assert await scheduler.ask() == b"HTTP/1.1 200 OK"
    assert served.refused["crowded"] == 0


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="CODA_TLS_DIR"):
        ServerTls(tmp_path)


async def test_a_connection_that_is_never_made_leaves_nothing_to_collect(served: Served) -> None:
    """The extender hides old objects from the garbage collector: a circle among them would stay for ever."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.close()
        assert served.refused["no_certificate"] == 5
        assert not [kept for kept in gc.get_objects() if isinstance(kept, Connection)]
    finally:
        gc.enable()


def test_memory_is_given_back_during_a_flood_and_once_after_it() -> None:
    times, many = TrimTimes(), TRIM_AFTER
    assert not times.is_due(0, 0)
    assert not times.is_due(1, 1)  # kube-scheduler comes
    assert times.is_due(1, 1)
    assert not times.is_due(1, 1)
    assert times.is_due(1 + many, many)
    assert not times.is_due(2 + many, many)
    assert times.is_due(2 + many, many)
    assert not times.is_due(2 + many, 1)  # all others have gone
    assert times.is_due(2 + many, 1)
    assert not times.is_due(2 + many, 1)
