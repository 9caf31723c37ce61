"""Carries out grants of cores on the pods of running gangs, by in-place resize. Safe to repeat; decides nothing.

A job that tunes nothing costs nothing here: no request is made without a grant that is not carried out yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coda.allocator.resize import RankSize, ResizeState, ResizeStep, give_up, next_resize
from coda.errors import Conflict
from coda.lifecycle.state import PodState, Progress, Situation, of_attempt
from coda.model.job import Phase
from coda_kube.api.client import STRATEGIC_MERGE, Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import quantity_from_milli
from coda_operator.reconcile.api_refusals import Blame, blame_for, reason_for_resize
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view.cluster import ClusterView

_ANOTHER: Final = "metadata.uid"  # another pod has the name now: the API server takes that for a change of the field
_NOT_SERVED: Final = "the server could not find the requested resource"


class Resizer:
    """Resizes ranks. `clock` is in seconds since 1970."""

    def __init__(
        self, client: Client, cluster: ClusterView, requests: RequestSlots, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests
        self._clock = clock

    async def take_step(self, job: Json, now: Situation, after: Progress) -> tuple[Progress, float | None]:
        """Patch what the last granted wish needs; the progress with how far it is, and when to look again.

        Raises Conflict when a pod changed meanwhile, and Outage. What a node or the API server refuses never fails the
        attempt: the resize ends as refused."""
        step = self._next(now, after) if _may_resize(now, after) else None
        if step is None:
            return after, None
        if step.patches:
            refusal = await self._patch(job, step.patches)
            if refusal is not None and step.resize.state is not ResizeState.REVERTING:
                reason = reason_for_resize(refusal)
                return replace(after, resize=give_up(step.resize, reason, str(refusal), self._clock())), None
            if refusal is not None:
                raise refusal
        return replace(after, resize=step.resize), step.wake_s

    def _next(self, now: Situation, after: Progress) -> ResizeStep | None:
        plan = now.placement
        ranks = [pod for pod in of_attempt(now) if pod.state is PodState.STARTED and not pod.terminating]
        sizes = [pod.size for pod in ranks if pod.size is not None]
        if plan is None or plan.attempt != after.attempt or len(sizes) < len(ranks):
            return None
        return next_resize(plan.answer, after.resize, after.attempt, sizes, self._clock())

    async def _patch(self, job: Json, patches: tuple[tuple[RankSize, int], ...]) -> Rejected | None:
        """Set the cores of these ranks; None, or the refusal of one that cannot have them."""
        pods = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"

        async def patch(size: RankSize, cores_m: int) -> None:
            async with self._requests.writing(bulk=True):
                path = f"{pods}/{size.name}"
                try:
                    changed = await self._client.patch(f"{path}/resize", resize_patch(size, cores_m), STRATEGIC_MERGE)
                except (Conflict, Rejected) as error:
                    if not isinstance(error, Conflict) and _ANOTHER not in str(error):
                        raise
                    self._cluster.pods.put(await self._client.get(path))
                    raise Conflict(f"{path} is not as it was seen") from error
            self._cluster.pods.put(changed)

        results = await asyncio.gather(*(patch(*each) for each in patches), return_exceptions=True)
        errors = [error for error in results if isinstance(error, BaseException)]
        refused = [error for error in errors if isinstance(error, Rejected) and _is_final(error)]
        if errors and not refused:
            raise errors[0]
        return refused[0] if refused else None


def resize_patch(size: RankSize, cores_m: int) -> Json:
    """Request and limit together, so that the pod keeps its QoS class; of that very pod, as it was seen."""
    cpu = {"cpu": quantity_from_milli(cores_m)}
    container = {"name": size.container, "resources": {"requests": cpu, "limits": cpu}}
    return {"metadata": {"uid": size.uid, "resourceVersion": size.version}, "spec": {"containers": [container]}}


def _may_resize(now: Situation, after: Progress) -> bool:
    """Only a gang that runs, and goes on running."""
    return now.progress.phase is Phase.RUNNING and after.phase is Phase.RUNNING and not now.deleting


def _is_final(refusal: Rejected) -> bool:
    if isinstance(refusal, NotFound):  # the pod is gone, or no pod can be resized here
        return _NOT_SERVED in str(refusal)
    return blame_for(refusal) is not Blame.MOMENT
