"""Ends TrainingJobs, or lets them and their pods go: only the operator would lift their finalizers."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from coda.errors import Conflict
from coda_kube.api.client import Client, Expired, NotFound
from coda_kube.api.until import read_or_absent, until
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, FINALIZER, LABEL_JOB_UID, RANK_FINALIZER
from coda_kube.objects.write import job_path
from coda_operator.uninstall.parallel import in_parallel

log = logging.getLogger(__name__)

JOBS: Final = f"/apis/{API_VERSION}/trainingjobs"
PODS: Final = "/api/v1/pods"


async def end_jobs(client: Client, *, within_s: float) -> None:
    """Delete every TrainingJob, and wait for the operator to end them: it stops the pods and stores the records."""
    deleted: set[str] = set()

    async def delete_all() -> bool:
        async for page in client.pages(JOBS):
            for job in page["items"]:
                metadata = job["metadata"]
                if metadata["uid"] not in deleted:
                    await client.delete(job_path(f"{metadata['namespace']}/{metadata['name']}"), uid=metadata["uid"])
                    deleted.add(metadata["uid"])
        return True

    try:
        async with asyncio.timeout(within_s):
            if await read_or_absent(delete_all, False):
                await until(client, JOBS, lambda by_key: not by_key)
            else:
                log.info("there are no TrainingJobs: their definition is gone")
    except TimeoutError:
        log.warning("the operator does not end all TrainingJobs in %.0f s; the others end without a record", within_s)
        await read_or_absent(delete_all, False)  # what somebody made meanwhile, too
    log.info("%d TrainingJobs were deleted", len(deleted))


async def lift_finalizers(client: Client) -> None:
    """Take Coda's finalizers off jobs and pods. Whoever deletes one from now on need not wait for Coda."""
    jobs = await _lift_all(client, JOBS, {}, FINALIZER)
    pods = await _lift_all(client, PODS, {"labelSelector": LABEL_JOB_UID}, RANK_FINALIZER)
    log.info("finalizers were taken off %d TrainingJobs and %d of their pods", jobs, pods)


async def _lift_all(client: Client, path: str, query: dict[str, str], finalizer: str) -> int:
    """Returns how many. Lists again until none is left: an object may change between the list and the patch."""
    lifted, nothing = 0, list[Json]()

    async def read_held() -> list[Json]:
        return [
            item
            async for page in client.pages(path, query)
            for item in page["items"]
            if finalizer in (item["metadata"].get("finalizers") or ())
        ]

    while True:
        try:
            held = await read_or_absent(read_held, nothing)  # the definition of TrainingJobs may be gone
        except Expired:
            continue
        if not held:
            return lifted
        lifted += sum(await in_parallel(_lift(client, path, item, finalizer) for item in held))


async def _lift(client: Client, path: str, item: Json, finalizer: str) -> bool:
    metadata = item["metadata"]
    collection, _, plural = path.rpartition("/")
    rest = [one for one in metadata["finalizers"] if one != finalizer]
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": rest or None}}
    try:
        await client.patch(f"{collection}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}", body)
    except (Conflict, NotFound):
        return False
    return True
