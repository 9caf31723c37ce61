"""Creates and resizes the pods of a gang, and creates and deletes its Service. Every write is safe to repeat.

A pod's creation cannot be made conditional on its job's version. So each create is preceded by a check that the job is
still the one that was decided on; otherwise no further pod is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coda.allocator import RankSize
from coda.errors import Conflict
from coda.lifecycle import Situation, Step
from coda.lifecycle.state import of_attempt
from coda_kube.api.client import STRATEGIC_MERGE, AlreadyExists, Client, NotFound, NotServed, Rejected
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BOOT, KIND
from coda_kube.objects.quantities import quantity_from_milli
from coda_kube.objects.quota_scopes import scopes_from_request, scopes_of_pod, shortage
from coda_operator.cores_limit import NO_LIMIT, CoresLimit
from coda_operator.reconcile.api_refusals import Blame, blame_for, reason_for, reason_for_resize
from coda_operator.reconcile.pod_endings import ANOTHER
from coda_operator.reconcile.pod_spec import headless_service, rank_pod
from coda_operator.reconcile.request_slots import Purpose, RequestSlots
from coda_operator.trials import job_for
from coda_operator.view import ClusterView, JobRecord

log = logging.getLogger(__name__)

MORE_CORES_PER_GPU: Final = "CoresPerGPU"
"""The reason of a rank that does not get more cores: the platform limits them by its GPUs."""

_NOT_SERVED: Final = "the server could not find the requested resource"


class NameTaken(Rejected):
    """Another owner's object has the name that one of the job's needs."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(409, "AlreadyExists", f"a {kind} named {name} exists and is not this job's")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRefused:
    """The API server refuses a pod, or its new cores, and no retry helps now; `reason` is one word."""

    reason: str
    error: Rejected


