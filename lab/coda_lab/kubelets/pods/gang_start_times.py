"""When a pod's gang was placed, read from the API server for pods whose run counts from then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.names import API_VERSION
from coda_kube.objects.quantities import seconds_from_time
from coda_lab.kubelets.machine import SimPod

log = logging.getLogger(__name__)


class Placements:
    """`ask` notes a pod; `run` reports each one to `placed` until cancelled. A pod whose gang is not found runs from
    its start.
    """

    def __init__(self, client: Client, placed: Callable[[SimPod, float], None]) -> None:
        self._client = client
        self._placed = placed
        self._asked: asyncio.Queue[SimPod] = asyncio.Queue()

    def ask(self, pod: SimPod) -> None:
        """Find out soon."""
        self._asked.put_nowait(pod)

    async def run(self) -> None:
        """Answer all questions, until cancelled."""
        async with asyncio.TaskGroup() as answers:
            while True:
                answers.create_task(self._answer(await self._asked.get()))

    async def _answer(self, pod: SimPod) -> None:
        try:
            job = await self._client.get(f"/apis/{API_VERSION}/namespaces/{pod.namespace}/trainingjobs/{pod.job}")
        except CodaError as error:
            log.warning("%s: runs from its start, not from its placement: %s", pod.key, error)
            return
        placement = (job.get("status") or {}).get("placement") or {}
        if placement.get("committedTime"):
            self._placed(pod, seconds_from_time(placement["committedTime"]))
