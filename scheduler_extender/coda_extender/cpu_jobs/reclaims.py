"""Evicts pods that must give borrowed cores back, so that another job gets its room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from coda.model import Job, JobId, Phase
from coda.model.decision import Stop, name_for
from coda.placements.failed_writes import DOUBT_S, PATIENCE_S
from coda.policy.config import ReclaimConfig
from coda.policy.reclaim import WINDOW_S, min_runtime_s, times_reclaimed
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.evictions import evict
from coda_extender.cpu_jobs.places_record import PlacesRecord
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.metrics import Metrics
from coda_extender.write_slots import WriteSlots
from coda_extender.written import Evicted, Written
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import pod_id_of
from coda_kube.returned_places import Place

log = logging.getLogger(__name__)


class _Victim(NamedTuple):
    job: Job
    stop: Stop
    owner: str  # the uid of its controller
    place: Place
    about: Json  # the reference of Events about its pod


class Reclaims:
    """Evicts in the slots of other writes, for each job all the pods that it needs, or none. What takes long goes on
    beside the next cycles.

    Whether all may be evicted is asked before the first is. Between the two a budget may change its mind: one that
    allows one pod at a time says yes to several. From the order on a pod counts as leaving. It leaves its place in the
    queue, which is recorded before."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        metrics: Metrics,
        held: Callable[[], bool],
        slots: WriteSlots,
        on_end: Evicted,
        limits: ReclaimConfig,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._held = held
        self._slots = slots
        self._on_end = on_end
        self._limits = limits
        self._asked_s: dict[str, float] = {}  # when evictions were ordered, by uid of the pod, by the API server's time
        self._events = PodEvents(client)
        self._record = PlacesRecord(client, cluster, held)
        self._recording = asyncio.Lock()
        self._added = self._recorded = 0  # how often places were added, and how often when they were last recorded
        self._under_way: set[asyncio.Task[Written]] = set()
        self._recorders: set[asyncio.Task[bool]] = set()

    async def take_over(self) -> None:
        """Begin to lead: the places that evicted pods left under earlier leaders count. Raises Outage."""
        await self._record.load()
        places = self._cluster.state.cpu_jobs.places.record().values()
        now_s = self._client.clock()  # the clock of an earlier leader may have been ahead
        past_s = [min(evicted_s, now_s) for of_owner in places for _, evicted_s, *_ in of_owner]
        self._asked_s = {f"before-{number}": moment_s for number, moment_s in enumerate(past_s)}

    def recent_s(self) -> Mapping[str, float]:
        """When evictions were ordered that were not refused, in the last minute."""
        since_s = self._client.clock() - WINDOW_S
        if any(moment_s <= since_s for moment_s in self._asked_s.values()):
            self._asked_s = {uid: moment_s for uid, moment_s in self._asked_s.items() if moment_s > since_s}
        return self._asked_s

    def cancel(self) -> None:
        """Give up what is under way: this replica leads no more."""
        for task in (*self._under_way, *self._recorders):
            task.cancel()

    async def make_room(self, stops: Sequence[tuple[Job, Stop]]) -> Written:
        """Evict these pods for one job, or none of them. SLOW: that takes long, and goes on by itself."""
        victims = [self._victim(job, stop) for job, stop in stops]
        task = asyncio.create_task(self._make_room(victims))
        self._under_way.add(task)
        task.add_done_callback(lambda task: self._forget(task, victims))
        try:
            await asyncio.wait((task,), timeout=PATIENCE_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result() if task.done() else Written.SLOW

    def _victim(self, job: Job, stop: Stop) -> _Victim:
        namespace, _, name = (pod_id_of(job.id) or "").partition("/")
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": job.uid}
        owner, now_s = self._cluster.state.cpu_jobs.owner_of(job.id), self._client.clock()
        place = Place(job.queued_s, now_s, times_reclaimed(job, now_s, self._limits))
        return _Victim(job, stop, owner, place, about)

    def _forget(self, task: asyncio.Task[Written], victims: Sequence[_Victim]) -> None:
        self._under_way.discard(task)
        if task.cancelled() or task.exception() is not None:
            for victim in victims:  # whichever were asked for
                asyncio.get_running_loop().call_later(DOUBT_S, self._end_doubt, victim)
        self._cluster.changed.set()
        if not task.cancelled():
            task.result()

    async def _make_room(self, victims: Sequence[_Victim]) -> Written:
        for victim in victims:
            self._asked_s[victim.job.uid] = victim.place.evicted_s
            if self._cluster.item_of(victim.job) is not None:
                self._cluster.set_evicted(victim.job.id, is_evicted=True)
        answers = await asyncio.gather(*[self._ask(victim.job, is_trial=True) for victim in victims])
        if any(written is not Written.DONE for written, _ in answers):
            for victim, (written, why) in zip(victims, answers, strict=True):
                self._end_eviction(victim.job)
                if written is not Written.DONE:
                    self._tell(victim, written, why)
            return _worst([written for written, _ in answers])
        if not self._is_wanted(victims[0].stop.by):
            for victim in victims:
                self._end_eviction(victim.job)
            return Written.NEEDLESS
        return await self._evict_all(victims)

    def _is_wanted(self, by: JobId) -> bool:
        """False if the job that needs the room was deleted, suspended or ended meanwhile."""
        job = self._cluster.state.job(by)
        return job is not None and job.phase in (Phase.QUEUED, Phase.RUNNING)

    async def _evict_all(self, victims: Sequence[_Victim]) -> Written:
        for victim in victims:
            self._cluster.state.cpu_jobs.places.add(victim.owner, victim.place)
        self._added += 1
        if not await self._is_recorded():
            for victim in victims:
                self._stays(victim)
            return Written.FAILED
        answers = await asyncio.gather(*[self._evict(victim) for victim in victims])
        outcomes = [written for written, _ in answers]
        if not {Written.DONE, Written.FAILED}.issuperset(outcomes):
            self._record_again()
        told = zip(victims, answers, strict=True)
        for victim, (written, why) in sorted(told, key=lambda entry: entry[1][0] is Written.DONE):
            self._tell(victim, written, why)  # the refusals first: what was evicted beside them was in vain
        return _worst(outcomes)

    async def _is_recorded(self) -> bool:
        """Record every place that was added by now, unless another write has done so meanwhile."""
        wanted = self._added
        async with self._recording:  # an earlier write must not be stored after a later one
            added = self._added
            if self._recorded < wanted and self._held() and await self._record.store():
                self._recorded = added
        return self._recorded >= wanted

    async def _evict(self, victim: _Victim) -> tuple[Written, str]:
        written, why = await self._ask(victim.job)
        if written is Written.FAILED:  # it may be on its way
            asyncio.get_running_loop().call_later(DOUBT_S, self._end_doubt, victim)
        elif written is not Written.DONE:
            self._stays(victim)
        return written, why

    async def _ask(self, job: Job, *, is_trial: bool = False) -> tuple[Written, str]:
        """Send the eviction. Returns the outcome, and why it did not work."""
        why = ""

        async def send() -> Written:
            nonlocal why
            if self._cluster.item_of(job) is None:
                return Written.STALE
            if not self._held():
                return Written.LAPSED
            written, why = await evict(self._client, self._cluster.state.cpu_jobs.pod(job.id), is_trial=is_trial)
            return written

        return await self._slots.run(job.id, send, to_its_end=True) or Written.BUSY, why

    def _tell(self, victim: _Victim, written: Written, why: str) -> None:
        """Tell everybody what came of the order."""
        job, stop = victim.job, victim.stop
        self._on_end(job.id, victim.owner, written, why)
        by = name_for(job.namespace, stop.by)
        if written is Written.DONE:
            self._metrics.stops.labels(stop.cause.value).inc()
            log.info("%s: evicted for %s (%s)", job.id, by, stop.cause.value)
            said, text = "Reclaimed", f"gives its borrowed cores back, so that {by} gets its room{self._next(victim)}"
        elif written in (Written.REFUSED, Written.PROTECTED):
            said, text = "ReclaimRefused", f"keeps borrowed cores that {by} waits for: {why}"
        else:
            return
        self._events.post_about(victim.about, said, text)

    def _next(self, victim: _Victim) -> str:
        """What whoever replaces the pod may count on."""
        least_s = min_runtime_s(victim.place.times, self._limits)
        return f"; the pod that replaces it keeps such cores for {least_s:g} s at least" if least_s else ""

    def _stays(self, victim: _Victim) -> None:
        """The pod was not evicted, so it leaves no place, and runs."""
        self._cluster.state.cpu_jobs.places.drop(victim.owner, victim.place)
        self._end_eviction(victim.job)

    def _end_doubt(self, victim: _Victim) -> None:
        """Nobody said what came of the eviction. Now the pod shows it, unless it is gone."""
        item = self._cluster.item_of(victim.job)
        if item is not None and "deletionTimestamp" not in item["metadata"]:
            self._stays(victim)
            self._record_again()

    def _record_again(self) -> None:
        """Record soon that places are gone. If that is not stored, the next eviction's record does it."""
        self._added += 1
        task = asyncio.create_task(self._is_recorded())
        self._recorders.add(task)
        task.add_done_callback(self._recorders.discard)

    def _end_eviction(self, job: Job) -> None:
        """Unless the pod is seen being deleted, it is counted as running again."""
        self._asked_s.pop(job.uid, None)
        if self._cluster.item_of(job) is not None:
            self._cluster.set_evicted(job.id, is_evicted=False)


def _worst(outcomes: Sequence[Written]) -> Written:
    """The first outcome that is not DONE, if there is one."""
    return next((written for written in outcomes if written is not Written.DONE), Written.DONE)
