"""Caches that list and watch keep up to date.

A `WatchCache` holds every object of one collection and calls one listener for each change. It survives all that an API
server does: it lists again when its place in the stream is gone, and reconnects with a growing delay. Our own writes
are `put` at once, so no decision works on a state older than the last write. An object that cannot be read is left out
alone until it changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from coda.errors import Outage
from coda_kube.api.bodies.json_text import CutJson
from coda_kube.api.client import Client, Expired, NotServed, Rejected
from coda_kube.api.history import history_of
from coda_kube.api.retry_pauses import ListPauses, ended_at_once, pause_s, spread_s
from coda_kube.api.watching.standstill import Standstill
from coda_kube.api.watching.tombstones import Tombstones
from coda_kube.api.watching.unreadable import Unreadable
from coda_kube.objects.json_types import Json
from coda_kube.say_again import SayAgain

log = logging.getLogger(__name__)

SERVER_TIMEOUT_S = 30  # the server ends a watch after this; the next one continues there
IDLE_TIMEOUT_S = 35.0  # after this time without a byte, the connection counts as dead
CALM_WATCH_S = (300, 600)  # for thousands of watchers, which need no news of an outage: chosen at random between these
CALM_IDLE_S = 90.0  # the server sends a bookmark every minute
MISSING_S = 10.0  # between two looks for a kind that the server does not know
ABSENT_AFTER = 4  # such answers in a row: one API server of several may lack a kind for a moment, or a proxy answers
WITHOUT_AFTER = 3  # failures in a row, a second or two: then the program goes on without a kind that may be missing
SAY_AGAIN_S = 60.0  # a refusal stays one until somebody mends the roles
SHORT_S = 1.0  # a watch that ends sooner fails, though cleanly
STEADY_S = 30.0  # a watch that lasted this long ends a row of failures

Listener = Callable[[Json | None, Json | None], None]
"""Called with (old, new): old is None for a new object, new is None for one that is gone."""


def key_of(item: Mapping[str, Any]) -> str:
    """`namespace/name`, or only the name of an object without namespace."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return sys.intern(f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"]))  # many maps have it


def version_of(item: Mapping[str, Any]) -> int:
    """The resourceVersion as a number. Comparable within one kind (KEP-5504)."""
    return int(item["metadata"].get("resourceVersion") or 0)


def metadata_only(item: Mapping[str, Any]) -> Json:
    """What a cache itself needs of an object."""
    metadata = item["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion")
    return {"metadata": {name: metadata[name] for name in names if name in metadata}}


