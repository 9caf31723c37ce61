"""Objects over a socket between two processes of one agent: a length of four bytes, then a pickle."""

from __future__ import annotations

import pickle
import socket
from typing import Any

_HEADER = 4


def message_of(content: object) -> bytes:
    """Return the bytes that carry `content`."""
    body = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_HEADER, "big") + body


def content_of(received: bytes | bytearray) -> Any | None:
    """Return what one whole message carries; None while a part of it is missing."""
    if len(received) < _HEADER or len(received) < _HEADER + int.from_bytes(received[:_HEADER], "big"):
        return None
    return pickle.loads(received[_HEADER:])  # noqa: S301  both sides are the agent


def read_message(source: socket.socket) -> Any | None:
    """Return what the next message carries, and wait for it; None once the other side is closed."""
    received = bytearray()
    while (content := content_of(received)) is None:
        piece = source.recv(1 << 16)
        if not piece:
            return None
        received += piece
    return content
