"""Releases the pods of CPU jobs. Those that must give borrowed cores back are evicted by `Reclaims`.

A release is one patch: it takes the gate away, pins the pod, and says how. It is commit and release in one, so it is
sent only where nothing is in the way. If the planner is killed before it, the next leader decides again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import groupby, islice
from typing import Any, Final

from coda.cycle import CycleResult
from coda.errors import Conflict, Outage
from coda.model import Job, JobId
from coda.model.decision import Start
from coda.placements import placement_from_start
from coda.placements.failed_writes import DOUBT_S
from coda.placements.review import released_placement
from coda.policy import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.pod_events import PodEvents
from coda_extender.cpu_jobs.reclaims import Reclaims
from coda_extender.metrics import Metrics
from coda_extender.write_slots import WriteSlots
from coda_extender.written import Ended, Evicted, Written
from coda_kube.api.client import Client, NotFound, Rejected, TooBusy
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import pod_id_of, release_patch

log = logging.getLogger(__name__)

MOST_RELEASES: Final = 200
"""In one cycle: about a second of writes, so that the next gang need not wait for a Job of 10 000 pods. Our choice."""

TOLD_AFTER_S: Final = 5.0
"""A pod whose place is taken again and again is told so after this, and then once a minute. Our choice: it takes that
long only where kube-scheduler binds other pods all the time."""

_TOLD_AGAIN_S: Final = 60.0

KEPT_S: Final = 0.5
"""A node stays reserved so long for a pod that could not be released: meanwhile foreign pods in flight to it are bound,
and the watch shows what overtook the write. Our choice."""


class PodWriter:
    """Writes as the extender, `at_once` pods at a time; see `WriteSlots`. `held`: whether the Lease is held.
    `doubts`: how much speaks against it that a release works.

    What a slow release takes counts as taken until its fate is known."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        metrics: Metrics,
        policy: PolicyConfig,
        held: Callable[[], bool],
        *,
        at_once: int,
        on_end: Ended,
        on_evicted: Evicted,
        doubts: Callable[[JobId], int],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._policy = policy
        self._held = held
        self._on_end = on_end
        self._doubts = doubts
        self._slots = WriteSlots(at_once, cluster.changed.set)
        self._events = PodEvents(client)
        self._overtaken_s: dict[JobId, float] = {}  # since when its places are taken, or when it is told so again
        self._reclaims = Reclaims(client, cluster, metrics, held, self._slots, on_evicted, policy.reclaim)

    async def take_over(self) -> None:
        """Begin to lead: the places that evicted pods left under earlier leaders count. Raises Outage."""
        await self._reclaims.take_over()

    def reclaimed_s(self) -> Mapping[str, float]:
        """When CPU jobs were told to give their cores back in the last minute, by uid of the pod."""
        return self._reclaims.recent_s()

    def cancel(self) -> None:
        """Give up every slow write: this replica leads no more."""
        self._reclaims.cancel()
        self._slots.cancel()

    def writes(self, result: CycleResult) -> Iterator[Coroutine[Any, Any, Written]]:
        """The evictions for each job that needs room, and one write for each CPU job that the cycle starts.

        Of too many, those whose releases have failed are left for later."""
        decision, job_by_id = result.decision, result.decided_on
        for _, stops in groupby(sorted(decision.stops, key=lambda stop: stop.by), key=lambda stop: stop.by):
            yield self._reclaims.make_room([(job_by_id[stop.job], stop) for stop in stops])
        for start in islice(sorted(decision.starts, key=lambda start: self._doubts(start.job)), MOST_RELEASES):
            yield self._start(job_by_id[start.job], start)

    async def _start(self, job: Job, start: Start) -> Written:
        written = await self._slots.run(job.id, lambda: self._release(job, start))
        if written is None:
            self._on_end(job.id, Written.BUSY, "")
        return written or Written.BUSY

    async def _release(self, job: Job, start: Start) -> Written:
        item, now_s = self._cluster.item_of(job), self._client.clock()
        if item is None:
            return Written.STALE
        if not self._held():
            return Written.LAPSED
        placement = released_placement(
            placement_from_start(start, plan_id=uuid.uuid4().hex[:16], epoch=0, now_s=now_s, config=self._policy),
            epoch=0,
            now_s=now_s,
            config=self._policy,
        )
        fits = self._cluster.fits_at_once(job, start.nodes)
        version = self._cluster.begin_write(job.id, placement)
        if not fits:
            self._cluster.end_write_in(job.id, version, KEPT_S)
            self._tell_overtaken(job, item, start.nodes[0], now_s)
            return Written.NEEDLESS
        self._overtaken_s.pop(job.id, None)
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
        self._on_end(job.id, written, why)
        return written

    def _tell_overtaken(self, job: Job, pod: Json, node: str, now_s: float) -> None:
        """No wait reason says it: each cycle starts the pod, and each time something is in its way."""
        for gone in [known for known in self._overtaken_s if not self._cluster.state.knows(known)]:
            del self._overtaken_s[gone]
        if now_s >= self._overtaken_s.setdefault(job.id, now_s + TOLD_AFTER_S):
            self._overtaken_s[job.id] = now_s + _TOLD_AGAIN_S
            said = (
                f"its place on {node} was taken by pods that kube-scheduler binds meanwhile; it is tried again at once"
            )
            self._events.post(pod, "PlaceTaken", said)

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


def _path(job: JobId) -> str:
    namespace, _, name = (pod_id_of(job) or "").partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
