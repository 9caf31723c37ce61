"""Releases the pods of CPU jobs, and evicts those that must give borrowed cores back.

A release is one patch: it takes the gate away, pins the pod, and says how. It is commit and release in one, so it is
sent only where nothing is in the way. If the planner is killed before it, the next leader decides again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from coda.cycle import CycleResult
from coda.errors import Conflict, Outage
from coda.model import Job, JobId
from coda.model.decision import Start, Stop, name_for
from coda.placements import placement_from_start
from coda.placements.review import released_placement
from coda.placements.write_limits import DOUBT_S
from coda.policy import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.evictions import evict
from coda_extender.cpu_jobs.places_record import PlacesRecord
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.metrics import Metrics
from coda_extender.written import Ended, Written
from coda_kube.api.client import Client, NotFound, Rejected, TooBusy
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import pod_id_of, release_patch
from coda_kube.returned_places import Place

log = logging.getLogger(__name__)

MOST_RELEASES: Final = 200
"""In one cycle: about a second of writes, so that the next gang need not wait for a Job of 10 000 pods. Our choice."""

KEPT_S: Final = 0.5
"""A node stays reserved so long for a pod that could not be released: meanwhile foreign pods in flight to it are bound,
and the watch shows what overtook the write. Our choice."""


class PodWriter:
    """Writes as the extender, `at_once` pods at a time. `held`: whether the Lease is held."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        metrics: Metrics,
        policy: PolicyConfig,
        held: Callable[[], bool],
        *,
        at_once: int,
    ) -> None:
        self.on_end: Ended = lambda _job, _written, _why: None
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._policy = policy
        self._held = held
        self._events = PodEvents(client)
        self._record = PlacesRecord(client, cluster, held)
        self._slots = asyncio.Semaphore(at_once)

    async def take_over(self) -> None:
        """Begin to lead: the places that evicted pods left under earlier leaders count. Raises Outage."""
        await self._record.load()

    def writes(self, result: CycleResult) -> Iterator[Coroutine[Any, Any, Written]]:
        """One write for each CPU job that the cycle stops or starts, the stops first."""
        decision, job_by_id = result.decision, result.decided_on
        yield from self._evictions([(job_by_id[stop.job], stop) for stop in decision.stops])
        for start in islice(decision.starts, MOST_RELEASES):
            yield self._release(job_by_id[start.job], start)

    def _evictions(self, stops: Sequence[tuple[Job, Stop]]) -> Iterator[Coroutine[Any, Any, Written]]:
        """Their places are recorded first, all in one write."""
        if not stops:
            return
        now_s, cpu_jobs = self._client.clock(), self._cluster.state.cpu_jobs
        for job, _ in stops:
            cpu_jobs.places.add(cpu_jobs.owner_of(job.id), Place(job.queued_s, now_s))
        recorded = asyncio.create_task(self._record.store())
        for job, stop in stops:
            yield self._evict(job, stop, Place(job.queued_s, now_s), recorded)

    async def _release(self, job: Job, start: Start) -> Written:
        now_s = self._client.clock()
        placement = released_placement(
            placement_from_start(start, plan_id=uuid.uuid4().hex[:16], epoch=0, now_s=now_s, config=self._policy),
            epoch=0,
            now_s=now_s,
            config=self._policy,
        )
        async with self._slots:
            item = self._item(job)
            if item is None:
                return Written.STALE
            if not self._held():
                return Written.LAPSED
            fits = self._cluster.fits_at_once(job, start.nodes)
            version = self._cluster.begin_write(job.id, placement)
            if not fits:
                self._cluster.end_write_in(job.id, version, KEPT_S)
                return Written.NEEDLESS
            written, why, doubt_s = Written.LAPSED, "", DOUBT_S
            try:
                body = release_patch(item["spec"].get("affinity") or {}, job, placement, version=version)
                written, why, doubt_s = await self._send(job.id, body)
            finally:
                if written is not Written.DONE:
                    self._cluster.end_write_in(job.id, version, doubt_s)
        if written is Written.DONE:
            self._metrics.releases.inc()
            log.info("%s: released to %s%s", job.id, start.nodes[0], ", on borrowed cores" if start.borrows else "")
        self.on_end(job.id, written, why)
        return written

    async def _send(self, job: JobId, body: Json) -> tuple[Written, str, float]:
        """The outcome, why it is not done, and how long it may still be stored, or be shown as stored."""
        try:
            answer = await self._client.patch(_path(job), body)
        except Conflict as error:
            return Written.CONFLICT, str(error), KEPT_S  # perhaps with an earlier write of ours
        except NotFound as error:
            return Written.STALE, str(error), KEPT_S  # until the watch says that it is gone
        except TooBusy as error:
            return Written.BUSY, str(error), 0.0
        except (Outage, Rejected) as error:
            log.warning("%s was not released: %s", job, error)
            in_doubt = isinstance(error, Outage) and error.may_have_worked
            return Written.FAILED if in_doubt else Written.REFUSED, str(error), DOUBT_S if in_doubt else 0.0
        self._cluster.pods.put(answer)
        return Written.DONE, "", 0.0

    async def _evict(self, job: Job, stop: Stop, place: Place, recorded: asyncio.Task[bool]) -> Written:
        owner = self._cluster.state.cpu_jobs.owner_of(job.id)
        if not await asyncio.shield(recorded):
            return self._stays(owner, place, Written.FAILED)
        async with self._slots:
            item = self._item(job)
            if item is None:
                return self._stays(owner, place, Written.STALE)
            if not self._held():
                return self._stays(owner, place, Written.LAPSED)
            self._cluster.set_evicted(job.id, is_evicted=True)
            written, why = await evict(self._client, self._cluster.state.cpu_jobs.pod(job.id))
            if written is Written.FAILED:  # it may be on its way
                asyncio.get_running_loop().call_later(DOUBT_S, self._end_eviction, job.id)
            elif written is not Written.DONE:
                self._stays(owner, place, written)
                self._end_eviction(job.id)
        self.on_end(job.id, written, why)
        by = name_for(job.namespace, stop.by)
        if written is Written.DONE:
            self._metrics.stops.labels(stop.cause.value).inc()
            log.info("%s: evicted for %s (%s)", job.id, by, stop.cause.value)
            self._events.post(item, "Reclaimed", f"gives its borrowed cores back, so that {by} gets its room")
        elif written is Written.REFUSED:
            self._events.post(item, "ReclaimRefused", f"keeps borrowed cores that {by} waits for: {why}")
        return written

    def _stays(self, owner: str, place: Place, why: Written) -> Written:
        """The pod was not evicted, so it leaves no place."""
        self._cluster.state.cpu_jobs.places.drop(owner, place)
        return why

    def _end_eviction(self, job: JobId) -> None:
        """Unless the pod is seen being deleted, it is counted as running again."""
        self._cluster.set_evicted(job, is_evicted=False)

    def _item(self, job: Job) -> Json | None:
        """The pod, if it is still the one that was decided about."""
        item = self._cluster.pods.by_key.get(pod_id_of(job.id) or "")
        is_same = item is not None and item["metadata"]["uid"] == job.uid and job.id in self._cluster.state.cpu_jobs
        return item if is_same else None


def _path(job: JobId) -> str:
    namespace, _, name = (pod_id_of(job) or "").partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
