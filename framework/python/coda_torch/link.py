"""The socket to the coordinator on the node: one connection per process, a thread that hears, sends that never wait."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any, Callable, Mapping

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
PACKET = 65536
IDLE_S = 1.0
SILENT_S = 30.0
"""After so long without a word an agent hangs: it repeats its orders every 10 s. Our choice."""


class Link:
    """Connects, hears, and connects again, for as long as the process lives. Nothing here raises.

    greet: what to say first; obey: called with each packet; idle: called about once a second"""

    def __init__(
        self,
        path: str,
        greet: Callable[[], Mapping[str, Any]],
        obey: Callable[[bytes], None],
        idle: Callable[[], None],
        silent_s: float = SILENT_S,
    ) -> None:
        self._path, self._silent_s = path, silent_s
        self._greet, self._obey, self._idle = greet, obey, idle
        self._socket: socket.socket | None = None
        self._heard_s: float | None = None  # the last word on this connection
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coda", daemon=True)

    @property
    def is_up(self) -> bool:
        """An agent is at the other end, and lives: one that hangs has a socket, too."""
        heard_s = self._heard_s
        return self._socket is not None and heard_s is not None and time.monotonic() - heard_s < self._silent_s

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send, or lose it: a full or dead socket must not cost time. True if it went out."""
        connection = self._socket
        if connection is None:
            return False
        try:
            connection.send(_packet(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (OSError, ValueError):
            return False
        return True

    def end(self) -> None:
        """Stop before the interpreter does: it must not find this thread inside of torch, on a busy machine either."""
        self._ending.set()
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10.0)

    def leave(self) -> None:
        """In a forked child: close its copy of the socket. The connection stays the parent's."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._ending.is_set():
            connection = self._connect()
            if connection is not None:
                wait_s = FIRST_WAIT_S
                self._listen(connection)
                self._socket = None
                connection.close()
            self._rest(wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            hello = _packet(self._greet())  # before: the agent must not wait for it
            connection.connect(self._path)
            connection.send(hello, socket.MSG_NOSIGNAL)
        except Exception:  # torch may raise anything while it greets; the script must not see it
            connection.close()
            return None
        self._socket, self._heard_s = connection, None
        return connection

    def _listen(self, connection: socket.socket) -> None:
        looked_s = time.monotonic()
        ready = select.poll()  # select.select takes no descriptor above 1023
        ready.register(connection, select.POLLIN)
        while not self._ending.is_set():
            try:
                if ready.poll(int(1e3 * IDLE_S)):
                    packet = connection.recv(PACKET)
                    if not packet:
                        return
                    self._heard_s = time.monotonic()
                    self._obey(packet)
            except (OSError, ValueError):
                return
            if time.monotonic() - looked_s >= IDLE_S:
                looked_s = time.monotonic()
                self._idle()

    def _rest(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while not self._ending.wait(min(IDLE_S, max(0.0, end_s - time.monotonic()))):
            self._idle()
            if time.monotonic() >= end_s:
                return


def _packet(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
