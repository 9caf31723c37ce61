"""One job, one step: read, decide (`coda.lifecycle`), write. A step may be repeated after any interruption.

A decision that rests on the absence of a pod is made on a fresh, consistent list of the job's pods, never on a watch
that may be late. A status write carries the resourceVersion it was decided on; after a conflict the step starts again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coda.errors import Conflict
from coda.lifecycle import Evidence, LifecycleConfig, Situation, Step, evidence_needed, furthest_step, step_refused
from coda.lifecycle.event_rules import is_passing
from coda.lifecycle.steps import template_refused
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.json_types import Json
from coda_operator.metrics import Metrics
from coda_operator.reconcile.acceptance import Acceptor, TemplateRefused
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.gang_pods import GangPods, PodRefused
from coda_operator.reconcile.job_writer import JobWriter
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view import ClusterView, JobRecord

TRIES_AT_ONCE: Final = 3  # after this many conflicts in a row another writer fights us: back off as after an outage
ACCEPTED_AT_ONCE: Final = 8
"""New jobs that are accepted at the same time. The others of a burst wait as keys, not as objects of 40 KiB each.

Our choice: half the slots of `RequestSlots`, so that no slow webhook holds up the jobs that were accepted."""


class Reconciler:
    """Takes the steps of jobs."""

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
        self._cluster = cluster
        self._requests = requests
        self._config = config
        self._clock = clock
        self._accepting = asyncio.Semaphore(ACCEPTED_AT_ONCE)
        self._kept_back_until_s: dict[str, float] = {}  # by uid of jobs with a change that may soon be old
        self._acceptor = Acceptor(client, cluster, requests)
        self._gang = GangPods(client, cluster, requests)
        self._writer = JobWriter(client, cluster, requests, recorder, metrics, clock)

    async def reconcile(self, key: str) -> float | None:
        """Take one step of the job; return when to look again.

        Raises a CodaError if the API server fails or refuses."""
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
            self._requests.require_lease()
            try:
                return await self._take_step(job)
            except (Conflict, NotFound) as error:
                met = error
                async with self._requests.reading():
                    await self._cluster.read_job_again(key)
        assert met is not None
        raise met

    async def _take_step(self, job: JobRecord) -> float | None:
        """Read, decide, write; return when to look again."""
        if job.is_deleted and not job.is_held:
            return None  # another removed our finalizer: the garbage collector does what is left
        if job.progress.phase is not None:  # a new job gets it while it is admitted
            job = await self._writer.add_finalizer(job)
        now = await self._read(job)
        step = furthest_step(now, self._clock(), self._config)
        request = job.request
        if step.accept:
            job, step, request = await self._admit(job, step)
        return await self._write(job, now, step, request)

    async def _read(self, job: JobRecord) -> Situation:
        """Read what the step rests on: from the caches, and from the API server what they cannot prove."""
        now = self._cluster.situation(job)
        evidence = evidence_needed(now, self._clock(), self._config)
        if evidence is None:
            return now
        epoch = None
        async with self._requests.reading():
            if evidence is Evidence.PODS:
                await self._cluster.read_pods_again(job)
            else:
                epoch = await self._cluster.planner_epoch()
        return self._cluster.situation(job, epoch=epoch)

    async def _admit(self, job: JobRecord, step: Step) -> tuple[JobRecord, Step, Json | None]:
        """Ask the API server what one rank is, and add our finalizer meanwhile.

        Returns the job as it is then, the step that the answer leaves, and the request of one rank."""
        asking = asyncio.ensure_future(self._acceptor.request_of(job, step.progress.attempt))
        try:
            job = await self._writer.add_finalizer(job)
            answer = await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if isinstance(answer, TemplateRefused):
            refused = template_refused(step.progress, job.generation, answer.message, self._clock())
            return job, replace(step, progress=refused), None
        return job, step, answer

    async def _write(self, job: JobRecord, now: Situation, step: Step, request: Json | None) -> float | None:
        """Carry out what was decided, in an order that a death between two writes does not harm."""
        if (until_s := self._kept_back_s(job, step)) is not None:
            return min(until_s, step.wake_s or until_s)
        refused = await self._gang.create_or_resize(job, now, step)
        if refused is not None:
            step = self._after_refusal(self._cluster.situation(job), step, refused)
        elif step.create:
            return self._clock()  # the next step, at once, decides on the pods that now exist
        await self._writer.write_progress(job, step.progress, request)
        await self._gang.delete_pods(job, step.delete)
        if step.finalize:
            await self._writer.remove_finalizer(job)
        if step.remove:
            await self._writer.delete_job(job)
        return step.wake_s

    def _after_refusal(self, now: Situation, step: Step, refused: PodRefused) -> Step:
        """Take back what a refused pod makes useless. Raises the refusal where nothing is left to take back."""
        after = step_refused(now, step, refused.reason, str(refused.error), self._clock(), self._config)
        if after is None:
            raise refused.error
        return after

    def _kept_back_s(self, job: JobRecord, step: Step) -> float | None:
        """Return until when a change stays unwritten because the next one may soon follow; None: write now."""
        if not is_passing(job.progress, step.progress):
            self._kept_back_until_s.pop(job.uid, None)
            return None
        until_s = self._kept_back_until_s.setdefault(job.uid, self._clock() + self._config.passing_s)
        return until_s if self._clock() < until_s else None
