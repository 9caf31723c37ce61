"""Posts events on jobs in the background; never holds up a decision: when too many wait, new ones are lost."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from coda.errors import CodaError
from coda.lifecycle.news import EVENT_DELAY_S, makes_waiting_old, may_wait
from coda.lifecycle.state import Progress
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_operator.reconcile.status import event_json

log = logging.getLogger(__name__)

_WAITING_LIMIT: Final = 2000


class Recorder:
    """A queue of events and the task that posts them.

    That a gang is launched, or starts, is said only of one that does not run soon after: that it runs says it too."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._waiting: asyncio.Queue[Json] = asyncio.Queue(_WAITING_LIMIT)
        self._held_back_by_uid: dict[str, tuple[Json, asyncio.TimerHandle]] = {}

    def record(self, job: Json, progress: Progress) -> None:
        """Say what just happened to `job`."""
        uid = job["metadata"]["uid"]
        if makes_waiting_old(progress) and uid in self._held_back_by_uid:
            self._held_back_by_uid.pop(uid)[1].cancel()
        self._say_now(uid)
        event = event_json(job, progress, identity=self._identity, now_s=time.time())
        if may_wait(progress):
            timer = asyncio.get_running_loop().call_later(EVENT_DELAY_S, self._say_now, uid)
            self._held_back_by_uid[uid] = event, timer
        else:
            self._put(event)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._client.create(f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)
            except CodaError as error:
                log.debug("event lost: %s", error)

    def _say_now(self, uid: str) -> None:
        if uid in self._held_back_by_uid:
            event, timer = self._held_back_by_uid.pop(uid)
            timer.cancel()
            self._put(event)

    def _put(self, event: Json) -> None:
        if not self._waiting.full():
            self._waiting.put_nowait(event)
