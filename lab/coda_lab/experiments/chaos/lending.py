"""CPU jobs beside the load of a run: they borrow cores and give them back, while ArrayQuotas change all the time.

Whoever is killed meanwhile, every CPU job runs in the end, and no Job counts an eviction as a failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from coda.errors import CodaError
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, OPT_IN

NAMESPACE: Final = "chaos-batch"
QUOTA: Final = "chaos"
APP: Final = "lent"
CORES: Final = 2  # of each CPU job
PODS_PER_NODE: Final = 12  # half of a node's 48 cores: nobody gives cores back to the foreign pods, which need some
EDIT_EVERY_S: Final = (1.0, 6.0)
RETRY_S: Final = 0.5

_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_JOBS: Final = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
_QUOTAS: Final = f"/apis/{API_VERSION}/arrayquotas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What came of it. `failed`: pods that the Job counts as failed; None if accidents may have made them fail."""

    cpu_jobs: int
    running: int
    failed: int | None
    evictions: int
    quota_edits: int

    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem."""
        found = []
        if self.running < self.cpu_jobs:
            found.append(f"{self.cpu_jobs - self.running} of {self.cpu_jobs} CPU jobs do not run at the end")
        if self.failed:
            found.append(f"{self.failed} pods of a Job count as failed, though they were only evicted")
        return tuple(found)


class Lending:
    """A Deployment and a Job of CPU jobs, and an ArrayQuota that somebody edits. What fails is tried again."""

    def __init__(self, admin: Client, *, seed: int, nodes: int, with_accidents: bool) -> None:
        self._admin = admin
        self._rng = random.Random(seed)
        self._with_accidents = with_accidents
        self._of_the_job = nodes * PODS_PER_NODE // 4
        self._of_the_deployment = nodes * PODS_PER_NODE - self._of_the_job
        self._edits = 0

    async def run(self) -> None:
        """Make everything, and edit the quota again and again, until cancelled."""
        while True:
            with suppress(CodaError):  # parts are killed; whatever a restore took back is made again
                await self._make()
                await self._edit()
            await asyncio.sleep(self._rng.uniform(*EDIT_EVERY_S))

    async def ended(self, limit_s: float) -> Lent:
        """Take the quota away, wait until every CPU job runs, and say what came of it. Call it when `run` has ended."""
        until_s = time.monotonic() + limit_s
        while True:
            cpu_jobs, running = await self._counts()
            if running == cpu_jobs or time.monotonic() >= until_s:
                break
            await asyncio.sleep(RETRY_S)
        failed, evictions = 0, 0
        with suppress(CodaError):
            failed = int(((await self._admin.get(f"{_JOBS}/sweep")).get("status") or {}).get("failed") or 0)
            events = (await self._admin.list_pages(_EVENTS))["items"]
            evictions = sum(event["reason"] == "Reclaimed" for event in events)
        return Lent(
            cpu_jobs=cpu_jobs,
            running=running,
            failed=None if self._with_accidents else failed,
            evictions=evictions,
            quota_edits=self._edits,
        )

    async def _make(self) -> None:
        metadata = {"name": NAMESPACE, "labels": {OPT_IN: "true"}}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        await _unless_there(self._admin.create("/api/v1/namespaces", namespace))
        labels = {"app": APP}
        template = {"metadata": {"labels": labels}, "spec": _pod_spec() | {"restartPolicy": "Always"}}
        spec = {"replicas": self._of_the_deployment, "selector": {"matchLabels": labels}, "template": template}
        await _unless_there(self._admin.create(_DEPLOYMENTS, {"metadata": {"name": "lent"}, "spec": spec}))
        counts = {"completions": self._of_the_job, "parallelism": self._of_the_job}
        job = {"metadata": {"name": "sweep"}, "spec": counts | {"template": {"spec": _pod_spec()}}}
        await _unless_there(self._admin.create(_JOBS, job))

    async def _edit(self) -> None:
        """From every core to few ones for the GPU array: what was the CPU array's own is borrowed, and back."""
        cores, large = self._rng.choice((0, 2, 4, 6)), self._rng.choice(("30%", "70%"))
        spec = {"gpuArray": {"coresPerGPU": cores, "largeGPUs": large}}
        quota = {"apiVersion": API_VERSION, "kind": "ArrayQuota", "metadata": {"name": QUOTA}, "spec": spec}
        if self._rng.random() < 0.2:
            await self._delete_quota()
        else:
            try:
                await self._admin.patch(f"{_QUOTAS}/{QUOTA}", {"spec": spec})
            except NotFound:
                await _unless_there(self._admin.create(_QUOTAS, quota))
        self._edits += 1

    async def _delete_quota(self) -> None:
        with suppress(NotFound):
            await self._admin.delete(f"{_QUOTAS}/{QUOTA}")

    async def _counts(self) -> tuple[int, int]:
        """How many CPU jobs should run, and how many do. Of the Job only pods that exist should: its controller makes
        them anew after a pause of up to ten minutes."""
        try:
            await self._make()
            await self._delete_quota()
            pods = (await self._admin.list_pages(_PODS))["items"]
        except CodaError:
            return self._of_the_deployment, 0
        pods = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        of_the_job = sum(pod["metadata"].get("labels", {}).get("app") != APP for pod in pods)
        return self._of_the_deployment + of_the_job, sum(pod["status"].get("phase") == "Running" for pod in pods)


async def _unless_there(creation: Awaitable[object]) -> None:
    with suppress(AlreadyExists):
        await creation


def _pod_spec() -> Json:
    container = {"name": "main", "image": "work:1", "resources": {"requests": {"cpu": str(CORES)}}}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container]}
