"""An API server in memory, behind the methods of `Client`: versions, conflicts, apply with owners, list and watch.

Faithful where Coda depends on it: every write makes a new resourceVersion, a write that changes nothing makes none, an
apply removes what its manager owned and no longer sends, and preconditions on uid and resourceVersion are kept.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from coda.errors import Conflict, Outage
from coda_kube.api.client import JSON_PATCH, MERGE, AlreadyExists, Client, Expired, NotFound, error_from_answer
from coda_kube.api.steady_clock import SteadyClock
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER

_PATH = re.compile(
    r"^(?P<group>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?$"
)
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
NO_MORE = "Cannot evict pod as it would violate the pod's disruption budget."
Key = tuple[str, str, str]  # plural, namespace, name


class Call(NamedTuple):
    """One request, as hooks see it."""

    verb: str
    path: str
    body: Any


class Backup(NamedTuple):
    """The data of a server at one moment."""

    version: int
    items: dict[Key, Json]
    log: list[tuple[int, str, Key, Json]]


class FakeApi(Client):
    """One server. `before` runs before each request and may raise, or write something first."""

    def __init__(self) -> None:
        self.clock = SteadyClock()
        self.version = 0
        self.calls: list[Call] = []
        self.before: Callable[[Call], None] | None = None
        self._items: dict[Key, Json] = {}
        self._owned: dict[tuple[Key, str], set[str]] = {}  # status fields by object and field manager
        self._co_owned: dict[Key, set[str]] = {}  # status fields that another manager owns too
        self._log: list[tuple[int, str, Key, Json]] = []  # version, event, key, object
        self._changed = asyncio.Condition()
        self._compacted = 0
        self._started_at = 0  # the version at which the server started: watches from before begin again
        self._restarts = 0

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

    def reset_managers(self, path: str) -> None:
        """Do what `{"metadata": {"managedFields": [{}]}}` does: all that is there gets one more owner at the next
        apply."""
        key = self._key(path)
        self._co_owned[key] = set(self._items[key].get("status", {}))

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

    def backup(self) -> Backup:
        """The data now. They must not change any more."""
        return Backup(self.version, dict(self._items), list(self._log))

    def restart(self, backup: Backup | None = None) -> None:
        """End every watch, and go on with the data now or of a backup. Versions count on from there."""
        if backup is not None:
            self.version, self._items, self._log = backup.version, dict(backup.items), list(backup.log)
        self._restarts += 1
        self._started_at = self.version
        self._wake()

    async def until(self, true: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until `true()`, looked at after each change. The limit is for busy machines."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(true)

    def writes(self, verb: str = "apply") -> list[Call]:
        """The writes so far of one verb."""
        return [call for call in self.calls if call.verb == verb]

    # --- Client ------------------------------------------------------------------------------------------------------

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        if path.startswith("/openapi"):
            raise error_from_answer(404, "404 page not found\n")
        await self._enter("get", path, query)
        return self.item(path) if self._key(path) in self._items else self._missing(path)

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        await self._enter("create", path, body)
        if path.endswith("/eviction"):
            return self._evict(path.removesuffix("/eviction"), body["deleteOptions"])
        if self._key(path, body["metadata"]["name"]) in self._items:
            raise AlreadyExists(409, "AlreadyExists", f"{path}/{body['metadata']['name']} already exists")
        return copy.deepcopy(self.set(path, body))

    async def replace(self, path: str, body: Json) -> Json:
        await self._enter("replace", path, body)
        self._check(path, body["metadata"])
        return copy.deepcopy(self._store(self._key(path), copy.deepcopy(body)))

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        await self._enter("patch", path, body)
        if content_type == JSON_PATCH:
            return self._json_patch(path, body)
        self._check(path, body.get("metadata") or {})
        return copy.deepcopy(self.change(path, lambda item: _merge(item, body)))

    async def apply(self, path: str, body: Json, *, manager: str, timeout_s: float | None = None) -> Json:
        await self._enter("apply", path, body)
        if "status" not in body:  # a whole object, of one writer
            if "resourceVersion" in body["metadata"]:
                self._check(path, body["metadata"])
            return copy.deepcopy(self.set(path.rpartition("/")[0], body))
        self._check(path, body["metadata"])
        key = self._key(path)
        item = copy.deepcopy(self._items[key])
        status = item.setdefault("status", {})
        owned = self._owned.get((key, manager), set())
        for field in owned - body["status"].keys() - self._co_owned.get(key, set()):
            status.pop(field, None)
        status.update(copy.deepcopy(body["status"]))
        self._co_owned.setdefault(key, set()).difference_update(body["status"])
        self._owned[key, manager] = set(body["status"])
        return copy.deepcopy(self._store(key, item))

    async def delete(self, path: str, *, uid: str | None = None, grace_s: int | None = None) -> None:
        await self._enter("delete", path, None)
        key = self._key(path)
        if key in self._items and uid in (None, self._items[key]["metadata"]["uid"]):
            self.remove(path)

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> AsyncIterator[Json]:
        yield await self.list_pages(path, query)

    async def version_at(self, path: str, key: str, version: int) -> int | None:
        await self._enter("get", path, key)
        if version < self._compacted:
            raise Expired(f"resourceVersion {version} is compacted")
        namespace, _, name = key.rpartition("/")
        wanted, found = (self._key(path)[0], namespace, name), None
        for number, event, each, _item in self._log:
            if each == wanted and number <= version:
                found = None if event == "DELETED" else number
        return found

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
        restarts = self._restarts
        while True:
            if restarts != self._restarts:
                raise Outage("the server went away")
            if version < max(self._compacted, self._started_at):
                raise Expired(f"resourceVersion {version} is too old")
            for number, event, key, item in list(self._log):
                if number > version and self._within(path, key):
                    yield {"type": event, "object": copy.deepcopy(item)}
            version = max(version, self.version)
            async with self._changed:
                seen = version
                await self._changed.wait_for(
                    lambda: self.version > seen or restarts != self._restarts  # noqa: B023 - called before `seen` changes
                )

    def _evict(self, path: str, options: Json) -> Json:
        """As eviction.go of Kubernetes 1.36: pods that have not begun, or end already, are in nobody's budget."""
        pod = self._items.get(self._key(path)) or self._missing(path)
        is_trial = options.get("dryRun") == ["All"]
        self._check(path, options.get("preconditions") or {})
        counts = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        budgets = [key for key in sorted(self._items) if counts and _protects(key, self._items[key], pod)]
        if len(budgets) > 1:
            raise error_from_answer(500, json.dumps({"message": TWO_BUDGETS, "code": 500}))
        for _, namespace, name in budgets:
            budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"
            found = self.item(budget)["status"]
            if not found["disruptionsAllowed"]:
                healthy = f"needs {found['desiredHealthy']} healthy pods and has {found['currentHealthy']} currently"
                cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} {healthy}"}
                answer = {"reason": "TooManyRequests", "message": NO_MORE, "details": {"causes": [cause]}, "code": 429}
                raise error_from_answer(429, json.dumps(answer))
            if not is_trial:
                self.change(budget, _use_up_one)
        if not is_trial:
            self.change(path, lambda item: _end(item, options.get("gracePeriodSeconds")))
        return {"kind": "Status", "status": "Success", "code": 201}

    def _key(self, path: str, name: str | None = None) -> Key:
        match = _PATH.match(path)
        assert match, path
        return match["plural"], match["namespace"] or "", name or match["name"] or ""

    def _within(self, path: str, key: Key) -> bool:
        plural, namespace, _ = self._key(path)
        return key[0] == plural and namespace in ("", key[1])

    def _json_patch(self, path: str, operations: list[Json]) -> Json:
        """Tests of the metadata, a resourceVersion as a condition, and removals from the status."""
        wanted = {op["path"].rpartition("/")[2]: op["value"] for op in operations if op["op"] != "remove"}
        self._check(path, wanted)
        gone = [op["path"].rpartition("/")[2] for op in operations if op["op"] == "remove"]

        def remove(item: Json) -> None:
            for name in gone:
                del item["status"][name]

        return copy.deepcopy(self.change(path, remove))

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
        self._wake()

    def _wake(self) -> None:
        self._tasks = {task for task in getattr(self, "_tasks", set()) if not task.done()}
        self._tasks.add(asyncio.get_running_loop().create_task(self._notify()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _protects(key: Key, item: Json, pod: Json) -> bool:
    """True for a disruption budget that the pod is in."""
    if key[:2] != ("poddisruptionbudgets", pod["metadata"]["namespace"]):
        return False
    labels = pod["metadata"].get("labels") or {}
    return bool(item["spec"]["selector"]["matchLabels"].items() <= labels.items())


def _end(pod: Json, grace_s: int | None) -> None:
    """Delete a pod gracefully. One that ends already may only be given less time, and only by who says how much."""
    metadata = pod["metadata"]
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        own_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        metadata["deletionGracePeriodSeconds"] = own_s if grace_s is None else grace_s
    elif grace_s is not None:
        known_s = metadata.get("deletionGracePeriodSeconds", grace_s)
        metadata["deletionGracePeriodSeconds"] = min(grace_s, known_s)


def _use_up_one(budget: Json) -> None:
    budget["status"]["disruptionsAllowed"] -= 1


def _merge(into: Json, patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            listed = name.removeprefix("$deleteFromPrimitiveList/")
            into[listed] = [entry for entry in into.get(listed) or () if entry not in value]
        elif value is None:
            into.pop(name, None)
        elif isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def _selects(selector: str, item: Json) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if name.startswith("!"):
            if name[1:] in labels:
                return False
        elif name not in labels or (equals and labels[name] != value):
            return False
    return True
