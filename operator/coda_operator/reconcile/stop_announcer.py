"""Tells the ranks of a job that they are to save and end: an annotation on each of their pods.

A pod that cannot be told delays nothing. It is told again while the notice lasts; then the job is stopped in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from coda.errors import CodaError
from coda.lifecycle import RankPod
from coda_kube.api.client import Client
from coda_kube.objects.stops import ANNOTATION_STOP, Announcement, announcement_text
from coda_operator.reconcile.request_slots import NotLeaderError, Purpose, RequestSlots
from coda_operator.view import ClusterView, JobRecord

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""Seconds until a pod is told again. Our choice: some tries within any useful notice."""


class StopAnnouncer:
    """Raises nothing but NotLeaderError and errors of our own."""

    def __init__(
        self, client: Client, cluster: ClusterView, requests: RequestSlots, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._clock = clock

    async def tell(self, job: JobRecord, due_s: float, pods: Iterable[RankPod]) -> float | None:
        """Tell these pods. `due_s`: when they are stopped, as it was written. Returns when to try again, if ever."""
        order = job.placement.stop if job.placement is not None else None
        if job.placement is None or order is None:
            return None
        text = announcement_text(
            Announcement(id=job.placement.plan_id, cause=order.cause.value, notice_s=order.notice_s, until_s=due_s)
        )
        told = await asyncio.gather(*(self._tell(job, pod, text) for pod in pods))
        return None if all(told) else self._clock() + AGAIN_S

    async def _tell(self, job: JobRecord, pod: RankPod, text: str) -> bool:
        path = f"{job.pods_path}/{pod.name}"
        patch = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION_STOP: text}}}
        try:
            async with self._requests.writing(Purpose.END, job.uid):
                self._cluster.pods.put(await self._client.patch(path, patch))
        except NotLeaderError:
            raise
        except CodaError as error:
            log.warning("pod %s of %s is not told that it is to stop: %s", pod.name, job.key, error)
            return False
        return True
