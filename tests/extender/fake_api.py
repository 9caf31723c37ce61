"""An API server in memory, behind the methods of `Client`: versions, conflicts, apply with owners, list and watch.

Faithful where Coda depends on it: every write makes a new resourceVersion, a write that changes nothing makes none, an
apply removes what its manager owned and no longer sends, and preconditions on uid and resourceVersion are kept.
"""

from __future__ import annotations

import asyncio
import copy
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from coda.errors import Conflict
from coda_kube.api.client import MERGE, AlreadyExists, Client, Expired, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER

_PATH = re.compile(
    r"^(?P<group>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?$"
)
Key = tuple[str, str, str]  # plural, namespace, name


class Call(NamedTuple):
    """One request, as hooks see it."""

    verb: str
    path: str
    body: Any


class FakeApi(Client):
    """One server. `before` runs before each request and may raise, or write something first."""

    def __init__(self) -> None:
        self.version = 0
        self.calls: list[Call] = []
        self.before: Callable[[Call], None] | None = None
        self._items: dict[Key, Json] = {}
        self._owned: dict[tuple[Key, str], set[str]] = {}  # status fields by object and field manager
        self._log: list[tuple[int, str, Key, Json]] = []  # version, event, key, object
        self._changed = asyncio.Condition()
        self._compacted = 0

    # --- what a test does as somebody else ---------------------------------------------------------------------------

    def set(self, path: str, item: Mapping[str, Any]) -> Json:
        """Write an object as it is, creating it if need be; the extender's fields count as written by the extender."""
        key = self._key(path, str(item["metadata"]["name"]))
        new = copy.deepcopy(dict(item))
        old = self._items.get(key)
        new["metadata"].setdefault("uid", old["metadata"]["uid"] if old else str(uuid.uuid4()))
        if key[1]:
            new["metadata"]["namespace"] = key[1]
        self._owned[key, EXTENDER] = {"placement", "pending"} & new.get("status", {}).keys()
        return self._store(key, new)

    def change(self, path: str, mutate: Callable[[Json], None]) -> Json:
        """Change an object in place, as another writer would."""
        key = self._key(path)
        item = copy.deepcopy(self._items[key])
        mutate(item)
        return self._store(key, item)

    def remove(self, path: str) -> None:
        """Delete an object."""
        key = self._key(path)
        item = copy.deepcopy(self._items.pop(key))
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._record("DELETED", key, item)

    def item(self, path: str) -> Json:
        """The object at `path` now."""
        return copy.deepcopy(self._items[self._key(path)])

    def compact(self) -> None:
        """Forget the history, so that watches must start over."""
        self._log.clear()
        self._compacted = self.version

    async def until(self, true: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait until `true()`, looked at after each change."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(true)

    def writes(self, verb: str = "apply") -> list[Call]:
        """The writes so far of one verb."""
        return [call for call in self.calls if call.verb == verb]

    # --- Client ------------------------------------------------------------------------------------------------------

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        await self._enter("get", path, query)
        return self.item(path) if self._key(path) in self._items else self._missing(path)

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        await self._enter("create", path, body)
        if self._key(path, body["metadata"]["name"]) in self._items:
            raise AlreadyExists(409, "AlreadyExists", f"{path}/{body['metadata']['name']} already exists")
        return copy.deepcopy(self.set(path, body))

    async def replace(self, path: str, body: Json) -> Json:
        await self._enter("replace", path, body)
        self._check(path, body["metadata"])
        return copy.deepcopy(self._store(self._key(path), copy.deepcopy(body)))

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        await self._enter("patch", path, body)
        self._check(path, body.get("metadata") or {})
        return copy.deepcopy(self.change(path, lambda item: _merge(item, body)))

    async def apply(self, path: str, body: Json, *, manager: str) -> Json:
        await self._enter("apply", path, body)
        self._check(path, body["metadata"])
        key = self._key(path)
        item = copy.deepcopy(self._items[key])
        status = item.setdefault("status", {})
        owned = self._owned.get((key, manager), set())
        for field in owned - body["status"].keys():
            status.pop(field, None)
        status.update(copy.deepcopy(body["status"]))
        self._owned[key, manager] = set(body["status"])
        return copy.deepcopy(self._store(key, item))

    async def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        await self._enter("delete", path, None)
        key = self._key(path)
        if key in self._items and uid in (None, self._items[key]["metadata"]["uid"]):
            self.remove(path)

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> AsyncIterator[Json]:
        yield await self.list_pages(path, query)

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> Json:
        await self._enter("list", path, query)
        wanted = (query or {}).get("labelSelector", "")
        items = [
            item for key, item in sorted(self._items.items()) if self._within(path, key) and _selects(wanted, item)
        ]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": copy.deepcopy(items)}

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        await self._enter("watch", path, query)
        yield self._events(path, int(query["resourceVersion"]))

    async def close(self) -> None:
        return

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _enter(self, verb: str, path: str, body: Any) -> None:
        await asyncio.sleep(0)  # a request always lets others run
        call = Call(verb, path, copy.deepcopy(body))
        self.calls.append(call)
        if self.before is not None:
            self.before(call)

    async def _events(self, path: str, version: int) -> AsyncIterator[Json]:
        while True:
            if version < self._compacted:
                raise Expired(f"resourceVersion {version} is too old")
            for number, event, key, item in list(self._log):
                if number > version and self._within(path, key):
                    yield {"type": event, "object": copy.deepcopy(item)}
            version = max(version, self.version)
            async with self._changed:
                seen = version
                await self._changed.wait_for(lambda: self.version > seen)  # noqa: B023 - called before `seen` changes

    def _key(self, path: str, name: str | None = None) -> Key:
        match = _PATH.match(path)
        assert match, path
        return match["plural"], match["namespace"] or "", name or match["name"] or ""

    def _within(self, path: str, key: Key) -> bool:
        plural, namespace, _ = self._key(path)
        return key[0] == plural and namespace in ("", key[1])

    def _missing(self, path: str) -> Json:
        raise NotFound(404, "NotFound", f"{path} not found")

    def _check(self, path: str, metadata: Mapping[str, Any]) -> None:
        item = self._items.get(self._key(path)) or self._missing(path)
        for field in ("uid", "resourceVersion"):
            if metadata.get(field) not in (None, item["metadata"][field]):
                raise Conflict(f"{path}: {field} is {item['metadata'][field]}, not {metadata[field]}")

    def _store(self, key: Key, item: Json) -> Json:
        old = self._items.get(key)
        if old is not None:
            item["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if old == item:
                return old
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._items[key] = item
        self._record("MODIFIED" if old is not None else "ADDED", key, copy.deepcopy(item))
        return item

    def _record(self, event: str, key: Key, item: Json) -> None:
        self._log.append((self.version, event, key, item))
        self._tasks = {task for task in getattr(self, "_tasks", set()) if not task.done()}
        self._tasks.add(asyncio.get_running_loop().create_task(self._notify()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _merge(into: Json, patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def _selects(selector: str, item: Json) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True
