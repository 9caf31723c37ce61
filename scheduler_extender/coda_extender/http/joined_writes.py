"""A transport that sends the head and the body of an answer in one piece.

uvicorn writes one after the other, and the event loop gives each write to the kernel at once. That is two system calls
here and two in kube-scheduler, which cost more than the answer itself.
"""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites(asyncio.Transport):
    """As `inner`, but writes wait for `flush`, `close`, or the end of this turn of the event loop."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send this soon, after all earlier writes."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(bytes(data))

    def flush(self) -> None:
        """Send all writes so far, unless the connection was lost meanwhile."""
        pieces, self._pieces = self._pieces, []
        if pieces and not self._inner.is_closing():
            self._inner.write(b"".join(pieces))

    def close(self) -> None:
        """Send all writes, and close."""
        self.flush()
        self._inner.close()

    def abort(self) -> None:
        """Close, and drop all writes that were not sent."""
        self._pieces.clear()
        self._inner.abort()

    def is_closing(self) -> bool:
        """True once it is closed, or about to be."""
        return self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """The bytes that the client has not received yet."""
        return self._inner.get_write_buffer_size() + sum(map(len, self._pieces))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The transport's own facts about the connection."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._inner.resume_reading()
