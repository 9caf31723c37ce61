"""A thin client of the API server: raw JSON in and out, one method per verb.

`credentials` finds the server and the identity. The model classes of the `kubernetes` package are not used, because to
build them for 5000 pods takes seconds. Errors become Coda's: `Conflict`, `Outage`, or `Rejected` for a request that can
never succeed as it is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson
from aiohttp.http_exceptions import LineTooLong

from coda.errors import Conflict, Outage
from coda_kube.api.bodies.errors import AlreadyExists as AlreadyExists
from coda_kube.api.bodies.errors import Expired as Expired
from coda_kube.api.bodies.errors import NotFound as NotFound
from coda_kube.api.bodies.errors import NotServed as NotServed
from coda_kube.api.bodies.errors import Rejected as Rejected
from coda_kube.api.bodies.errors import TooBusy as TooBusy
from coda_kube.api.bodies.errors import TooSlow as TooSlow
from coda_kube.api.bodies.errors import error_from_answer as error_from_answer
from coda_kube.api.bodies.json_text import read_json
from coda_kube.api.bodies.log_tail import last_bytes
from coda_kube.api.credentials import find_access, new_session, proxy_for
from coda_kube.api.steady_clock import SteadyClock
from coda_kube.api.watching.patience import first_answer
from coda_kube.objects.json_types import Json

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"

LONGEST_RETRY_AFTER_S = 60.0  # our choice: a longer wait that a server asks for is not believed
_CLOSING_TURNS = 20  # of the loop; a handful are needed
_SMALLER_PAGES = 3  # our choice: so often a page that takes too long is tried in the usual time
LONGEST_PAGE_S = 60.0  # our choice: what a page may take before its first byte at an API server that is slow as a whole
ITEMS_AT_ONCE = 200  # our choice: a parsed pod is 40 KiB, and memory for a thousand of them is not freed soon


class Client:
    """One API server and one identity. `connect` makes it; the tasks of one event loop may share it."""

    _timeout_s = 5.0
    _slow_pages_s: Mapping[str, float] = MappingProxyType({})  # by path: what a page may take before its first byte

    def __init__(self, configuration: Any, *, timeout_s: float = _timeout_s) -> None:
        self._open: aiohttp.ClientSession | None = None
        self._configuration = configuration
        self._timeout_s = timeout_s
        self._server = configuration.host.rstrip("/")
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.clock = SteadyClock()  # the API server's time

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """GET the object or list at `path`."""
        return await self._call("GET", path, query)

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        """POST `body` to the collection `path`. Raises AlreadyExists."""
        return await self._call("POST", path, query, body)

    async def replace(self, path: str, body: Json) -> Json:
        """PUT `body`. Raises Conflict if it has a resourceVersion that is not the newest."""
        return await self._call("PUT", path, None, body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        """PATCH with a merge patch, or another kind of patch by its content type."""
        return await self._call("PATCH", path, None, body, content_type)

    async def apply(self, path: str, body: Json, *, manager: str, timeout_s: float | None = None) -> Json:
        """Server-side apply as `manager`, taking its fields by force. A resourceVersion in `body` is a precondition.

        `timeout_s`: for the whole request; None: as every other.

        The schema still prunes and checks `body`. But the API server is not asked to warn of unknown fields, which
        nobody would read: it then parses `body` once and not twice, which saves 5 % of a status write."""
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Ignore"}
        return await self._call("PATCH", path, query, body, APPLY, timeout_s)

    async def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        """DELETE in the background; no error if it is gone already. With `uid`, never another object of that name."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", path, None, options)
        except NotFound:
            return
        except Conflict:
            if uid is None:  # with a uid: ours is gone, and another object has its name
                raise

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, page: int = ITEMS_AT_ONCE
    ) -> AsyncIterator[Json]:
        """The collection as lists of at most `page` items, all of one resourceVersion.

        A page that takes too long is asked for again at half the size: with items as large as can be, 200 are 280 MB.
        If that does not help, the API server is slow whatever is asked, or was silent: then one request gets
        `LONGEST_PAGE_S`, and others beside it the usual time. What a page has really taken, the next ones get at once.
        Raises Expired if that version is too old for the next page."""
        wanted = dict(query or {}) | {"limit": str(page)}
        while True:
            answer = await self._page(path, wanted)
            wanted["continue"] = answer["metadata"].get("continue") or ""
            yield answer
            if not wanted["continue"]:
                return

    async def _page(self, path: str, wanted: dict[str, str]) -> Json:
        """Return the page that `wanted` asks for, and set there the limit with which it came."""

        async def ask(limit_s: float) -> Json:
            return await self._call("GET", path, wanted, None, None, limit_s)

        now_s = asyncio.get_running_loop().time
        for _ in range(_SMALLER_PAGES):
            started_s = now_s()
            try:
                answer = await ask(min(LONGEST_PAGE_S, self._slow_pages_s.get(path, self._timeout_s)))
            except TooSlow:
                self._note_page(path, 0.0)
                wanted["limit"] = str(max(1, int(wanted["limit"]) // 2))
                continue
            if 2 * (now_s() - started_s) <= self._timeout_s:
                self._note_page(path, 0.0)
            return answer
        answer, took_s = await first_answer(ask, quick_s=self._timeout_s, patient_s=LONGEST_PAGE_S)
        if took_s > 0:
            self._note_page(path, took_s)
        return answer

    def _note_page(self, path: str, took_s: float) -> None:
        """Give the next page twice what this one took, or with 0 the usual time."""
        if took_s > 0:
            self._slow_pages_s = {**self._slow_pages_s, path: max(self._timeout_s, 2 * took_s)}
        elif path in self._slow_pages_s:
            self._slow_pages_s = {known: limit_s for known, limit_s in self._slow_pages_s.items() if known != path}

    async def newest_version(self, path: str) -> int:
        """The newest resourceVersion there is, by a consistent read of a collection."""
        first = await anext(self.pages(path, page=1))
        return int(first["metadata"]["resourceVersion"])

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        """The resourceVersion that an object of the collection `path` had at that version; None: there was none.

        `key`: `namespace/name`, or the name alone. One key is read. Raises Expired for what is forgotten already."""
        namespace, _, name = key.rpartition("/")
        if namespace and "/namespaces/" not in path:
            collection, _, plural = path.rpartition("/")
            path = f"{collection}/namespaces/{namespace}/{plural}"
        query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": str(version)}
        answer = await anext(self.pages(path, query | {"resourceVersionMatch": "Exact"}))
        versions = [int(item["metadata"]["resourceVersion"]) for item in answer.get("items") or ()]
        return versions[0] if versions else None

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> Json:
        """The whole collection as one list, read in pages. Its metadata is that of the last page."""
        items: list[Json] = []
        metadata: Json = {}
        async for answer in self.pages(path, query, page):
            items += answer.get("items") or []
            metadata = answer["metadata"]
        return {"metadata": metadata, "items": items}

    async def tail(self, path: str, query: Mapping[str, str], *, keep_bytes: int, limit_s: float) -> bytes:
        """The last bytes of a text of any length, such as a log. `limit_s`: for the whole answer."""
        try:
            session, headers = await self._session()
            timeout = aiohttp.ClientTimeout(limit_s)
            async with session.get(self._server + path, params=query, headers=headers, timeout=timeout) as response:
                await _raise_for(response)
                return await last_bytes(response.content, keep_bytes)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Outage(f"GET {path}: {str(error) or f'no answer within {limit_s:g} s'}") from error

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        """The events of a watch, until the server ends it. Raises Outage after `idle_s` without a byte."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=idle_s)
        try:
            session, headers = await self._session()
            async with session.get(
                self._server + path, params={**query, "watch": "true"}, headers=headers, timeout=timeout
            ) as response:
                await _raise_for(response)
                try:
                    yield _events(response)
                finally:
                    _abort(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Outage(f"watch of {path}: {str(error) or type(error).__name__}") from error

    async def connection(self) -> dict[str, Any]:
        """All that another library needs to reach the same server as the same identity, in kopf's words."""
        configuration = self._configuration
        token = await configuration.get_api_key_with_prefix("BearerToken")
        return {
            "server": self._server,
            "ca_path": configuration.ssl_ca_cert,
            "insecure": not configuration.verify_ssl,
            "certificate_path": configuration.cert_file,
            "private_key_path": configuration.key_file,
            "scheme": token.split(" ", 1)[0] if token else None,
            "token": token.split(" ", 1)[1] if token else None,
            "proxy_url": configuration.proxy,
        }

    @property
    def server(self) -> str:
        """Its URL."""
        return str(self._server)

    async def new_session(self, **options: Any) -> aiohttp.ClientSession:
        """Return connections of another library to the same server as the same identity. `options`: as ClientSession's.

        The identity is that of now: a new session is due when the server does not know it any more."""
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        headers = {"Authorization": token} if token else {}
        return new_session(self._configuration, headers=headers, **options)

    async def close(self) -> None:
        """Close the connections."""
        if self._open is not None:
            await self._open.close()
        await self._closed()

    async def _closed(self) -> None:
        """Wait until every socket is closed, which takes the loop a few turns.

        After a request without an answer, a proper TLS shutdown would wait for the silent server for half a minute."""
        for left in [one for one in self._sockets if one.fileno() >= 0]:
            with suppress(OSError):
                left.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0)
            if all(one.fileno() < 0 for one in self._sockets):
                return

    async def _session(self) -> tuple[aiohttp.ClientSession, dict[str, str]]:
        if self._open is None:
            self._open = new_session(self._configuration, opened=self._sockets.add)
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return self._open, {"Authorization": token} if token else {}

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any = None,
        content_type: str | None = None,
        timeout_s: float | None = None,
    ) -> Json:
        try:
            session, headers = await self._session()
            headers |= {"Content-Type": content_type or "application/json", "Accept": "application/json"}
            async with session.request(
                method,
                self._server + path,
                params=query,
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=self._timeout(timeout_s or self._timeout_s, is_list="limit" in (query or {})),
            ) as response:
                self.clock.observe(response.headers.get("Date"))
                await _raise_for(response)
                answer: Json = await read_json(await response.read())
                return answer
        except aiohttp.SocketTimeoutError as error:
            raise TooSlow(f"{method} {path}: {str(error) or type(error).__name__}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:  # a wrong certificate is a ValueError, too
            raise Outage(f"{method} {path}: {str(error) or type(error).__name__}") from error
        except ValueError as error:
            raise Outage(f"{method} {path}: the answer is not JSON: {str(error)[:200]}") from error

    def _timeout(self, limit_s: float, *, is_list: bool) -> aiohttp.ClientTimeout:
        """A page may be long: it counts as lost once nothing more comes. All else has one limit."""
        if is_list:
            return aiohttp.ClientTimeout(connect=self._timeout_s, sock_read=limit_s)
        return aiohttp.ClientTimeout(limit_s)


async def connect(kubeconfig: str | None = None, *, timeout_s: float = 5.0, context: str | None = None) -> Client:
    """Return a client from `kubeconfig`, else the pod's service account, else the user's kubeconfig.

    `context`: one of the kubeconfig, instead of its current one.
    Its proxy is the kubeconfig's `proxy-url`, else the one that the environment names now. Raises InvalidInput."""
    configuration = await find_access(kubeconfig, context)
    configuration.proxy = configuration.proxy or proxy_for(configuration.host, os.environ)
    return Client(configuration, timeout_s=timeout_s)


def _abort(response: aiohttp.ClientResponse) -> None:
    """Drop the connection of a finished watch: a proper TLS shutdown would outlive the client."""
    transport = response.connection.transport if response.connection is not None else None
    if transport is not None:
        transport.abort()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """Raises Expired for a line that is not an event: a part of one, or longer than any object (`LINE_BYTES`). A list
    has no such limit."""
    try:
        async for line in response.content:
            if line.strip():
                yield await read_json(line)
    except (LineTooLong, ValueError) as error:
        raise Expired(f"an event cannot be read: {str(error)[:200]}") from error


def _retry_after_s(header: str | None) -> float:
    """Seconds, as the API server says them; 0 for a date or anything else."""
    text = (header or "").strip()
    return min(float(text), LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdecimal() else 0.0


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    if response.status >= 300:
        retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
        raise error_from_answer(response.status, await response.text(), response.reason or "", retry_after_s)
