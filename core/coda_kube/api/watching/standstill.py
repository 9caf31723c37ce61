"""Whether watches advance. An API server whose cache stands still opens watches, sends bookmarks, and tells nothing.

Each watch asks for bookmarks, and gets one before the server ends it. So a watch that ends below a version which a
consistent read showed before it began has missed what there was."""

from __future__ import annotations

from coda_kube.api.client import Client, Expired


class Standstill:
    """Told of each watch of one collection that lasted as long as was asked for."""

    def __init__(self) -> None:
        self._due = 0  # the version that the next watch must reach; 0: any

    async def check(self, client: Client, path: str, *, began: str, ended: str | None) -> None:
        """`began`, `ended`: the version from which the watch was asked for, and the last that it told of.

        Asks for the newest version if nothing came. Raises Expired once that is not reached, and Outage."""
        due, self._due = self._due, 0
        if ended != began:
            return
        if int(began) < due:
            raise Expired(f"the watch stands still at version {began}, and {due} was there before it")
        self._due = await client.newest_version(path)
