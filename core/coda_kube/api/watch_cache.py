"""Caches that list and watch keep up to date.

A `WatchCache` holds every object of one collection and calls one listener for each change. It survives all that an API
server does: it lists again when its place in the stream is gone, and reconnects with a growing delay. Our own writes
are `put` at once, so no decision works on a state older than the last write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from coda.errors import Outage
from coda_kube.api.client import Client, Expired, Rejected
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

SERVER_TIMEOUT_S = 30  # the server ends a watch after this; the next one continues there
IDLE_TIMEOUT_S = 35.0  # after this time without a byte, the connection counts as dead
_DELAYS_S = (0.1, 0.3, 1.0)
_TOMBSTONES = 10_000

Listener = Callable[[Json | None, Json | None], None]
"""Called with (old, new): old is None for a new object, new is None for one that is gone."""


def key_of(item: Mapping[str, Any]) -> str:
    """`namespace/name`, or only the name of an object without namespace."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def version_of(item: Mapping[str, Any]) -> int:
    """The resourceVersion as a number. Comparable within one kind (KEP-5504)."""
    return int(item["metadata"].get("resourceVersion") or 0)


class WatchCache:
    """Every object at `path`, by `key_of`. `run` keeps it up to date; `synced` is set after the first list.

    `in_touch` is cleared from the break of a watch until the next one runs: changes in between are not seen. `on_break`
    is called when a watch breaks, and at each failed try to start the next one."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        listener: Listener | None = None,
        on_break: Callable[[], None] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        self.by_key: dict[str, Json] = {}
        self.synced = asyncio.Event()
        self.in_touch = asyncio.Event()
        self.in_touch.set()
        self._client = client
        self._path = path
        self._query = dict(query or {})
        self._listener = listener
        self._on_break = on_break
        self._seen_until: str | None = None  # the resourceVersion from which to watch; None: list first
        self._gone: dict[str, int] = {}  # key -> version of a deletion: a late answer cannot bring the object back

    def put(self, item: Json) -> None:
        """Set an object from the answer to a write of our own. Ignored if it is older than the known one."""
        self._set(item)

    def drop(self, item: Json) -> None:
        """Remove an object whose deletion was seen elsewhere."""
        self._drop(key_of(item), version_of(item))

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        failures = 0
        while True:
            try:
                if self._seen_until is None:
                    self._seen_until = await self._list()
                await self._watch(self._seen_until)
                failures = 0
            except Expired as expired:
                self._break()
                log.info("%s: %s; listing again", self._path, expired)
                self._seen_until = None
                await asyncio.sleep(_DELAYS_S[0])
            except (Outage, Rejected) as error:
                self._break()
                delay_s = _DELAYS_S[min(failures, len(_DELAYS_S) - 1)]
                if failures == 0 or isinstance(error, Rejected):
                    log.warning("%s: %s; trying again in %.1f s", self._path, error, delay_s)
                failures += 1
                await asyncio.sleep(delay_s)

    def _break(self) -> None:
        self.in_touch.clear()
        if self._on_break is not None:
            self._on_break()

    async def _list(self) -> str:
        version = ""
        present = set()
        async for page in self._client.pages(self._path, self._query):
            version = str(page["metadata"]["resourceVersion"])
            for item in page.get("items") or ():
                present.add(key_of(item))
                self._set(item)
        for key in [key for key in self.by_key if key not in present]:
            # An object that is newer than the list comes from our own write: the watch reports its deletion.
            if version_of(self.by_key[key]) <= int(version):
                self._drop(key, int(version))
        self.synced.set()
        return version

    async def _watch(self, version: str) -> None:
        query = self._query | {
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(SERVER_TIMEOUT_S),
        }
        async with self._client.watch(self._path, query, idle_s=IDLE_TIMEOUT_S) as events:
            self.in_touch.set()
            async for event in events:
                item = event["object"]
                if event["type"] == "ERROR":
                    if item.get("code") == 410:
                        raise Expired(str(item.get("message")))
                    raise Outage(str(item.get("message")))
                version = item["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    self._drop(key_of(item), int(version))
                elif event["type"] != "BOOKMARK":
                    self._set(item)
                self._seen_until = version  # after a break, the next watch continues here

    def _set(self, item: Json) -> None:
        item["metadata"].pop("managedFields", None)
        key, version = key_of(item), version_of(item)
        old = self.by_key.get(key)
        if version <= self._gone.get(key, -1) or (old is not None and version <= version_of(old)):
            return
        self.by_key[key] = item
        self._call_listener(old, item)

    def _drop(self, key: str, version: int) -> None:
        old = self.by_key.get(key)
        if old is not None and version_of(old) > version:
            return  # an old deletion, reported again: a newer object has the name
        self._gone.pop(key, None)
        self._gone[key] = version
        if len(self._gone) > _TOMBSTONES:
            del self._gone[next(iter(self._gone))]
        if self.by_key.pop(key, None) is not None:
            self._call_listener(old, None)

    def _call_listener(self, old: Json | None, new: Json | None) -> None:
        if self._listener is None:
            return
        try:
            self._listener(old, new)
        except Exception:  # one object that cannot be read must not end the watch of the others
            log.exception("%s: %s could not be taken over", self._path, key_of(new or old or {}))
