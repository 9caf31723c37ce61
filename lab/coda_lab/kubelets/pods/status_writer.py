"""Writes the state of the pods to the API server. Knows no rules of a pod's life.

Like a kubelet's status manager: only the newest state of a pod is written, its writes never overtake each other, and
the last one removes the object. At most `in_flight` requests run at once. A write that fails temporarily is tried again
with a growing delay. A silent machine's news waits until the machine is heard again.
"""

from __future__ import annotations

import asyncio
import logging

from coda.errors import CodaError, Outage
from coda_kube.api.client import Client, NotFound, Rejected
from coda_lab.kubelets.machine import SimPod, Stage
from coda_lab.kubelets.pods.statuses import status_patch

log = logging.getLogger(__name__)

STRATEGIC = "application/strategic-merge-patch+json"
IN_FLIGHT = 64
NOT_YET = frozenset({401, 403})  # a starting API server knows nobody until it has read its roles
_DELAYS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Reporter:
    """`report` notes that a pod has news; `run` writes them until cancelled."""

    def __init__(self, client: Client, *, in_flight: int = IN_FLIGHT) -> None:
        self._client = client
        self._in_flight = in_flight
        self._waiting: asyncio.Queue[SimPod] = asyncio.Queue()
        self._busy: set[str] = set()  # uids that are queued, being written, or waiting for another try
        self._failures_by_uid: dict[str, int] = {}

    def report(self, pod: SimPod) -> None:
        """Write the pod's state soon; many calls before that are one write."""
        if pod.uid not in self._busy:
            self._busy.add(pod.uid)
            self._waiting.put_nowait(pod)

    async def run(self) -> None:
        """Write all reported states, until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._in_flight):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            pod = await self._waiting.get()
            try:
                await self._write(pod)
            except Outage as error:
                self._retry(pod, error)
                continue
            except NotFound:
                pod.removed = True  # the watch will say so too
            except Rejected as error:
                if error.status in NOT_YET:
                    self._retry(pod, error)
                    continue
                log.error("%s: the API server refuses what its kubelet reports: %s", pod.key, error)
            self._busy.discard(pod.uid)
            self._failures_by_uid.pop(pod.uid, None)
            if _has_news(pod):
                self.report(pod)

    def _retry(self, pod: SimPod, error: CodaError) -> None:
        failures = self._failures_by_uid.get(pod.uid, 0)
        if failures == 0:
            log.warning("%s: %s; trying again", pod.key, error)
        self._failures_by_uid[pod.uid] = failures + 1
        delay_s = _DELAYS_S[min(failures, len(_DELAYS_S) - 1)]
        asyncio.get_running_loop().call_later(delay_s, self._waiting.put_nowait, pod)

    async def _write(self, pod: SimPod) -> None:
        """Write once: the newest status, or after that the removal. Raises Outage; then nothing was written."""
        if not _has_news(pod):
            return
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        if pod.told < pod.revision and (pod.stage is Stage.ENDED or not pod.removal_due):
            revision = pod.revision
            try:
                await self._client.patch(f"{path}/status", status_patch(pod), STRATEGIC)
            except Rejected as error:
                if error.status not in NOT_YET:
                    pod.told = revision  # the same words would be refused again
                raise
            pod.told = revision
            return
        await self._client.delete(path, uid=pod.uid, grace_s=0)
        pod.told, pod.removed = pod.revision, True


def _has_news(pod: SimPod) -> bool:
    if pod.gone or pod.removed or pod.machine.silent:
        return False
    return pod.told < pod.revision or pod.removal_due
