"""The ConfigMap of the places that evicted CPU jobs left: the next leader finds them there.

It is written before the evictions, so that no killed leader costs a pod its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import orjson

from coda.errors import CodaError
from coda.model import JobId
from coda_extender.cluster.cluster import ExtenderCluster
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.names import EXTENDER, SYSTEM_NAMESPACE

log = logging.getLogger(__name__)

NAME: Final = "coda-returned-places"
PATH: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{NAME}"

_PODS_AT_ONCE: Final = 100  # our choice: a few milliseconds; then filter calls are answered


class PlacesRecord:
    """Reads and writes it for the leader."""

    def __init__(self, client: Client, cluster: ExtenderCluster) -> None:
        self._client = client
        self._cluster = cluster

    async def load(self) -> None:
        """Begin with what is recorded. Without a record that can be read nobody has a place. Raises Outage."""
        state = self._cluster.state
        waiting: Sequence[JobId] = ()
        try:
            found = await self._client.get(PATH)
            waiting = state.cpu_jobs.load_places(orjson.loads((found.get("data") or {}).get("places") or "{}"))
        except NotFound:
            waiting = state.cpu_jobs.load_places({})
        except (AttributeError, TypeError, ValueError) as error:
            log.warning("the places of %s cannot be read, and nobody has one: %s", NAME, error)
            waiting = state.cpu_jobs.load_places({})
        for begin in range(0, len(waiting), _PODS_AT_ONCE):
            state.read_jobs(waiting[begin : begin + _PODS_AT_ONCE])
            await asyncio.sleep(0)

    async def store(self) -> bool:
        """Record every place that is not used up. False if that was not stored."""
        places = self._cluster.state.cpu_jobs.places
        places.forget_before(self._client.clock())
        item = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": NAME,
                "namespace": SYSTEM_NAMESPACE,
                "labels": {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": "returned-places"},
            },
            "data": {"places": orjson.dumps(places.record()).decode()},
        }
        try:
            await self._client.apply(PATH, item, manager=EXTENDER)
        except CodaError as error:
            log.warning("%s is not written, so nobody is evicted: %s", NAME, error)
            return False
        return True
