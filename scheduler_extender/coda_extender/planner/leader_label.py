"""The label by which the Service finds the leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.names import LABEL_LEADER

log = logging.getLogger(__name__)

COMPONENT_SELECTOR: Final = "app.kubernetes.io/component=extender"
_RETRY_S: Final = 1.0


class LeaderLabel:
    """`coda.scheduler/leader=true` on this replica's pod only. Without a pod name it does nothing."""

    def __init__(self, client: Client, namespace: str | None, pod: str | None) -> None:
        self._client = client
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._pod = pod if namespace else None

    async def claim(self, held: Callable[[], bool]) -> None:
        """Remove the label from the other extender pods, then set it on the own one. Try until done or not leading."""
        while self._pod is not None and held():
            try:
                await self._remove_from_others()
                await self._set(self._pod, "true")
            except CodaError as error:
                log.warning("could not label the leader's pod %s, trying again: %s", self._pod, error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def drop(self) -> None:
        """Remove the label from the own pod."""
        if self._pod is None:
            return
        try:
            await self._set(self._pod, None)
        except CodaError as error:
            log.warning("could not take the leader label off the pod %s: %s", self._pod, error)

    async def _remove_from_others(self) -> None:
        query = {"labelSelector": f"{COMPONENT_SELECTOR},{LABEL_LEADER}"}
        for item in (await self._client.list_pages(self._pods, query))["items"]:
            if item["metadata"]["name"] != self._pod:
                await self._set(item["metadata"]["name"], None)

    async def _set(self, pod: str, value: str | None) -> None:
        await self._client.patch(f"{self._pods}/{pod}", {"metadata": {"labels": {LABEL_LEADER: value}}})