class GangPods:
    """Writes the pods of gangs."""

    def __init__(
        self,
        client: Client,
        cluster: ClusterView,
        requests: RequestSlots,
        trial_nodes: Mapping[str, str],
        pool_taints: Sequence[str] = (),
        *,
        cores_limit: CoresLimit = NO_LIMIT,
    ) -> None:
        self._cores_limit = cores_limit
        self._trial_nodes = trial_nodes
        self._pool_taints = pool_taints
        self._client = client
        self._cluster = cluster
        self._requests = requests

    async def create_or_resize(self, job: JobRecord, now: Situation, step: Step) -> PodRefused | None:
        """Create the missing pods, or change the cores of the ranks. Returns the first refusal that no retry helps.

        Every pod written is in the cluster view. Raises Conflict once the job or a pod changed, NotFound if a pod goes
        while it is read, and Outage."""
        if step.create:
            refusal = await self._create(job, now, step.create)
            return None if refusal is None else PodRefused(reason=reason_for(refusal), error=refusal)
        if (beyond := self._cores_limit.refuses(job, step.resize)) is not None:
            return PodRefused(reason=MORE_CORES_PER_GPU, error=beyond)
        refusal = await self._resize(job, step.resize)
        return None if refusal is None else PodRefused(reason=reason_for_resize(refusal), error=refusal)

    async def delete_service(self, job: JobRecord) -> None:
        """Delete the job's Service, if it may have one: a quota of its namespace may count Services.

        One that nobody may delete goes with the job. Raises Outage."""
        if job.json["spec"]["replicas"] == 1 and job.progress.attempt == 1:
            return  # it was never a gang
        path = f"{_services_path(job)}/{job.json['metadata']['name']}"
        try:
            async with self._requests.reading():
                found = await self._client.get(path)
            if _is_owned(found, job):
                async with self._requests.writing():
                    await self._client.delete(path, uid=found["metadata"]["uid"])
        except NotFound:
            return
        except Rejected as refusal:
            log.warning("the Service of %s stays until the job is deleted: %s", job.key, refusal)

    async def _create(self, job: JobRecord, now: Situation, ranks: Iterable[int]) -> Rejected | None:
        errors: list[BaseException] = []

        async def create(rank: int) -> None:
            try:
                async with self._requests.writing(Purpose.CREATE, job.uid):
                    if not errors:
                        self._check_unchanged(job)
                        await self._create_pod(job, rank)
            except Exception as error:  # the first of them is raised below, when no create is under way any more
                errors.append(error)

        try:
            if job.terms.replicas > 1 and not of_attempt(now):  # once an attempt, whatever is left of older ones
                await self._require_scoped_quotas(job)
                await self._create_service(job)
        except Rejected as error:
            errors.append(error)
        else:
            await asyncio.gather(*(create(rank) for rank in ranks))
        return _final_refusal(errors, _is_final_for_create)

    async def _resize(self, job: JobRecord, changes: Iterable[tuple[RankSize, int]]) -> Rejected | None:
        errors = await _errors_of(self._resize_pod(job, size, cores_m) for size, cores_m in changes)
        return _final_refusal(errors, _is_final_for_resize)

    async def _require_scoped_quotas(self, job: JobRecord) -> None:
        """Raise Rejected if a quota with scopes has not enough for the whole gang: else it would start by halves."""
        assert job.placement is not None
        async with self._requests.reading():
            listing = await self._client.list_pages(f"{job.pods_path.rpartition('/')[0]}/resourcequotas")
        if not listing["items"]:
            return
        request = job.request or {}
        scopes = scopes_from_request(request)
        if scopes is None:  # an earlier version accepted it: a default class is not known
            scopes = scopes_of_pod(rank_pod(job.json, job.placement, 0, job.progress.memory))
        lacks = shortage(listing["items"], scopes, request.get("quota") or {}, job.terms.replicas)
        if lacks is not None:
            raise Rejected(403, "Forbidden", lacks)

    async def _create_service(self, job: JobRecord) -> None:
        """Create the Service under which ranks find rank 0.

        Raises NameTaken; Conflict while one that is an earlier job's, or names other ranks, is going away."""
        wanted, path = headless_service(job.json), _services_path(job)
        try:
            async with self._requests.writing():
                await self._client.create(path, wanted)
        except AlreadyExists:
            service = f"{path}/{wanted['metadata']['name']}"
            found = await self._client.get(service)
            if _is_owned(found, job) and found["spec"].get("selector") == wanted["spec"]["selector"]:
                return
            if not any(owner["kind"] == KIND for owner in found["metadata"].get("ownerReferences") or ()):
                raise NameTaken("Service", wanted["metadata"]["name"]) from None
            async with self._requests.writing():  # an earlier job's, not collected yet; or spec.dnsNames was edited
                await self._client.delete(service, uid=found["metadata"]["uid"])
            raise Conflict(f"{service} is an earlier job's, or names other ranks") from None

    async def _create_pod(self, job: JobRecord, rank: int) -> None:
        assert job.placement is not None
        asked = job_for(job.json, job.progress, self._trial_nodes)
        pod = rank_pod(asked, job.placement, rank, job.progress.memory, self._pool_taints)
        name, notes, node = pod["metadata"]["name"], pod["metadata"]["annotations"], job.placement.nodes[rank]
        notes.pop(ANNOTATION_BOOT, None)  # a template's own
        if boot := self._cluster.nodes.boots([node]).get(node):
            notes[ANNOTATION_BOOT] = boot
        try:
            created = await self._client.create(job.pods_path, pod)
        except AlreadyExists:
            created = await self._client.get(f"{job.pods_path}/{name}")
            if not _is_owned(created, job):
                raise NameTaken("pod", name) from None
        self._cluster.pods.put_again(created)

    async def _resize_pod(self, job: JobRecord, size: RankSize, cores_m: int) -> None:
        path = f"{job.pods_path}/{size.name}"
        async with self._requests.writing(Purpose.CREATE, job.uid):
            self._check_unchanged(job)  # its growth is withheld no longer once it is ordered to stop
            try:
                changed = await self._client.patch(f"{path}/resize", resize_patch(size, cores_m), STRATEGIC_MERGE)
            except (Conflict, Rejected) as error:
                if not isinstance(error, Conflict) and ANOTHER not in str(error):
                    raise
                self._cluster.pods.put(await self._client.get(path))
                raise Conflict(f"{path} is not as it was seen") from error
            except NotServed as error:
                if _NOT_SERVED not in str(error):
                    raise
                raise Rejected(404, "NotFound", str(error)) from error
        self._cluster.pods.put(changed)

    def _check_unchanged(self, job: JobRecord) -> None:
        known = self._cluster.jobs.by_key.get(job.key)
        if known is None or version_of(known) != version_of(job.json):
            raise Conflict(f"{job.key} changed while its pods were written")


def resize_patch(size: RankSize, cores_m: int) -> Json:
    """Return a patch of request and limit together, which keeps the QoS class; it fails on any other pod or version."""
    cpu = {"cpu": quantity_from_milli(cores_m)}
    container = {"name": size.container, "resources": {"requests": cpu, "limits": cpu}}
    return {"metadata": {"uid": size.uid, "resourceVersion": size.version}, "spec": {"containers": [container]}}


async def _errors_of(requests: Iterable[Coroutine[Any, Any, None]]) -> list[BaseException]:
    results = await asyncio.gather(*requests, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]


def _final_refusal(errors: Sequence[BaseException], is_final: Callable[[Rejected], bool]) -> Rejected | None:
    """Return the first refusal that no retry will mend, or None if there was no error. Raises other errors."""
    refused = [error for error in errors if isinstance(error, Rejected) and is_final(error)]
    if errors and not refused:
        raise errors[0]
    return refused[0] if refused else None


def _is_final_for_create(refusal: Rejected) -> bool:
    return isinstance(refusal, NameTaken) or blame_for(refusal) is not Blame.MOMENT


def _is_final_for_resize(refusal: Rejected) -> bool:
    if refusal.status == 404:  # the pod is gone, or no pod can be resized here
        return _NOT_SERVED in str(refusal)
    return blame_for(refusal) is not Blame.MOMENT


def _services_path(job: JobRecord) -> str:
    return f"/api/v1/namespaces/{job.json['metadata']['namespace']}/services"


def _is_owned(item: Json, job: JobRecord) -> bool:
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == job.uid for owner in owners)
