"""Posts events on jobs in the background. No step waits for it: when too many events wait, new ones are lost."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from coda.errors import CodaError
from coda.lifecycle import Progress
from coda.lifecycle.event_rules import EVENT_DELAY_S, makes_waiting_old, may_wait
from coda.model import Phase
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND, OPERATOR
from coda_kube.objects.quantities import micro_time_from_seconds

log = logging.getLogger(__name__)

_WAITING_LIMIT: Final = 2000
_WARNINGS: Final = frozenset({Phase.RESTARTING, Phase.FAILED})


class Recorder:
    """A queue of events and the task that posts them.

    "Launched" and "Starting" are posted only if the gang does not run within `EVENT_DELAY_S`: "Running" says it too."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._waiting: asyncio.Queue[Json] = asyncio.Queue(_WAITING_LIMIT)
        self._delayed_by_uid: dict[str, tuple[Json, asyncio.TimerHandle]] = {}

    def record(self, job: Json, progress: Progress) -> None:
        """Post what just happened to `job`."""
        uid = job["metadata"]["uid"]
        if makes_waiting_old(progress) and uid in self._delayed_by_uid:
            self._delayed_by_uid.pop(uid)[1].cancel()
        self._post_now(uid)
        event = event_json(job, progress, identity=self._identity, now_s=time.time())
        if may_wait(progress):
            timer = asyncio.get_running_loop().call_later(EVENT_DELAY_S, self._post_now, uid)
            self._delayed_by_uid[uid] = event, timer
        else:
            self._enqueue(event)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._client.create(f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)
            except CodaError as error:
                log.debug("event lost: %s", error)

    def _post_now(self, uid: str) -> None:
        if uid in self._delayed_by_uid:
            event, timer = self._delayed_by_uid.pop(uid)
            timer.cancel()
            self._enqueue(event)

    def _enqueue(self, event: Json) -> None:
        if not self._waiting.full():
            self._waiting.put_nowait(event)


def event_json(job: Json, progress: Progress, *, identity: str, now_s: float) -> Json:
    """Return a core/v1 Event on the job for what just happened."""
    metadata = job["metadata"]
    name, stamp = metadata["name"], micro_time_from_seconds(now_s)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": metadata["namespace"], "name": f"{name}.{int(now_s * 1e6):x}"},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": metadata["namespace"],
            "name": name,
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": "Warning" if progress.phase in _WARNINGS else "Normal",
        "reason": progress.reason or (progress.phase.value if progress.phase else "New"),
        "message": progress.message[:1000],
        "action": "Reconcile",
        "eventTime": stamp,
        "reportingComponent": OPERATOR,
        "reportingInstance": identity[:128],
    }
