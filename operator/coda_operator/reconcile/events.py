"""Posts events on jobs in the background. No step waits for it.

While the API server is away, events wait for up to `KEPT_S`. When too many wait, new ones are lost. A webhook may
refuse the events of one namespace for long: others go first then. Within a namespace the order is kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from coda.errors import CodaError, Outage
from coda.lifecycle import Progress
from coda.lifecycle.event_rules import EVENT_DELAY_S, makes_waiting_old, may_wait
from coda.model import Phase
from coda_kube.api.client import AlreadyExists, Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, KIND, OPERATOR
from coda_kube.objects.quantities import micro_time_from_seconds

log = logging.getLogger(__name__)

_WAITING_LIMIT: Final = 2000
_SICK_LIMIT: Final = 200  # of a namespace whose last event could not be posted
_DELAYS_S: Final = (1.0, 2.0, 4.0, 8.0)
KEPT_S: Final = 600.0
"""An event that could not be posted for this long is lost. Our choice: longer than most outages."""
_WARNINGS: Final = frozenset({Phase.RESTARTING, Phase.FAILED})


@dataclass(slots=True)
class _Lane:
    """The events of one namespace, each with the moment at which it is lost. `failures`: in a row, of the first one."""

    events: deque[tuple[Json, float]] = field(default_factory=deque)
    failures: int = 0


class Recorder:
    """Queues of events, one for each namespace, and the task that posts them.

    "Launched" and "Starting" are posted only if the gang does not run within `EVENT_DELAY_S`: "Running" says it too."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._lane_by_namespace: dict[str, _Lane] = {}
        self._well: asyncio.Queue[str] = asyncio.Queue()  # each namespace with events is in one of the two, once,
        self._sick: asyncio.Queue[str] = asyncio.Queue()  # or comes into this one in a moment
        self._waiting = 0  # events
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

    def warn(self, job: Json, reason: str, message: str) -> None:
        """Post what its user should know, and its progress does not say."""
        progress = Progress(reason=reason, message=message)
        self._enqueue(event_json(job, progress, identity=self._identity, now_s=time.time()) | {"type": "Warning"})

    async def run(self) -> None:
        """Post until cancelled. A request that lasts until it fails delays only namespaces where one did before."""
        await asyncio.gather(self._post_from(self._well), self._post_from(self._sick))

    async def _post_from(self, namespaces: asyncio.Queue[str]) -> None:
        """Post the first event of each namespace, in turns."""
        while True:
            namespace = await namespaces.get()
            lane = self._lane_by_namespace[namespace]
            if await self._post(lane.events[0][0]):
                lane.failures = 0
                self._drop_first(lane)
            else:
                lane.failures += 1
                while lane.events and lane.events[0][1] <= asyncio.get_running_loop().time():
                    self._drop_first(lane)
            if not lane.events:
                del self._lane_by_namespace[namespace]
            elif not lane.failures:
                self._well.put_nowait(namespace)
            else:
                delay_s = _DELAYS_S[min(lane.failures, len(_DELAYS_S)) - 1]
                asyncio.get_running_loop().call_later(delay_s, self._sick.put_nowait, namespace)

    def _drop_first(self, lane: _Lane) -> None:
        lane.events.popleft()
        self._waiting -= 1

    async def _post(self, event: Json) -> bool:
        """Post once; False if the API server is away. A second post of the same event changes nothing."""
        try:
            await self._client.create(f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)
        except AlreadyExists:
            return True
        except Outage as error:
            log.debug("event not posted yet: %s", error)
            return False
        except CodaError as error:
            log.info("event lost: %s", error)
        return True

    def _post_now(self, uid: str) -> None:
        if uid in self._delayed_by_uid:
            event, timer = self._delayed_by_uid.pop(uid)
            timer.cancel()
            self._enqueue(event)

    def _enqueue(self, event: Json) -> None:
        namespace = event["metadata"]["namespace"]
        lane = self._lane_by_namespace.get(namespace)
        is_full = lane is not None and lane.failures > 0 and len(lane.events) >= _SICK_LIMIT
        if self._waiting >= _WAITING_LIMIT or is_full:
            log.warning("too many events wait: lost one on %s", event["involvedObject"]["name"])
            return
        if lane is None:
            lane = self._lane_by_namespace[namespace] = _Lane()
            self._well.put_nowait(namespace)
        lane.events.append((event, asyncio.get_running_loop().time() + KEPT_S))
        self._waiting += 1


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
