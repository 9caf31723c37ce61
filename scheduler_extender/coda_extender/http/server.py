"""The servers of one extender: the verbs behind mutual TLS, and probes and metrics on a port of their own.

Whoever reaches the verbs' port may begin a handshake, so handshakes are limited in number and time. The oldest gives
way once it has had time for an honest one. A flood of them delays new connections; the scheduler's open one, the caches
and the Lease go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from coda_extender.http.connections import Connection
from coda_extender.http.tls import ServerTls

log = logging.getLogger(__name__)

HANDSHAKES: Final = 128
HANDSHAKE_S: Final = 2.0
"""Our choice: kube-scheduler itself waits for 1 s at most, and a handshake takes some milliseconds."""

HANDSHAKE_LEAST_S: Final = 0.1
"""Our choice. The client of TLS 1.3 may send its request before the handshake has ended here. If it gives way then,
that request is lost, and kube-scheduler does not send it again. 128 in 0.1 s are still 1280 silent clients per second.
"""

BACKLOG: Final = 2048
TRIM_EVERY_S: Final = 5.0
TRIM_AFTER: Final = 64
"""Connections. OpenSSL's memory of ended ones lies between pieces in use, 1 MiB for 200; a scheduler has one or two.
Requests of 6 MiB leave more, on few connections: so the end of every flood counts, too."""

_ROOM_S: Final = 0.02  # until the oldest handshake is judged again
_NO_FILES_S: Final = 0.05  # a pause while the process may open no more files


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: more than the port is closed at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class TrimTimes:
    """When it is worth giving memory back: while many connections come, and once when they come and go no more."""

    def __init__(self) -> None:
        self._seen = self._at_trim = (0, 0)

    def is_due(self, begun: int, open_now: int) -> bool:
        """Return whether memory is to be given back now. `begun`: connections so far. Asked at equal intervals."""
        seen, self._seen = self._seen, (begun, open_now)
        is_quiet, many = self._seen == seen, begun - self._at_trim[0] >= TRIM_AFTER
        if self._seen == self._at_trim or not (is_quiet or many):
            return False
        self._at_trim = self._seen
        return True


@dataclass(frozen=True, slots=True)
class _Handshake:
    connection: socket.socket
    began_s: float  # the loop's time

    def has_bytes(self) -> bool:
        """True if the client has sent what is not read yet: then the delay is this server's."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


class VerbServer(Server):
    """Serves what is accepted on `listening`, behind `tls` if there is any. `refused` is called with each reason."""

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, tls: ServerTls | None, refused: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._listening = listening
        self._tls = tls
        self._refused = refused
        self._greeting: dict[asyncio.Task[None], _Handshake] = {}  # oldest first
        self._greeting_ended = asyncio.Event()
        self._greeted = 0
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await self.lifespan.startup()
        self.servers = []
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._tasks = asyncio.create_task(self._accept()), asyncio.create_task(self._give_memory_back())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let the open connections end."""
        tasks = [*self._tasks, *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets=[self._listening])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                self._refused("no_files")
                log.debug("accept: %s", error)
                await asyncio.sleep(_NO_FILES_S)
                continue
            await self._make_room()
            self._greeted += 1
            task = asyncio.create_task(self._greet(connection))
            self._greeting[task] = _Handshake(connection, loop.time())
            task.add_done_callback(self._end_greeting)

    async def _make_room(self) -> None:
        """Wait until one more handshake may begin, and end the oldest one whose client has had its time."""
        while len(self._greeting) >= HANDSHAKES:
            self._greeting_ended.clear()
            if (slow := self._slow_handshake()) is not None:
                slow.cancel()
                self._refused("crowded")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._greeting_ended.wait(), _ROOM_S)

    def _slow_handshake(self) -> asyncio.Task[None] | None:
        """The oldest one for whose client this server waits, unless it has just begun."""
        until_s = asyncio.get_running_loop().time() - HANDSHAKE_LEAST_S
        begun = itertools.takewhile(lambda item: item[1].began_s <= until_s, self._greeting.items())
        return next((task for task, handshake in begun if not handshake.has_bytes()), None)

    def _end_greeting(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)
        self._greeting_ended.set()

    async def _greet(self, connection: socket.socket) -> None:
        loop, protocol = asyncio.get_running_loop(), self._protocol()
        more: Mapping[str, Any] = {}
        if self._tls is not None:
            more = {"ssl": self._tls.context, "ssl_handshake_timeout": HANDSHAKE_S}
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, **more)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            error.__traceback__ = None  # it leads to a future of asyncio's that holds this error
            self._refused("no_certificate")
            self._let_go(protocol, connection)
        except asyncio.CancelledError:
            self._let_go(protocol, connection)
            raise

    def _let_go(self, protocol: Connection, connection: socket.socket) -> None:
        """End what never became a connection, and leave no circle: old garbage is hidden from the collector."""
        protocol.let_go()
        connection.close()

    async def _give_memory_back(self) -> None:
        """After a flood, as free() alone does not."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl has none and keeps less
        times = TrimTimes()
        while trim is not None:
            await asyncio.sleep(TRIM_EVERY_S)
            if times.is_due(self._greeted, len(self.server_state.connections)):
                await asyncio.to_thread(trim, 0)

    def _protocol(self) -> Connection:
        made = self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn calls it
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        assert isinstance(made, Connection)
        return made
