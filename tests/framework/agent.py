"""An agent that a test plays for a job in the same process: one connection, and no loop."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

PATIENCE_S = 20


class Agent:
    """Listens at a path. Whatever does not come within `PATIENCE_S` fails the test."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(4)
        self._listening.settimeout(PATIENCE_S)
        self._connection: socket.socket | None = None

    def accept(self) -> None:
        """Take the next connection."""
        self._connection, _ = self._listening.accept()
        self._connection.settimeout(PATIENCE_S)

    def hear(self) -> Any:
        """The next message."""
        assert self._connection is not None
        return json.loads(self._connection.recv(1 << 16))

    def say(self, packet: bytes) -> None:
        assert self._connection is not None
        self._connection.send(packet)

    def order(self, number: int, **fields: Any) -> None:
        self.say(json.dumps({"v": 1, "type": "order", "id": number, **fields}).encode())

    def hang_up(self) -> None:
        """As one that ends. The next one listens already."""
        if self._connection is not None:
            self._connection.close()

    def close(self) -> None:
        self._listening.close()
        self.hang_up()
