"""Evicts pods that must give borrowed cores back, so that another job gets its room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from coda.model import Job
from coda.model.decision import Stop, name_for
from coda.placements.write_limits import DOUBT_S, PATIENCE_S
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.evictions import evict
from coda_extender.cpu_jobs.places_record import PlacesRecord
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.metrics import Metrics
from coda_extender.write_slots import WriteSlots
from coda_extender.written import Ended, Written
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.returned_places import Place

log = logging.getLogger(__name__)

Victim = tuple[Job, Stop]


class Reclaims:
    """Evicts in the slots of other writes. What takes long goes on beside the next cycles.

    From the order on a pod counts as leaving. It leaves its place in the queue, which is recorded before."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        metrics: Metrics,
        held: Callable[[], bool],
        slots: WriteSlots,
        on_end: Ended,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._held = held
        self._slots = slots
        self._on_end = on_end
        self._events = PodEvents(client)
        self._record = PlacesRecord(client, cluster)
        self._recording = asyncio.Lock()
        self._added = self._recorded = 0  # how often places were added, and how often when they were last recorded
        self._under_way: set[asyncio.Task[Written]] = set()

    async def take_over(self) -> None:
        """Begin to lead: the places that evicted pods left under earlier leaders count. Raises Outage."""
        await self._record.load()

    def cancel(self) -> None:
        """Give up what is under way: this replica leads no more."""
        for task in self._under_way:
            task.cancel()

    async def make_room(self, victims: Sequence[Victim]) -> Written:
        """Evict these pods for one job. SLOW: that takes long, and goes on by itself."""
        task = asyncio.create_task(self._evict_all(victims))
        self._under_way.add(task)
        task.add_done_callback(lambda task: self._forget(task, victims))
        try:
            await asyncio.wait((task,), timeout=PATIENCE_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result() if task.done() else Written.SLOW

    def _forget(self, task: asyncio.Task[Written], victims: Sequence[Victim]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.result()
        else:
            for job, _ in victims:  # whichever were asked for
                asyncio.get_running_loop().call_later(DOUBT_S, self._end_eviction, job)
        self._cluster.changed.set()

    async def _evict_all(self, victims: Sequence[Victim]) -> Written:
        """Returns the first outcome that is not DONE, if there is one."""
        now_s, state = self._client.clock(), self._cluster.state
        owners = [state.cpu_jobs.owner_of(job.id) for job, _ in victims]
        places = [Place(job.queued_s, now_s) for job, _ in victims]
        for (job, _), owner, place in zip(victims, owners, places, strict=True):
            self._cluster.set_evicted(job.id, is_evicted=True)
            state.cpu_jobs.places.add(owner, place)
        self._added += 1
        if not await self._is_recorded():
            for (job, _), owner, place in zip(victims, owners, places, strict=True):
                self._stays(job, owner, place)
            return Written.FAILED
        each = zip(victims, owners, places, strict=True)
        outcomes = await asyncio.gather(*[self._evict(*victim, owner, place) for victim, owner, place in each])
        return next((written for written in outcomes if written is not Written.DONE), Written.DONE)

    async def _is_recorded(self) -> bool:
        """Record every place that was added by now, unless another write has done so meanwhile."""
        wanted = self._added
        async with self._recording:  # an earlier write must not be stored after a later one
            added = self._added
            if self._recorded < wanted and await self._record.store():
                self._recorded = added
        return self._recorded >= wanted

    async def _evict(self, job: Job, stop: Stop, owner: str, place: Place) -> Written:
        item = self._cluster.item_of(job)
        written, why = await self._ask(job)
        if written is Written.FAILED:  # it may be on its way
            asyncio.get_running_loop().call_later(DOUBT_S, self._end_eviction, job)
        elif written is not Written.DONE:
            self._stays(job, owner, place)
        self._tell(job, stop, item, written, why)
        return written

    async def _ask(self, job: Job) -> tuple[Written, str]:
        """Send the eviction. Returns the outcome, and why it did not work."""
        why = ""

        async def send() -> Written:
            nonlocal why
            if self._cluster.item_of(job) is None:
                return Written.STALE
            if not self._held():
                return Written.LAPSED
            written, why = await evict(self._client, self._cluster.state.cpu_jobs.pod(job.id))
            return written

        return await self._slots.run(job.id, send, to_its_end=True) or Written.BUSY, why

    def _tell(self, job: Job, stop: Stop, item: Json | None, written: Written, why: str) -> None:
        """Tell everybody what came of the order."""
        self._on_end(job.id, written, why)
        by = name_for(job.namespace, stop.by)
        if written is Written.DONE:
            self._metrics.stops.labels(stop.cause.value).inc()
            log.info("%s: evicted for %s (%s)", job.id, by, stop.cause.value)
            said, text = "Reclaimed", f"gives its borrowed cores back, so that {by} gets its room"
        elif written is Written.REFUSED:
            said, text = "ReclaimRefused", f"keeps borrowed cores that {by} waits for: {why}"
        else:
            return
        if item is not None:
            self._events.post(item, said, text)

    def _stays(self, job: Job, owner: str, place: Place) -> None:
        """The pod was not evicted, so it leaves no place, and runs."""
        self._cluster.state.cpu_jobs.places.drop(owner, place)
        self._end_eviction(job)

    def _end_eviction(self, job: Job) -> None:
        """Unless the pod is seen being deleted, it is counted as running again."""
        if self._cluster.item_of(job) is not None:
            self._cluster.set_evicted(job.id, is_evicted=False)
