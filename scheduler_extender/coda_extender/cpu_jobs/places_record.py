"""The ConfigMap of the places that evicted CPU jobs left: the next leader finds them there.

It is written before the evictions, so that no killed leader costs a pod its place, and soon after places were used up,
so that nobody gets one twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from coda.errors import CodaError, Conflict
from coda.model import JobId
from coda_extender.cluster.cluster import ExtenderCluster
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER, SYSTEM_NAMESPACE
from coda_kube.returned_places import Record

log = logging.getLogger(__name__)

NAME: Final = "coda-returned-places"
COLLECTION: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
PATH: Final = f"{COLLECTION}/{NAME}"

SOON_S: Final = 5.0
"""After a place was used up the record is written: then many are, at the price of one write. Our choice."""

_TRIES: Final = 3  # of one write against those of others
_PODS_AT_ONCE: Final = 100  # our choice: a few milliseconds; then filter calls are answered


class PlacesRecord:
    """Reads and writes it for the leader. `held`: whether this replica leads.

    It replaces only the version that it read or wrote last. So a leader that was paused, and is none any more, never
    overwrites what the next one recorded."""

    def __init__(self, client: Client, cluster: ExtenderCluster, held: Callable[[], bool]) -> None:
        self._client = client
        self._cluster = cluster
        self._held = held
        self._version = ""  # of the record; empty for none
        self._recorded: Record = {}  # its places
        self._writing = asyncio.Lock()
        self._later: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Begin with what is recorded. Without a record that can be read nobody has a place. Raises Outage."""
        cpu_jobs = self._cluster.state.cpu_jobs
        cpu_jobs.places.on_used = self._store_soon
        await self._read()
        await self._read_pods(cpu_jobs.load_places(self._recorded))
        cpu_jobs.places.forget_before(self._client.clock())  # after the pods, who may have waited for longer

    async def store(self) -> bool:
        """Record every place that is not used up. False if that was not stored."""
        places = self._cluster.state.cpu_jobs.places
        async with self._writing:
            try:
                for _ in range(_TRIES):
                    if not self._held():
                        return False
                    places.forget_before(self._client.clock())
                    try:
                        await self._write(places.record())
                    except (Conflict, Rejected) as error:  # somebody else wrote, created or deleted it
                        log.info("%s is read again: %s", NAME, error)
                        await self._merge()
                    else:
                        return True
            except CodaError as error:
                log.warning("%s cannot be read or written now: %s", NAME, error)
        log.warning("%s is not written, and nobody is evicted before it is", NAME)
        return False

    async def _read(self) -> None:
        self._version, self._recorded = "", {}
        try:
            found = await self._client.get(PATH)
        except NotFound:
            return
        self._version = found["metadata"]["resourceVersion"]
        try:
            self._recorded = _record_from_json(found)
        except (AttributeError, TypeError, ValueError) as error:
            log.warning("the places of %s cannot be read, and nobody has one: %s", NAME, error)

    async def _write(self, record: Record) -> None:
        item = _json_from_record(record)
        if self._version:
            item["metadata"]["resourceVersion"] = self._version
            answer = await self._client.apply(PATH, item, manager=EXTENDER)
        else:
            answer = await self._client.create(COLLECTION, item)
        self._version, self._recorded = answer["metadata"]["resourceVersion"], record

    async def _merge(self) -> None:
        """Take over what was recorded by somebody else since: a write of an earlier leader may arrive late."""
        before = self._recorded
        await self._read()
        new: Record = {}
        for owner, places in self._recorded.items():
            added = Counter(map(tuple, places)) - Counter(map(tuple, before.get(owner, ())))
            if added:
                new[owner] = [[*place] for place in added.elements()]
        await self._read_pods(self._cluster.state.cpu_jobs.add_places(new))

    async def _read_pods(self, waiting: Sequence[JobId]) -> None:
        for begin in range(0, len(waiting), _PODS_AT_ONCE):
            self._cluster.state.read_jobs(waiting[begin : begin + _PODS_AT_ONCE])
            await asyncio.sleep(0)

    def _store_soon(self) -> None:
        if self._later is None and self._held():
            self._later = asyncio.get_running_loop().call_later(SOON_S, self._begin_to_store)

    def _begin_to_store(self) -> None:
        self._later = None
        self._storing = asyncio.create_task(self._store_or_try_again())

    async def _store_or_try_again(self) -> None:
        if not await self.store():
            self._store_soon()


def _record_from_json(item: Json) -> Record:
    """Raises AttributeError, TypeError or ValueError for what cannot be read."""
    record: Mapping[str, Any] = orjson.loads((item.get("data") or {}).get("places") or "{}")
    return {
        str(owner): [
            [float(queued_s), float(evicted_s), *map(int, times[:1])] for queued_s, evicted_s, *times in places
        ]
        for owner, places in record.items()
    }


def _json_from_record(record: Record) -> Json:
    labels = {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": "returned-places"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": SYSTEM_NAMESPACE, "labels": labels},
        "data": {"places": orjson.dumps(record).decode()},
    }