class WatchCache:
    """Every object at `path`, by `key_of`. `run` keeps it up to date; `synced` is set after the first list.

    `in_touch` is cleared from the break of a watch until the next one runs: changes in between are not seen. `on_break`
    is called when a watch breaks, and at each failed try to start the next one. `held_part` is asked what
    to hold of an object after the listener: itself, its metadata, or None; then the listener hears no more of it.
    `unreadable` says, by key, which objects could not be read, or not as a whole. `is_calm`: one of thousands of
    watchers: a longer watch, later news of an outage, and pauses at random."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        listener: Listener | None = None,
        on_break: Callable[[], None] | None = None,
        on_restored: Callable[[], None] | None = None,
        query: Mapping[str, str] | None = None,
        held_part: Callable[[Json], Json | None] = lambda item: item,
        is_calm: bool = False,
        may_be_missing: bool = False,
        tells_edits: bool = False,
    ) -> None:
        """`on_restored`: called before a list of another history than the known one, as after a restored backup.
        `may_be_missing`: nobody waits for this kind. The API server may not know it: then there are no objects. If it
        does not let us read it, it counts as synced after `WITHOUT_AFTER` failures, and comes when it can.
        `tells_edits`: objects keep their `managedFields`, which say when they were edited."""
        self.by_key: dict[str, Json] = {}
        self.unreadable = Unreadable(path, SayAgain())
        self.synced = asyncio.Event()
        self.in_touch = asyncio.Event()
        self.in_touch.set()
        self.touched_s = 0.0  # when that was set again, by the loop's time
        self._client = client
        self._path = path
        self._query = dict(query or {})
        self._listener = listener
        self._on_break = on_break
        self._held_part = held_part
        self._on_restored = on_restored
        self._is_calm, self._may_be_missing, self._tells_edits = is_calm, may_be_missing, tells_edits
        self._watched_s = 0.0  # how long the last watch lasted
        self._refused, self._broken = SayAgain(every_s=SAY_AGAIN_S), SayAgain()
        self._history = history_of(client)
        self._era = self._history.era  # of the last list that was read to its end
        self._newest = 0  # the newest version seen
        self._seen_until: str | None = None  # the resourceVersion from which to watch; None: list first
        self._gone = Tombstones()
        self._standstill = Standstill(client, path, self._query, self.by_key)

    @property
    def plural(self) -> str:
        """The kind of its objects, as in paths."""
        return self._path.rsplit("/", 1)[-1]

    def put(self, item: Json) -> None:
        """Set an object from the answer to a write of our own. Ignored if it is older than the known one."""
        self._set(item)

    def drop(self, item: Json) -> None:
        """Remove an object whose deletion was seen elsewhere."""
        self._drop(key_of(item), version_of(item))

    def forget(self, key: str) -> None:
        """Hold an object no more. It comes back only in a newer version."""
        held = self.by_key.pop(key, None)
        self._gone.bury(key, version_of(held) if held is not None else 0, has_ended=False)

    def put_again(self, item: Json, *, listed_at: int | None = None) -> None:
        """Set an object that was just read, also one that was forgotten in this version."""
        self._gone.lift(key_of(item), version_of(item))
        self._set(item, listed_at=listed_at)

    @property
    def newest(self) -> int:
        """The newest version seen: a consistent read that is asked for now is not older."""
        return self._newest

    def put_list(self, listing: Json, known: int) -> int:
        """Set what a consistent list of a part of the collection has, and return its version. It wins over all that is
        not newer: a restored backup brings back what was seen to end, maybe before this cache notices.

        `known`: `newest` before the list was asked for. Raises Outage if the list is older: another history has begun,
        which is read as a whole first."""
        version = int(listing["metadata"]["resourceVersion"])
        if version < known:
            if self._era == self._history.era:
                self._history.begin(version)
            raise Outage(f"{self._path}: the API server's data come from a backup, and are not read yet")
        for item in listing["items"]:
            self.put_again(item, listed_at=version)
        return version

    def forget_ends(self) -> None:
        """What was dropped or forgotten may come back in any version."""
        self._gone.clear()

    def forget_all(self) -> None:
        """Forget every object, silently. For a cache that is filled by `put`."""
        self.by_key.clear()
        self.unreadable.clear()
        self._gone.clear()

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        failures = absences = 0
        pauses = ListPauses()
        while True:
            try:
                if not self.in_touch.is_set():
                    await self._verify_history()
                if self._seen_until is None:
                    with pauses.of_a_list():
                        self._seen_until = await self._list()
                absences = 0
                self.unreadable.say_again()
                await self._watch(self._seen_until)
                is_short = self._watched_s < SHORT_S
                failures = await self._pause(failures, ended_at_once(failures)) if is_short else 0
            except Expired as expired:
                self._break()
                delay_s = pauses.before_the_next() + (spread_s() if self._is_calm else 0.0)
                log.info("%s: %s; listing again in %.1f s", self._path, expired, delay_s)
                self._seen_until = None
                await asyncio.sleep(delay_s)
            except (Outage, Rejected) as error:
                absences = absences + 1 if isinstance(error, NotServed) else 0
                if isinstance(error, NotServed) and self._may_be_missing:
                    await self._wait_for_the_kind(absences, error)
                else:
                    failures = await self._pause(failures, error)
            except Exception as error:  # whatever an answer says, the other caches go on, and this one tries again
                if failures == 0:
                    log.exception("%s: an error of our own; listing again", self._path)
                self._seen_until = None
                failures = await self._pause(failures, Outage(str(error)))

    async def _wait_for_the_kind(self, absences: int, error: NotServed) -> None:
        """After so many answers in a row that the kind is not known. What is known goes with it only once they repeat,
        and comes back with it in any version."""
        if absences < ABSENT_AFTER:
            self._break()
            delay_s = MISSING_S if self.by_key else pause_s(absences - 1, 0.0, is_calm=self._is_calm)
            log.info("%s: %s; looking again in %.1f s", self._path, error, delay_s)
            await asyncio.sleep(delay_s)
            return
        self._seen_until = None
        if self.by_key or not self.synced.is_set():
            log.info("%s: this API server does not know it; looking again every %.0f s", self._path, MISSING_S)
        for key, held in [*self.by_key.items()]:
            del self.by_key[key]
            self._call_listener(held, None)
        self.synced.set()
        self.in_touch.set()
        await asyncio.sleep(MISSING_S)

    async def _pause(self, failures: int, error: Outage | Rejected) -> int:
        self._break()
        broke = self._watched_s > 0.0
        if self._watched_s >= STEADY_S:
            failures = 0
        self._watched_s = 0.0
        retry_after_s = error.retry_after_s if isinstance(error, Outage) else 0.0
        delay_s = pause_s(failures, retry_after_s, is_calm=self._is_calm)
        if self._is_calm and broke:  # so did all other watches of that server
            delay_s += spread_s()
        said = self._refused if isinstance(error, Rejected) else self._broken
        if said.is_due() or failures == 0:
            log.warning("%s: %s; trying again in %.1f s", self._path, error, delay_s)
        if self._may_be_missing and failures >= WITHOUT_AFTER and not self.synced.is_set():
            log.warning("%s: going on without it; apply the definitions and roles of this version", self._path)
            self.synced.set()
        await asyncio.sleep(delay_s)
        return failures + 1

    def _break(self) -> None:
        self.in_touch.clear()
        if self._on_break is not None:
            self._on_break()

    async def _list(self) -> str:
        version, era, is_restored = "", self._history.era, False
        present = set()
        async for page in self._client.pages(self._path, self._query):
            if not version:
                version = str(page["metadata"]["resourceVersion"])
                era, is_restored = self._begin_list(int(version))
            for item in page.get("items") or ():
                key = self._take(item, listed_at=None if is_restored else int(version), is_forced=is_restored)
                present.add(key)
        for key in [key for key in self.by_key if key not in present]:
            # An object that is newer than the list comes from our own write: the watch reports its deletion.
            if is_restored or version_of(self.by_key[key]) <= int(version):
                self._drop(key, int(version), is_forced=is_restored)
        self.unreadable.keep(present)
        if era != self._history.era:
            raise Expired("another history began during the list")
        self._era = era
        self._newest = max(self._newest, int(version))
        self.synced.set()
        return version

    def _begin_list(self, version: int) -> tuple[int, bool]:
        """Return the era of a list of this version, and whether it replaces all that is known.

        It does until one list of the new era was read to its end: a list that breaks off leaves a mixture."""
        if version < self._newest and self._era == self._history.era:
            self._history.begin(version)
        is_restored = self._era != self._history.era
        if is_restored:
            self._gone.clear()
            self._newest = version
            if self._on_restored is not None:
                self._on_restored()
        return self._history.era, is_restored

    async def _verify_history(self) -> None:
        """After a break: raise Expired unless a watch may go on where the last one ended.

        A server with other data tells nothing of what happened before its own version of that number. Of bookmarks,
        which have no witness, only the part is taken that is proven."""
        if self._is_calm:
            await self._require_history()
            return
        until = await self._history.verified_until(self._client, self._path, self._newest)
        if self._seen_until is None:
            return
        if until is None or self._era != self._history.era:
            raise Expired("the server's history may be another one")
        self._seen_until = str(min(int(self._seen_until), until))

    async def _require_history(self) -> None:
        """Raise Expired if the server's history ends before what is known: a watch from there tells nothing."""
        newest = await self._client.newest_version(self._path)
        if self._seen_until is not None and newest < self._newest:
            raise Expired(f"version {newest} is the newest, and {self._newest} was known")

    async def _watch(self, version: str) -> None:
        """Watch until the server ends it."""
        server_s = random.randint(*CALM_WATCH_S) if self._is_calm else SERVER_TIMEOUT_S
        query = self._query | {
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(server_s),
        }
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        idle_s = CALM_IDLE_S if self._is_calm else IDLE_TIMEOUT_S
        try:
            async with self._standstill.beside(version), self._client.watch(self._path, query, idle_s=idle_s) as events:
                if not self.in_touch.is_set():
                    self.in_touch.set()
                    self.touched_s = started_s
                async for event in events:
                    self._apply(event)
        finally:
            self._watched_s = loop.time() - started_s
        if self._watched_s < server_s - 1.0:  # the server went: its successor may have other data
            self._break()
            if self._is_calm:  # so did all other watches of that server
                await asyncio.sleep(spread_s())
        else:
            await self._standstill.check(began=version, ended=self._seen_until)

    def _apply(self, event: Json) -> None:
        if self._era != self._history.era:
            raise Expired("another history began")
        item = event["object"]
        if event["type"] == "ERROR":
            if item.get("code") == 410:
                raise Expired(str(item.get("message")))
            raise Outage(str(item.get("message")))
        version = item["metadata"]["resourceVersion"]
        if event["type"] == "DELETED":
            self.unreadable.pop(key_of(item), None)
            self._drop(key_of(item), int(version))
            self._history.note(self._path, key_of(item), int(version), is_end=True)
        elif event["type"] != "BOOKMARK":
            self._take(item)
        self._newest = max(self._newest, int(version))
        self._seen_until = version  # after a break, the next watch continues here

    def _take(self, item: Json, *, listed_at: int | None = None, is_forced: bool = False) -> str:
        """Set an object that the server sent; return its key. One that cannot be read is noted, and left as it was."""
        key = "an object without a name"
        try:
            key = key_of(item)
            self._history.note(self._path, key, version_of(item))
            self._set(item, listed_at=listed_at, is_forced=is_forced)
        except Exception as error:  # one object that cannot be read must not end the list or watch of the others
            self.unreadable.note(key, f"{type(error).__name__}: {error}")
        return key

    def _set(self, item: Json, *, listed_at: int | None = None, is_forced: bool = False) -> None:
        """`listed_at`: the item is of a list of this version. It wins over all that is not newer than the list."""
        if not self._tells_edits:
            item["metadata"].pop("managedFields", None)
        key, version = key_of(item), version_of(item)
        old = self.by_key.get(key)
        if not is_forced:
            known = -1 if old is None else version_of(old)
            rewritten = listed_at is not None and version < known <= listed_at
            if (version <= known and not rewritten) or (old is None and self._gone.hides(key, version, listed_at)):
                return
        self._newest = max(self._newest, version)
        self.by_key[key] = item
        self._call_listener(old, item)
        held = self._held_part(item)
        if held is None:
            self.forget(key)
        elif held is not item:
            self.by_key[key] = held

    def _drop(self, key: str, version: int, *, is_forced: bool = False) -> None:
        old = self.by_key.get(key)
        if old is not None and version_of(old) > version and not is_forced:
            return  # an old deletion, reported again: a newer object has the name
        self._gone.bury(key, version, has_ended=True)
        if self.by_key.pop(key, None) is not None:
            self._call_listener(old, None)

    def _call_listener(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        self.unreadable.say_again()
        why = "a part of it is nested too deeply, and is not read" if isinstance(new, CutJson) else ""
        if self._listener is not None:
            try:
                self._listener(old, new)
            except Exception as error:  # one object that cannot be read must not end the watch of the others
                if key not in self.unreadable:
                    log.exception("%s: %s could not be taken over", self._path, key)
                why = f"{type(error).__name__}: {error}"
        if why:
            self.unreadable.note(key, why)
        else:
            self.unreadable.pop(key, None)
