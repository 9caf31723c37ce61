"""Creates what an attempt needs: the headless Service and the missing pods. Safe to repeat; decides nothing.

Pods carry no resourceVersion to make their creation conditional, so each create is preceded by a look at the job: as
soon as it is not the one that was decided on, no further pod is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coda.errors import Conflict
from coda.model.job import Placement
from coda_kube.api.client import AlreadyExists, Client, Rejected
from coda_kube.api.watch_cache import key_of, version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import KIND
from coda_operator.reconcile.api_refusals import Blame, blame_for
from coda_operator.reconcile.pod_spec import headless_service, rank_pod
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view.cluster import ClusterView


class NameTaken(Rejected):
    """Somebody else's object has the name that one of the job's needs."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(409, "AlreadyExists", f"a {kind} named {name} exists and is not this job's")


class Launcher:
    """Creates the objects of attempts."""

    def __init__(self, client: Client, cluster: ClusterView, requests: RequestSlots) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests

    async def create_service(self, job: Json) -> None:
        """The Service under which ranks find rank 0. Raises NameTaken; Conflict while a namesake's is going away."""
        path = f"/api/v1/namespaces/{job['metadata']['namespace']}/services"
        try:
            async with self._requests.writing():
                await self._client.create(path, headless_service(job))
        except AlreadyExists:
            service = f"{path}/{job['metadata']['name']}"
            found = await self._client.get(service)
            if _is_owned(found, job):
                return
            if not any(owner["kind"] == KIND for owner in found["metadata"].get("ownerReferences") or ()):
                raise NameTaken("Service", job["metadata"]["name"]) from None
            async with self._requests.writing():  # an earlier job's of that name, not collected yet
                await self._client.delete(service, uid=found["metadata"]["uid"])
            raise Conflict(f"{service} is an earlier job's") from None

    async def create_pods(self, job: Json, placement: Placement, ranks: Sequence[int]) -> Rejected | None:
        """Create the pods of `ranks`; None, or the refusal of one that cannot be created as things are.

        Whatever was created is known to the cluster's cache. Raises Conflict once the job changed, NotFound when a pod
        goes while it is looked at, and Outage."""
        errors: list[BaseException] = []

        async def create(rank: int) -> None:
            try:
                async with self._requests.writing(bulk=True):
                    if not errors:
                        self._check_unchanged(job)
                        await self._create_pod(job, rank_pod(job, placement, rank))
            except Exception as error:  # the first of them is raised below, when no create is under way any more
                errors.append(error)

        await asyncio.gather(*(create(rank) for rank in ranks))
        refused = [error for error in errors if isinstance(error, Rejected) and _is_final(error)]
        if errors and not refused:
            raise errors[0]
        return refused[0] if refused else None

    async def _create_pod(self, job: Json, pod: Json) -> None:
        path = f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        name = pod["metadata"]["name"]
        try:
            created = await self._client.create(path, pod)
        except AlreadyExists:
            created = await self._client.get(f"{path}/{name}")
            if not _is_owned(created, job):
                raise NameTaken("pod", name) from None
        self._cluster.pods.put(created)

    def _check_unchanged(self, job: Json) -> None:
        known = self._cluster.jobs.by_key.get(key_of(job))
        if known is None or version_of(known) != version_of(job):
            raise Conflict(f"{key_of(job)} changed while its pods were created")


def _is_final(refusal: Rejected) -> bool:
    return isinstance(refusal, NameTaken) or blame_for(refusal) is not Blame.MOMENT


def _is_owned(item: Json, job: Json) -> bool:
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)
