"""Whether the API server still has the history that was seen. A backup that is restored takes writes back.

Versions do not tell that for long: after a restore they count up from an older number, and pass the known ones within
seconds. So the newest change that the caches of a client have seen is the witness. etcd remembers for minutes what was
stored at each version: if the write of that number did not change that object, this is another history.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from coda.errors import Outage
from coda_kube.api.client import Client, Rejected

log = logging.getLogger(__name__)


class _Change(NamedTuple):
    path: str
    key: str
    version: int
    is_end: bool


class History:
    """The history that the caches of one client have seen. They share it: if one finds another, all read again.

    `era` counts the histories."""

    def __init__(self) -> None:
        self.era = 0
        self._newest: _Change | None = None

    def note(self, path: str, key: str, version: int, *, is_end: bool = False) -> None:
        """The server showed this change in a list or watch of the collection `path`."""
        if self._newest is None or version > self._newest.version:
            self._newest = _Change(path, key, version, is_end)

    def begin(self, version: int) -> None:
        """Another history begins; `version`: its newest."""
        self.era += 1
        self._newest = None
        log.warning("the API server's data come from a backup (version %d): everything is read again", version)

    async def verified_until(self, client: Client, path: str, known: int) -> int | None:
        """Return the version until which the history is the one that was seen; None if nobody can say.

        Begins another era if it is not. `known`: the newest version that the asker knows of `path`. Two or three small
        requests. Raises Outage."""
        era, witness = self.era, self._newest
        newest = await client.newest_version(path)
        is_same: bool | None = newest >= max(known, witness.version if witness is not None else 0)
        if is_same:
            is_same = await _has_happened(client, witness) if witness is not None else None
        if is_same is False:
            if self.era == era:  # else another cache was faster
                self.begin(newest)
            return None
        return witness.version if is_same and witness is not None else None


async def _has_happened(client: Client, change: _Change) -> bool | None:
    """True if this change is the write of its version; None if the server does not say."""
    path, key, version, is_end = change
    try:
        now = await client.version_at(path, key, version)
        if not is_end:
            return now == version
        return now is None and await client.version_at(path, key, version - 1) is not None
    except (Outage, Rejected) as error:
        log.info("%s: what was at version %d cannot be read: %s", path, version, error)
        return None


_HISTORIES: Final[WeakKeyDictionary[Client, History]] = WeakKeyDictionary()


def history_of(client: Client) -> History:
    """Return the history that all caches of this client share."""
    if client not in _HISTORIES:
        _HISTORIES[client] = History()
    return _HISTORIES[client]
