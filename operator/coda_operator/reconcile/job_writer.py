"""Writes the TrainingJob itself: its finalizer, the operator's part of its status, and its deletion.

Each write carries the resourceVersion, or for the deletion the uid, of the job that was decided on.

A status may be stored though nobody hears the answer. Then it is counted and told once the job is read with it. A
process that dies before loses the event: the next one cannot know whether it was posted, and posts none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from coda.errors import Conflict, Outage
from coda.lifecycle import Progress
from coda.lifecycle.event_rules import is_news
from coda_kube.api.client import Client
from coda_kube.api.status_apply import apply_status
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import FINALIZER, OPERATOR
from coda_kube.objects.pods.node_terms import prefers_nodes
from coda_kube.objects.write import status_patch
from coda_operator.metrics import Metrics
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.reconcile.seat_environment import LEFT_OUT, left_out_text
from coda_operator.reconcile.status import PASSING_FIELDS, status_json
from coda_operator.view import ClusterView, JobRecord
from coda_operator.view.time_ledger import GangSeen

DEFAULT_GRACE_S: Final = 30.0  # of Kubernetes, for pods that do not say how long they may take to end

PREFERENCE_IGNORED: Final = "PreferenceIgnored"
"""The reason of the event that says so."""

_NO_PREFERENCES: Final = (
    "its template's preferred node affinity does not count: Coda chooses the nodes; name those that it needs in "
    "nodeSelector, or in required node affinity"
)
_MOST_IN_DOUBT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a write makes of a job's status. `version`: the job's before."""

    job: Json
    version: str
    before: Progress
    after: Progress
    gpus: int
    placed_s: float
    at_s: float

    def is_of(self, progress: Progress) -> bool:
        """True if this progress is what the write made, but for fields that say less."""
        told = [(one.phase, one.reason, one.attempt, one.generation) for one in (progress, self.after)]
        return told[0] == told[1]


class JobWriter:
    """Writes jobs. What was written is in the cluster's cache at once. Every write raises Conflict and Outage."""

    def __init__(
        self,
        client: Client,
        cluster: ClusterView,
        requests: RequestSlots,
        recorder: Recorder,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._in_doubt: dict[str, _Change] = {}  # by uid, oldest first: writes that nobody answered

    def settle(self, job: JobRecord) -> None:
        """Count and tell what the last write made of the job, if it had no answer and turns out to be stored."""
        change = self._in_doubt.get(job.uid)
        if change is None or change.version == job.version:
            return
        del self._in_doubt[job.uid]
        if change.is_of(job.progress):
            self._tell(job.uid, replace(change, after=job.progress))

    async def add_finalizer(self, job: JobRecord) -> JobRecord:
        """Keep the job from going before its pods. Returns the job as it is then; no request if it is held already."""
        if job.is_held:
            return job
        finalizers = job.json["metadata"].get("finalizers") or ()
        written = await self._set_finalizers(job, [*finalizers, FINALIZER])
        return replace(job, json=written, is_held=True)

    async def remove_finalizer(self, job: JobRecord) -> None:
        """Let the API server delete the job, now or whenever somebody asks. No request if it is not held."""
        if not job.is_held:
            return
        finalizers = job.json["metadata"]["finalizers"]
        await self._set_finalizers(job, [name for name in finalizers if name != FINALIZER])

    async def write_progress(
        self,
        job: JobRecord,
        after: Progress,
        request: Json | None,
        *,
        at_s: float = 0.0,
        live: int | None = None,
        is_over: bool = False,
    ) -> None:
        """Write the status if it or the request changed, of a held job only; then count it and post an event.

        `at_s`: when that happened which this change says; 0: now. `live`: ranks whose pods may still run; None: nobody
        looked. `is_over`: it is deleted, and nothing of it may still run."""
        before, old = job.progress, job.json.get("status") or {}
        at_s = at_s or self._clock()
        gang = _gang(job.json["spec"], live, is_over=is_over)
        spent = self._cluster.times.to_write(job.uid, before, after, old, at_s, gang)
        after = replace(after, spent=spent)
        if after == before and request == job.request:
            return
        job = await self.add_finalizer(job)
        status = status_json(after, job.json.get("status") or {}, request, job.json["spec"], at_s)
        patch = status_patch(job.key, status, uid=job.uid, version=job.version)
        placed_s = job.placement.committed_s if job.placement is not None else 0.0
        change = _Change(
            job=job.json,
            version=job.version,
            before=before,
            after=after,
            gpus=status["gpus"],
            placed_s=placed_s,
            at_s=at_s,
        )
        async with self._requests.writing():
            written = await self._apply(job, patch, change)
        self._tell(job.uid, change)
        self._cluster.put_written(written)

    async def _apply(self, job: JobRecord, patch: Json, change: _Change) -> Json:
        """Apply the status, and note the change if nobody says whether it is stored."""
        try:
            path = f"{job.path}/status"
            written = await apply_status(self._client, path, patch, manager=OPERATOR, fields=PASSING_FIELDS)
        except Conflict:
            raise
        except (Outage, asyncio.CancelledError) as error:  # a lost term cancels
            if not isinstance(error, Outage) or error.may_have_worked:
                self._in_doubt[job.uid] = change
            if len(self._in_doubt) > _MOST_IN_DOUBT:
                del self._in_doubt[next(iter(self._in_doubt))]
            raise
        self._in_doubt.pop(job.uid, None)
        return written

    def _tell(self, uid: str, change: _Change) -> None:
        before, after = change.before, change.after
        self._metrics.count_ends(before, after, uid)
        self._metrics.count_trial(before, after, change.gpus)
        self._metrics.count_start(before, after, change.placed_s, change.at_s)
        if is_news(before, after):
            self._recorder.record(change.job, after)

    def tell_what_is_left_out(self, job: JobRecord, created: Collection[int]) -> None:
        """Post an event if something of their template does not count for these pods: once an attempt, with rank 0."""
        if 0 not in created:
            return
        is_on_seats = job.placement is not None and bool(job.placement.gpus)
        if is_on_seats and (told := left_out_text(job.json)):
            self._recorder.warn(job.json, LEFT_OUT, told)
        if prefers_nodes(job.json["spec"]["template"]["spec"]):
            self._recorder.warn(job.json, PREFERENCE_IGNORED, _NO_PREFERENCES)

    async def delete_job(self, job: JobRecord) -> None:
        """Delete the job; it goes once its finalizers are gone."""
        async with self._requests.writing():
            await self._client.delete(job.path, uid=job.uid)

    async def _set_finalizers(self, job: JobRecord, finalizers: list[str]) -> Json:
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": job.version}}
        async with self._requests.writing():
            written = await self._client.patch(job.path, patch)
        self._cluster.put_written(written)
        return written


def _gang(spec: Json, live: int | None, *, is_over: bool) -> GangSeen:
    grace_s = ((spec.get("template") or {}).get("spec") or {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    return GangSeen(
        ranks=spec["replicas"],
        gpus_per_rank=spec["gpusPerReplica"],
        live=live,
        grace_s=float(grace_s),
        is_over=is_over,
    )
