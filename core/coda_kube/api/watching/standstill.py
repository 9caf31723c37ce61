"""Whether watches advance. An API server whose cache stands still opens watches, sends bookmarks, and tells nothing.

Each watch asks for bookmarks, and gets one before the server ends it. But versions are the store's: of a kind of which
nothing changes, a healthy server's bookmarks may repeat one version for ten minutes (etcd's own progress notices).
So one that does not advance is only suspect. What proves it is a list that shows a change of its kind which the watch
after it does not tell of either."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from coda.errors import Outage
from coda_kube.api.client import Client, Expired, Rejected
from coda_kube.objects.json_types import Json

LIST_EVERY_S: Final = 600.0
"""Between two lists that show no change. Our choice: what etcd takes between two progress notices."""
GRACE_S: Final = 10.0
"""What a watch may take to tell of what a list has shown. Our choice: a healthy one takes milliseconds."""


class Standstill:
    """Told of each watch of one collection that lasted as long as was asked for. `held`: what its cache holds."""

    def __init__(self, client: Client, path: str, query: Mapping[str, str], held: Mapping[str, Json]) -> None:
        self._client = client
        self._path = path
        self._query = query
        self._held = held
        self._due = 0  # the version that the next watch must reach, or it is suspect; 0: any
        self._is_suspect = False
        self._may_list_s = 0.0
        self._missed = ""  # what the watch did not tell of before `_listed_s`
        self._listed_s = 0.0

    @asynccontextmanager
    async def beside(self, began: str) -> AsyncIterator[None]:
        """Around a watch from this version: if the last one is suspect, list meanwhile, at times."""
        self._missed = ""
        if not self._is_suspect or _now_s() < self._may_list_s:
            yield
            return
        self._may_list_s = _now_s() + LIST_EVERY_S
        looking = asyncio.create_task(self._look(int(began)))
        try:
            yield
        finally:
            looking.cancel()  # a list that takes longer than a watch proves nothing
            await asyncio.gather(looking, return_exceptions=True)

    async def check(self, *, began: str, ended: str | None) -> None:
        """`began`, `ended`: the version from which the watch was asked for, and the last that it told of.

        Asks for the newest version if nothing came. Raises Expired once a change was missed, and Outage."""
        missed, self._missed = self._missed, ""
        if ended != began:
            self._due, self._is_suspect = 0, False
        elif missed and _now_s() - self._listed_s >= GRACE_S:
            self._due, self._is_suspect, self._may_list_s = sys.maxsize, False, 0.0  # suspect again at the next one
            raise Expired(f"the watch stands still at version {began}: it did not tell of {missed}")
        elif int(began) < self._due:
            self._is_suspect = True
        else:
            self._due = await self._client.newest_version(self._path)

    async def _look(self, began: int) -> None:
        """Note what a consistent list shows that a watch from `began` must tell of. An error shows nothing."""
        version = newest = 0
        present = set[tuple[Any, Any]]()
        try:
            async for page in self._client.pages(self._path, self._query):
                if not version:
                    version, self._listed_s = int(page["metadata"]["resourceVersion"]), _now_s()
                if version <= began:
                    return  # nothing was written at all
                for item in page.get("items") or ():
                    newest = max(newest, _version_of(item))
                    present.add(_name_of(item))
        except (Outage, Rejected):
            return
        if newest > began:
            self._missed = f"version {newest}"
        elif not self._query and any(  # with a selector, a write of our own may have put what it does not select
            _version_of(item) <= began and _name_of(item) not in present for item in self._held.values()
        ):
            self._missed = f"an end before version {version}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _version_of(item: Json) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)


def _name_of(item: Json) -> tuple[Any, Any]:
    return item["metadata"].get("namespace"), item["metadata"]["name"]
