"""A transport that sends head and body of an answer in one piece. Knows nothing of what is in them.

uvicorn writes them one after the other, and uvloop hands each write to the kernel at once: two system calls here, and
two for kube-scheduler to read, which costs more than finding the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites(asyncio.Transport):
    """`inner`, but for writes, which wait for `flush` or `close`, or for the end of this turn of the event loop."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send this soon, after what was written before."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(bytes(data))

    def flush(self) -> None:
        """Send now what was written so far; on a connection that was lost meanwhile there is nobody to send it to."""
        pieces, self._pieces = self._pieces, []
        if pieces and not self._inner.is_closing():
            self._inner.write(b"".join(pieces))

    def close(self) -> None:
        """Send what was written, and close."""
        self.flush()
        self._inner.close()

    def abort(self) -> None:
        """Close, whatever was written."""
        self._pieces.clear()
        self._inner.abort()

    def is_closing(self) -> bool:
        """True once it is closed, or about to be."""
        return self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """The bytes that nobody has taken yet."""
        return self._inner.get_write_buffer_size() + sum(map(len, self._pieces))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known about the connection."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._inner.resume_reading()
