"""A coordinator that a test plays by hand: it hears all processes, and orders what the test says."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Message = Mapping[str, Any]


class Boss:
    """Listens at a path, as the agent does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self.connections: list[socket.socket] = []
        self.heard: list[Message] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path.unlink(missing_ok=True)
        self._listening.bind(str(path))
        self._listening.listen(16)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """As when the agent is killed."""
        for one in (self._listening, *self.connections):
            one.close()
        self.connections.clear()
        self._path.unlink(missing_ok=True)

    def order(self, **fields: Any) -> int:
        """Send an order to everybody; return its number."""
        self._number += 1
        packet = json.dumps({"v": 1, "type": "order", "id": self._number, **fields}).encode()
        for one in self.connections:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just ended
                one.send(packet)
        return self._number

    def send_raw(self, packet: bytes) -> None:
        for one in self.connections:
            one.send(packet)

    def until(self, holds: Callable[[Message], bool], timeout_s: float = 60) -> Message:
        """Hear messages until one is as wanted. Fails if none comes."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            for message in self.hear(0.5):
                if holds(message):
                    return message
        raise AssertionError(f"nothing like that was said; the last words were {self.heard[-3:]}")

    def hear(self, seconds: float) -> list[Message]:
        """What is said within the time, or sooner."""
        said = []
        for one in select.select([self._listening, *self.connections], [], [], seconds)[0]:
            if one is self._listening:
                self.connections.append(self._listening.accept()[0])
                continue
            packet = one.recv(65536)
            if not packet:
                self.connections.remove(one)
                one.close()
                continue
            said.append(json.loads(packet))
        self.heard += said
        return said


def device_mib(message: Message) -> int:
    return sum(int(gpu["device"]) >> 20 for gpu in message.get("gpus", ()))


def host_mib(message: Message) -> int:
    return sum(int(gpu["host"]) >> 20 for gpu in message.get("gpus", ()))
