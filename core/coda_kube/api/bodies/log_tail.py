"""The end of a stream: a log of any size takes no more memory than twice what is kept of it."""

from __future__ import annotations

import aiohttp

CHUNK_BYTES = 1 << 16


async def last_bytes(stream: aiohttp.StreamReader, keep_bytes: int) -> bytes:
    """Read to the end, and return the last `keep_bytes`."""
    kept = bytearray()
    async for chunk in stream.iter_chunked(CHUNK_BYTES):
        kept += chunk
        if len(kept) > 2 * keep_bytes:
            del kept[:-keep_bytes]
    return bytes(kept[-keep_bytes:])
