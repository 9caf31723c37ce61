"""Released pods that cannot be bound where they are pinned: a pin is for good, so their owners must make them anew."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from coda.model import JobId
from coda.placements.lingering_use import is_stuck
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.evictions import evict
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.metrics import UNBOUND, Metrics
from coda_extender.written import Written
from coda_kube.api.client import Client
from coda_kube.cpu_jobs import controller_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.scheduler_refusals import SchedulerRefusal, refusal_from_json
from coda_kube.objects.read import Pod

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 2.0


class StuckPods:
    """Evicts them. One that nobody makes anew is left to its user: it keeps its pin, and withholds nothing any more.

    Where kube-scheduler refused one, the next pods of its owner do not go for a while (`RefusedNodes`). If it refuses
    them on one node after the other, they are evicted after longer and longer pauses, and withhold nothing meanwhile.
    What it remembers may be lost: a new leader waits the whole time again."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        metrics: Metrics,
        held: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._held = held
        self._clock = clock
        self._events = PodEvents(client)
        self._led_s = clock()
        self._given_up_s: dict[str, float] = {}  # by the pod's uid
        self._blocked_s: dict[str, float] = {}  # by the name of the node
        self._left: set[str] = set()  # uids of those that were left to their users
        self._noted: set[str] = set()  # uids of those whose refusal is remembered

    async def run(self) -> None:
        """Look again and again, until cancelled: this replica leads from now on."""
        self._led_s = self._clock()
        self._given_up_s, self._blocked_s = {}, {}  # another leader may have come between
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._held():
                await self.end_stuck()

    async def end_stuck(self) -> None:
        """Look once. O(CPU jobs)."""
        now_s, refused = self._clock(), self._cluster.state.cpu_jobs.refused
        self._cluster.read_controllers(refused.expire(now_s))
        pods = self._cluster.state.cpu_jobs.unbound()
        self._given_up_s = {pod.uid: self._given_up_s.get(pod.uid, now_s) for _, pod in pods if pod.given_up}
        nodes = {pod.pinned_to or "" for _, pod in pods}
        self._blocked_s = {name: self._blocked_s.get(name, now_s) for name in nodes if self._takes_no_pods(name)}
        self._left.intersection_update([pod.uid for _, pod in pods])
        self._noted.intersection_update([pod.uid for _, pod in pods])
        stuck = [(job, pod) for job, pod in pods if self._is_stuck(now_s, pod)]
        paused = {owner for _, pod in stuck if refused.is_paused(owner := controller_of(pod), now_s)}
        self._cluster.read_controllers({controller_of(pod) for _, pod in stuck if self._note_refusal(pod, now_s)})
        for job, pod in stuck:
            if not self._is_as_seen(job, pod):  # each end takes a while
                continue
            if self._waits(pod, paused):
                self._void(job, pod)
            else:
                await self._end(job, pod, now_s)

    def _is_stuck(self, now_s: float, pod: Pod) -> bool:
        given_up_s, blocked_s = self._given_up_s.get(pod.uid), self._blocked_s.get(pod.pinned_to or "")
        is_stuck_now = is_stuck(now_s, led_s=self._led_s, given_up_s=given_up_s, blocked_s=blocked_s)
        return is_stuck_now and pod.uid not in self._left

    def _is_as_seen(self, job: JobId, pod: Pod) -> bool:
        """True if this replica still leads, and nothing that counts has happened to the pod or to its node."""
        is_blocked = self._takes_no_pods(pod.pinned_to or "")
        is_same = job in self._cluster.state.cpu_jobs and self._cluster.state.cpu_jobs.pod(job) == pod
        return is_same and (pod.given_up or is_blocked) and self._held()

    def _note_refusal(self, pod: Pod, now_s: float) -> bool:
        """Remember, once, where kube-scheduler refused the pod. True if its owner avoids that node from now on."""
        owner, refusal = controller_of(pod), self._refusal_of(pod)
        if not owner or refusal is None or pod.uid in self._noted:
            return False
        self._noted.add(pod.uid)
        return self._cluster.state.cpu_jobs.refused.note(owner, pod.pinned_to or "", refusal, now_s)

    def _waits(self, pod: Pod, paused: Collection[str]) -> bool:
        """True for a refused pod whose owner is `paused`, whatever kube-scheduler says of it now.

        It withholds nothing, so the extender refuses it too: it waits for its end, and not for its node."""
        return pod.uid in self._noted and controller_of(pod) in paused and not self._takes_no_pods(pod.pinned_to or "")

    def _void(self, job: JobId, pod: Pod) -> None:
        """Count its placement no more. Nothing, if that is so already."""
        known = self._cluster.state.job(job)
        if known is not None and known.placement is not None and pod.cpu_job is not None:
            self._cluster.void_placement(job, pod.cpu_job.plan_id)

    def _refusal_of(self, pod: Pod) -> SchedulerRefusal | None:
        item = self._cluster.pods.by_key.get(pod.id)
        if item is None or not pod.given_up or self._takes_no_pods(pod.pinned_to or ""):
            return None
        return refusal_from_json(item)

    def _takes_no_pods(self, name: str) -> bool:
        node = self._cluster.state.node(name)
        return node is None or not node.schedulable

    async def _end(self, job: JobId, pod: Pod, now_s: float) -> None:
        item = self._cluster.pods.by_key.get(pod.id)
        if item is None or pod.cpu_job is None:
            return
        refusal = self._refusal_of(pod)
        said = f"cannot be bound to {pod.pinned_to} any more{_words(refusal)}"
        if pod.cpu_job.controller[0]:
            version = item["metadata"]["resourceVersion"]  # of the unbound pod: one that is bound meanwhile is kept
            written, why = await evict(self._client, pod, version=version)
            log.info("%s cannot be bound to %s: eviction %s %s", job, pod.pinned_to, written.value, why)
            if written is Written.DONE:
                self._cluster.state.cpu_jobs.refused.pause(controller_of(pod), now_s)
                self._tell(item, f"{said}: its owner makes it anew, and it is placed again")
            return
        self._left.add(pod.uid)
        self._cluster.void_placement(job, pod.cpu_job.plan_id)
        self._tell(item, f"{said}, and nobody makes it anew: delete it and create it again")

    def _tell(self, item: Json, said: str) -> None:
        self._metrics.dropped_placements.labels(UNBOUND).inc()
        self._events.post(item, "PlaceLost", said)


def _words(refusal: SchedulerRefusal | None) -> str:
    return f" (kube-scheduler: {refusal.said})" if refusal is not None else ""
