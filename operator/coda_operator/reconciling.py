"""One job, one step: read the situation, let `coda.lifecycle` decide, write. Safe to repeat after any interruption.

Decisions that rest on a pod being absent are made on a fresh, consistent list of the job's pods, never on a watch that
may be late. Status writes carry the resourceVersion they were decided on; a conflict means: read again, decide again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from coda.allocator import start_cores
from coda.errors import Conflict, Outage
from coda.gang import LifecycleConfig, Progress, Situation, Step
from coda.lifecycle import launch_refused, next_step, template_refused
from coda.model import Phase
from coda_kube.client import AlreadyExists, Client, Json, Rejected
from coda_kube.naming import FINALIZER, OPERATOR
from coda_kube.writing import job_path, status_patch
from coda_operator.cluster import Cluster
from coda_operator.events import Recorder
from coda_operator.gang_pods import headless_service, probe_pod, rank_pod
from coda_operator.observing import situation_from_json, tuning_from_json
from coda_operator.reporting import request_from_pod, status_json

log = logging.getLogger(__name__)

MOST_CORES = 1024  # the CRD's limit, where no node says less
_MOVES_ON = frozenset({Phase.RESTARTING, Phase.SUSPENDED})


class NotLeaderError(Outage):
    """The Lease is not ours (any more): nothing may be written."""


class Reconciler:
    """Does what one job needs; `may_write` is asked before every write."""

    def __init__(
        self,
        client: Client,
        cluster: Cluster,
        recorder: Recorder,
        config: LifecycleConfig,
        *,
        may_write: Callable[[], bool],
        writes_in_flight: int,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._recorder = recorder
        self._config = config
        self._may_write = may_write
        self._slots = asyncio.Semaphore(writes_in_flight)

    async def reconcile(self, key: str) -> float | None:
        """Take the job one step on; when to look again. Raises Outage when the API server fails."""
        job = self._cluster.jobs.by_key.get(key)
        if job is None:
            return None
        if not self._may_write():
            raise NotLeaderError("the Lease is not ours")
        try:
            return await self._take_step(job)
        except Conflict:
            await self._cluster.read_job_again(key)
            return time.time()

    async def _take_step(self, job: Json) -> float | None:
        if FINALIZER not in (job["metadata"].get("finalizers") or ()):
            if "deletionTimestamp" in job["metadata"]:
                return None
            job = await self._set_finalizers(job, [*(job["metadata"].get("finalizers") or ()), FINALIZER])
        situation, step = self._decide(job)
        if _needs_fresh_pods(situation, step):
            await self._cluster.read_pods_again(job)
            situation, step = self._decide(job)
        if step.create:
            situation, step = self._decide(job, epoch=await self._cluster.planner_epoch())
        if step.create:
            step = await self._launch(job, situation, step) or step
        if step.accept:
            return await self._accept(job, step)
        await self._write_progress(job, situation.progress, step.progress, (job.get("status") or {}).get("request"))
        await self._delete(job, step)
        if step.finalize:
            kept = [name for name in job["metadata"]["finalizers"] if name != FINALIZER]
            await self._set_finalizers(job, kept)
        if step.remove:
            await self._client.delete(job_path(_key(job)), uid=job["metadata"]["uid"])
        return step.wake_s

    def _decide(self, job: Json, *, epoch: int | None = None) -> tuple[Situation, Step]:
        pods = self._cluster.pods_of(job)
        situation = situation_from_json(job, pods, self._cluster.unready_nodes(pods), epoch=epoch)
        return situation, next_step(situation, time.time(), self._config)

    async def _accept(self, job: Json, step: Step) -> float | None:
        """Ask the API server what one rank is, by a dry run, and write the job into the queue."""
        cores = self._cores(job["spec"])
        probe = probe_pod(job, attempt=step.progress.attempt, cores=cores)
        path = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        try:
            admitted = await self._client.create(path, probe, {"dryRun": "All", "fieldValidation": "Strict"})
        except Rejected as error:
            if "exceeded quota" not in str(error):
                refused = template_refused(step.progress, job["metadata"]["generation"], str(error), time.time())
                await self._write_progress(job, None, refused, None)
                return None
            admitted = probe  # the planner refuses it by that quota, with numbers, until there is room
        await self._write_progress(job, None, step.progress, request_from_pod(admitted, cores=cores))
        return None

    def _cores(self, spec: Json) -> int:
        wanted = spec["cpusPerReplica"]
        if isinstance(wanted, int):
            return wanted
        gpus = spec["gpusPerReplica"]
        category, hints = tuning_from_json(spec)
        return start_cores(category, hints, gpus, self._cluster.most_cores(gpus) or MOST_CORES)

    async def _launch(self, job: Json, situation: Situation, step: Step) -> Step | None:
        """Create the missing pods; a step of its own when the API server refuses one."""
        placement = situation.placement
        assert placement is not None
        if situation.terms.replicas > 1 and not situation.pods:
            await self._create_service(job)
        results = await asyncio.gather(
            *(self._write(self._create_pod(job, rank_pod(job, placement, rank))) for rank in step.create),
            return_exceptions=True,
        )
        refusals = [error for error in results if isinstance(error, Rejected)]
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, Rejected):
                raise error
        situation, step = self._decide(job, epoch=placement.epoch)
        if refusals:
            quota = "exceeded quota" in str(refusals[0])
            reason = "QuotaExceeded" if quota else "PodRefused"
            return launch_refused(situation, reason, str(refusals[0]), time.time(), self._config)
        return step

    async def _create_pod(self, job: Json, pod: Json) -> None:
        path = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        try:
            created = await self._client.create(path, pod)
        except AlreadyExists:
            created = await self._client.get(f"{path}/{pod['metadata']['name']}")
            owners = created["metadata"].get("ownerReferences") or ()
            if not any(owner["uid"] == job["metadata"]["uid"] for owner in owners):
                sentence = f"a pod named {pod['metadata']['name']} exists and is not this job's"
                raise Rejected(409, "AlreadyExists", sentence) from None
        self._cluster.pods.put(created)

    async def _create_service(self, job: Json) -> None:
        path = f"/api/v1/namespaces/{job['metadata']['namespace']}/services"
        try:
            await self._write(self._client.create(path, headless_service(job)))
        except AlreadyExists:
            service = await self._client.get(f"{path}/{job['metadata']['name']}")
            if service["spec"].get("clusterIP") != "None":
                log.warning(
                    "%s: a Service of that name exists and is not headless: ranks may not find rank 0", _key(job)
                )

    async def _write_progress(self, job: Json, before: Progress | None, after: Progress, request: Json | None) -> None:
        if after == before:
            return
        status = status_json(after, job.get("status") or {}, request, job["spec"], time.time())
        patch = status_patch(_key(job), status, uid=job["metadata"]["uid"], version=job["metadata"]["resourceVersion"])
        written = await self._write(self._client.apply(job_path(_key(job), status=True), patch, manager=OPERATOR))
        if before is None or (before.phase, before.reason, before.attempt) != (
            after.phase,
            after.reason,
            after.attempt,
        ):
            self._recorder.record(job, after)
        self._cluster.jobs.put(written)

    async def _delete(self, job: Json, step: Step) -> None:
        pods = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        await asyncio.gather(
            *(self._write(self._client.delete(f"{pods}/{pod.name}", uid=pod.uid)) for pod in step.delete)
        )

    async def _set_finalizers(self, job: Json, finalizers: list[str]) -> Json:
        version = job["metadata"]["resourceVersion"]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        written: Json = await self._write(self._client.patch(job_path(_key(job)), patch))
        self._cluster.jobs.put(written)
        return written

    async def _write(self, request: Coroutine[Any, Any, Any]) -> Any:
        """One write, within the limit of writes in flight, and only while the Lease is ours."""
        async with self._slots:
            if not self._may_write():
                request.close()
                raise NotLeaderError("the Lease is not ours")
            return await request


def _key(job: Json) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


def _needs_fresh_pods(situation: Situation, step: Step) -> bool:
    """True for decisions that rest on a pod being absent."""
    before, after = situation.progress.phase, step.progress.phase
    moved_on = before in _MOVES_ON and after is Phase.QUEUED
    return step.finalize or moved_on or (after is Phase.RESTARTING and step.progress.reason == "PodGone")
