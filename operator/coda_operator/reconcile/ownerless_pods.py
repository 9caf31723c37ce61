"""Lets pods go whose job is gone: somebody removed the job's finalizer, or a process that died had made them too late.

The garbage collector deletes such pods, but our finalizer would hold them for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from coda.errors import CodaError
from coda.lifecycle import RankPod
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.write import job_path
from coda_operator.reconcile.pod_endings import PodEndings
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view import ClusterView

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 30.0


class OwnerlessPods:
    """Looks every `CHECK_EVERY_S` for held pods without a job. Costs no request while there are none."""

    def __init__(
        self, client: Client, cluster: ClusterView, requests: RequestSlots, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._endings = PodEndings(client, cluster, requests, clock)

    async def run(self) -> None:
        """Run until cancelled. Waits first: at the start of a term no job is known."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self.let_go()
            except CodaError as error:
                log.warning("pods without a job are not let go yet: %s", error)

    async def let_go(self) -> None:
        """Check once. A job that is only unknown here is asked for. Raises Outage."""
        for namespace, uid, pods in self._cluster.held_without_job():
            if pods and not await self._exists(namespace, uid, pods[0]):
                log.info("job %s in %s is gone: its %d pods are let go", uid, namespace, len(pods))
                await self._endings.let_go(namespace, uid, pods)

    async def _exists(self, namespace: str, uid: str, pod: RankPod) -> bool:
        name = pod.name.removesuffix(f"-{pod.attempt}-{pod.rank}")
        try:
            async with self._requests.reading():
                job = await self._client.get(job_path(f"{namespace}/{name}"))
        except NotFound:
            return False
        return bool(job["metadata"]["uid"] == uid)
