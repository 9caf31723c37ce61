"""An emulated machine's file trees on a unix socket: one JSON line in, one out, for each file operation.

One event loop answers and advances time, so no operation meets another half done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from coda_agent.host.files import Files, Tree

TREES: Final = ("proc", "cgroup", "resctrl")
MOST_LINE_BYTES: Final = 1 << 22

_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "read": lambda tree, path, most_bytes: tree.read_text(path, most_bytes=most_bytes),
    "write": lambda tree, path, text: tree.write(path, text),
    "listdir": lambda tree, path: tree.listdir(path),
    "directories": lambda tree, path: tree.directories(path),
    "mkdir": lambda tree, path: tree.mkdir(path),
    "rmdir": lambda tree, path: tree.rmdir(path),
    "rename": lambda tree, old, new: tree.rename(old, new),
    "exists": lambda tree, path: tree.exists(path),
}


@asynccontextmanager
async def serving(files: Files, socket: Path, before: Callable[[], None]) -> AsyncIterator[None]:
    """While the block lasts, serve the trees of `files` on `socket`, relative to the working folder, because such paths
    must be short. `before` is called before each operation.
    """
    writers: set[asyncio.StreamWriter] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while line := await reader.readline():
                before()
                writer.write(answer(files, line))
                await writer.drain()
        except ConnectionError:
            return  # the agent was killed
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_unix_server(converse, path=str(socket), limit=MOST_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.close()


def answer(files: Files, line: bytes) -> bytes:
    """The answer to one request: the result of the operation, or the kernel's errno and words."""
    name, operation, arguments = json.loads(line)
    if name not in TREES or operation not in _OPERATIONS:
        raise AssertionError(f"{operation} on {name} is no operation on a tree")
    tree: Tree = getattr(files, name)
    try:
        told: dict[str, Any] = {"is": _OPERATIONS[operation](tree, *arguments)}
    except OSError as error:
        told = {"errno": error.errno, "says": error.strerror}
    return json.dumps(told).encode() + b"\n"
