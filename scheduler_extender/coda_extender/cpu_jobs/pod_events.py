"""Events on the pods of CPU jobs and their owners: why they wait, what was done to them, and for whom."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from coda.errors import CodaError
from coda_extender.events import event_about
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Events on their way that nobody waits for. More are not posted: the pods show the same."""

_MESSAGE_LIMIT: Final = 900  # characters; an Event's message has 1024


class PodEvents:
    """Posts Events, beside everything else or while the caller waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._posting: set[asyncio.Task[bool]] = set()

    def post(self, pod: Json, reason: str, message: str) -> None:
        """Post an Event on this pod soon. It is lost if the API server does not take it."""
        self.post_about({"apiVersion": "v1", "kind": "Pod", **pod["metadata"]}, reason, message)

    def post_about(self, about: Json, reason: str, message: str) -> None:
        """The same on the object of this reference, see `posted_about`."""
        if len(self._posting) < _AT_ONCE:
            task = asyncio.create_task(self.posted_about(about, reason, message))
            self._posting.add(task)
            task.add_done_callback(self._posting.discard)

    async def posted(self, pod: Json, reason: str, message: str) -> bool:
        """Post an Event on this pod. True if the API server took it."""
        return await self.posted_about({"apiVersion": "v1", "kind": "Pod", **pod["metadata"]}, reason, message)

    async def posted_about(self, about: Json, reason: str, message: str) -> bool:
        """Post an Event on the object of this reference; it has apiVersion, kind, namespace, name and uid."""
        namespace = about["namespace"]
        event = event_about(about, self._client.clock(), reason, message[:_MESSAGE_LIMIT])
        try:
            await self._client.create(f"/api/v1/namespaces/{namespace}/events", event)
        except CodaError as error:
            log.warning("no event about %s %s/%s was posted: %s", about["kind"], namespace, about["name"], error)
            return False
        return True
