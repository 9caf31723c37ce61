"""Posts events on jobs in the background; never holds up a decision: when too many wait, new ones are lost."""

from __future__ import annotations

import asyncio
import logging
import time

from coda.errors import CodaError
from coda.gang import Progress
from coda_kube.client import Client, Json
from coda_operator.reporting import event_json

log = logging.getLogger(__name__)

_WAITING_LIMIT = 2000


class Recorder:
    """A queue of events and the task that posts them."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._waiting: asyncio.Queue[Json] = asyncio.Queue(_WAITING_LIMIT)

    def record(self, job: Json, progress: Progress) -> None:
        """Say what just happened to `job`."""
        if not self._waiting.full():
            self._waiting.put_nowait(event_json(job, progress, identity=self._identity, now_s=time.time()))

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._client.create(f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)
            except CodaError as error:
                log.debug("event lost: %s", error)
