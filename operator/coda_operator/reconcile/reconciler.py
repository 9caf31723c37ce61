"""One job, one step: read the situation, let `coda.lifecycle.steps` decide, write. Safe to repeat after any
interruption.

Decisions that rest on a pod being absent are made on a fresh, consistent list of the job's pods, never on a watch that
may be late. Status writes carry the resourceVersion they were decided on; a conflict means: read again, decide again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coda.errors import Conflict
from coda.lifecycle.failures import POD_GONE
from coda.lifecycle.state import LifecycleConfig, Progress, Situation, Step
from coda.lifecycle.steps import furthest_step, is_passing, launch_refused, template_refused
from coda.model.job import Phase
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.api.watch_cache import key_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import FINALIZER, OPERATOR
from coda_kube.objects.write import job_path, status_patch
from coda_operator.metrics import Metrics
from coda_operator.reconcile.acceptance import Acceptor, TemplateRefused
from coda_operator.reconcile.api_refusals import Blame, blame_for, reason_for
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.launch import Launcher, NameTaken
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.reconcile.resize import Resizer
from coda_operator.reconcile.status import is_news, status_json
from coda_operator.view.cluster import ClusterView
from coda_operator.view.job_status import situation_from_json

TRIES_AT_ONCE: Final = 3  # after so many conflicts in a row somebody fights us: back off like after an outage
ACCEPTED_AT_ONCE: Final = 8
"""The other new jobs of a burst wait as keys, not as objects of 40 KiB each; our choice: half the slots of
`RequestSlots`,
so that no slow webhook of theirs holds up the jobs that were accepted."""
_MOVES_ON: Final = frozenset({Phase.RESTARTING, Phase.SUSPENDED})


class Reconciler:
    """Does what one job needs."""

    def __init__(
        self,
        client: Client,
        cluster: ClusterView,
        requests: RequestSlots,
        recorder: Recorder,
        metrics: Metrics,
        config: LifecycleConfig,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._recorder = recorder
        self._metrics = metrics
        self._config = config
        self._clock = clock
        self._accepting = asyncio.Semaphore(ACCEPTED_AT_ONCE)
        self._kept_back_s: dict[str, float] = {}  # uid of a job -> until when its news is
        self._acceptor = Acceptor(client, cluster, requests)
        self._launcher = Launcher(client, cluster, requests)
        self._resizer = Resizer(client, cluster, requests, clock)

    async def reconcile(self, key: str) -> float | None:
        """Take the job one step on; when to look again. Raises a CodaError when the API server fails or refuses."""
        if not self._cluster.is_new(key):
            return await self._reconcile(key)
        async with self._accepting:
            return await self._reconcile(key)

    async def _reconcile(self, key: str) -> float | None:
        met: Conflict | NotFound | None = None
        for _ in range(TRIES_AT_ONCE):
            job = self._cluster.job(key)
            if job is None:
                return None
            self._requests.check()
            try:
                return await self._take_step(job)
            except (Conflict, NotFound) as error:
                met = error
                async with self._requests.reading():
                    await self._cluster.read_job_again(key)
        assert met is not None
        raise met

    async def _take_step(self, job: Json) -> float | None:
        situation, step = self._decide(job)
        if not _is_held(job):
            if "deletionTimestamp" in job["metadata"]:
                return None  # somebody took our finalizer away: what is left is the garbage collector's
            if not step.accept:
                job = await self._hold(job)
        situation, step = await self._make_sure(job, situation, step)
        if step.create:
            step = await self._launch(job, situation, step)
        if step.accept:
            await self._accept(job, situation.progress, step.progress)
            return None
        if (later_s := self._write_later_s(job, situation.progress, step.progress)) is not None:
            return min(later_s, step.wake_s or later_s)
        step = await self._resize(job, situation, step)
        await self._write_progress(job, situation.progress, step.progress, (job.get("status") or {}).get("request"))
        await self._delete_pods(job, step)
        if step.finalize:
            await self._set_finalizers(job, [name for name in job["metadata"]["finalizers"] if name != FINALIZER])
        if step.remove:
            async with self._requests.writing():
                await self._client.delete(job_path(key_of(job)), uid=job["metadata"]["uid"])
        return step.wake_s

    async def _make_sure(self, job: Json, situation: Situation, step: Step) -> tuple[Situation, Step]:
        """Decide again on what the step rests on, as it is now: that pods are absent, that the plan's epoch holds."""
        if _needs_fresh_pods(situation, step):
            async with self._requests.reading():
                await self._cluster.read_pods_again(job)
            situation, step = self._decide(job)
        if step.create:
            async with self._requests.reading():
                epoch = await self._cluster.planner_epoch()
            situation, step = self._decide(job, epoch=epoch)
        return situation, step

    def _write_later_s(self, job: Json, before: Progress, after: Progress) -> float | None:
        """Until when to keep news back because other news may soon take its place; None: write now."""
        uid = job["metadata"]["uid"]
        if not is_passing(before, after):
            self._kept_back_s.pop(uid, None)
            return None
        until_s = self._kept_back_s.setdefault(uid, self._clock() + self._config.passing_s)
        return until_s if self._clock() < until_s else None

    def _decide(self, job: Json, *, epoch: int | None = None) -> tuple[Situation, Step]:
        pods = self._cluster.pods_of(job)
        attempt = (job.get("status") or {}).get("attempt") or 1
        situation = situation_from_json(
            job,
            pods,
            self._cluster.unready_nodes(pods),
            vanished=self._cluster.vanished(job, attempt),
            epoch=epoch,
        )
        return situation, furthest_step(situation, self._clock(), self._config)

    async def _accept(self, job: Json, before: Progress, after: Progress) -> None:
        """Ask the API server what one rank is, and write the job into the queue."""
        asking = asyncio.ensure_future(self._acceptor.request_of(job, after.attempt))
        try:
            job = job if _is_held(job) else await self._hold(job)
            request = await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if isinstance(request, TemplateRefused):
            after = template_refused(after, job["metadata"]["generation"], request.message, self._clock())
        await self._write_progress(job, before, after, None if isinstance(request, TemplateRefused) else request)

    async def _launch(self, job: Json, before: Situation, step: Step) -> Step:
        """Create the missing pods; the step that follows, which is the roll-back when something is refused."""
        placement = before.placement
        assert placement is not None
        try:
            if before.terms.replicas > 1 and not before.pods:
                await self._launcher.create_service(job)
            refusal = await self._launcher.create_pods(job, placement, step.create)
        except Rejected as error:
            if not isinstance(error, NameTaken) and blame_for(error) is Blame.MOMENT:
                raise
            refusal = error
        after, step = self._decide(job, epoch=placement.epoch)
        if refusal is None:
            return step
        return launch_refused(after, reason_for(refusal), str(refusal), self._clock(), self._config)

    async def _resize(self, job: Json, now: Situation, step: Step) -> Step:
        """Carry out a grant of cores; the step that follows from how far that is."""
        progress, wake_s = await self._resizer.take_step(job, now, step.progress)
        moments_s = [moment_s for moment_s in (step.wake_s, wake_s) if moment_s is not None]
        return replace(step, progress=progress, wake_s=min(moments_s, default=None))

    async def _write_progress(self, job: Json, before: Progress, after: Progress, request: Json | None) -> None:
        if after == before:
            return
        status = status_json(after, job.get("status") or {}, request, job["spec"], self._clock())
        metadata = job["metadata"]
        patch = status_patch(key_of(job), status, uid=metadata["uid"], version=metadata["resourceVersion"])
        async with self._requests.writing():
            written = await self._client.apply(job_path(key_of(job), status=True), patch, manager=OPERATOR)
        self._metrics.note(before, after)
        if is_news(before, after):
            self._recorder.record(job, after)
        self._cluster.jobs.put(written)

    async def _delete_pods(self, job: Json, step: Step) -> None:
        pods = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"

        async def delete(name: str, uid: str) -> None:
            async with self._requests.writing(bulk=True):
                await self._client.delete(f"{pods}/{name}", uid=uid)

        results = await asyncio.gather(*(delete(pod.name, pod.uid) for pod in step.delete), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    async def _hold(self, job: Json) -> Json:
        return await self._set_finalizers(job, [*(job["metadata"].get("finalizers") or ()), FINALIZER])

    async def _set_finalizers(self, job: Json, finalizers: list[str]) -> Json:
        version = job["metadata"]["resourceVersion"]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        async with self._requests.writing():
            written = await self._client.patch(job_path(key_of(job)), patch)
        self._cluster.jobs.put(written)
        return written


def _is_held(job: Json) -> bool:
    """True while our finalizer keeps the job from going before its pods."""
    return FINALIZER in (job["metadata"].get("finalizers") or ())


def _needs_fresh_pods(situation: Situation, step: Step) -> bool:
    """True for decisions that rest on a pod being absent."""
    before, after = situation.progress.phase, step.progress.phase
    moved_on = before in _MOVES_ON and after is Phase.QUEUED
    return step.finalize or moved_on or (after is Phase.RESTARTING and step.progress.reason == POD_GONE)
