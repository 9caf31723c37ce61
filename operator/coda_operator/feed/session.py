"""kopf's connection to the API server, which reads what kopf alone could not.

kopf parses with `json`, which stops at about a thousand levels: one job nested deeper would end every list and watch of
all jobs. It also gives up a list that takes longer than a request may. Here, what is nested too deeply is cut out, and
an answer may be long as long as it arrives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from coda_kube.api.bodies.json_text import read_json, shallow
from coda_kube.api.client import Client
from coda_operator.feed.lean_kopf import kopf


class ReadableResponse(aiohttp.ClientResponse):
    """A response in which every object can be parsed by `json`."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head; the lines of a watch are made readable as they come."""
        await super().start(connection)
        if self.status < 300 and "watch" in self.url.query:
            self.content: Any = _ReadableLines(self.content)
        return self

    async def json(self, **options: Any) -> Any:
        """Parse the body."""
        if self.status >= 300:
            return await super().json(**options)
        return await read_json(await self.read())


class _ReadableLines:
    """The lines of a watch, as `kopf` asks for them."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        """All else is the content's own: aiohttp asks it when the response is closed."""
        return getattr(self._content, name)

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        try:
            async for line in self._content:
                event = await read_json(line)
                yield orjson.dumps(shallow(event)[0]) + b"\n"
        except ValueError as error:  # half a line, or one longer than any object: kopf lists again
            raise aiohttp.ClientPayloadError(str(error)[:200]) from error


class _Session:
    """Connections for kopf, whose lists count as lost only once nothing more comes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.headers = session.headers

    @property
    def closed(self) -> bool:
        return self._session.closed

    async def close(self) -> None:
        await self._session.close()

    async def request(self, *, timeout: aiohttp.ClientTimeout, **options: Any) -> aiohttp.ClientResponse:
        if options["method"].lower() == "get" and timeout.total:
            timeout = aiohttp.ClientTimeout(connect=timeout.total, sock_read=timeout.total)
        return await self._session.request(timeout=timeout, **options)


class Connections:
    """The connections of one run of kopf, which does not always close them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sessions: list[aiohttp.ClientSession] = []

    async def log_in(self) -> kopf.AiohttpSession:
        """Return connections to the server of the client, as its identity."""
        self._sessions = [session for session in self._sessions if not session.closed]
        self._sessions.append(await self._client.new_session(response_class=ReadableResponse))
        session: Any = _Session(self._sessions[-1])
        return kopf.AiohttpSession(server=self._client.server, aiohttp_session=session)

    async def close(self) -> None:
        """Close all of them."""
        for session in self._sessions:
            await session.close()
