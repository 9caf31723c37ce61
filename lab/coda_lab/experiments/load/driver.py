"""Submits the load and does to the jobs what their plans say, through every outage. Decides nothing: see `plans`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from coda.errors import Outage
from coda_kube.api.client import AlreadyExists, Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.experiments.load.account import Account, JobEntry
from coda_lab.experiments.load.plans import Act, JobPlan, PodPlan, edit_json, job_json, pod_json
from coda_lab.experiments.load.watches import PODS, jobs_path
from coda_lab.kubelets.nodes import NodeSpec

AT_ONCE: Final = 8  # requests in flight
RETRY_S: Final = 0.3
LOOK_S: Final = 0.2
GANG_LOAD: Final = 1.3  # of all GPUs: what open gangs ask for at all times
FOREIGN_GPU_LOAD: Final = 0.2  # the same by foreign pods: together 150 %
FOREIGN_CPU_LOAD: Final = 0.4
KEEP_S: Final = 3.0  # an ended object stays this long, then is deleted: a long run must not fill the API server
FORBIDDEN: Final = 403  # a starting API server answers this until it knows its roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How much is kept open at all times.

    `pods_per_job`: foreign pods come only while they are fewer than this number for each job submitted; None: always.
    Without a limit, pods that another scheduler spreads over all nodes keep gangs of whole nodes out forever.
    """

    gpus_of_gangs: int
    foreign_gpus: int
    foreign_cpus: int
    pods_per_job: int | None = None

    @classmethod
    def overloading(cls, nodes: Sequence[NodeSpec], *, pods_per_job: int | None = None) -> Demand:
        """150 % of the GPUs of these nodes."""
        gpus, cpus = sum(node.gpus for node in nodes), sum(node.cpus for node in nodes)
        return cls(
            gpus_of_gangs=round(GANG_LOAD * gpus),
            foreign_gpus=round(FOREIGN_GPU_LOAD * gpus),
            foreign_cpus=round(FOREIGN_CPU_LOAD * cpus),
            pods_per_job=pods_per_job,
        )


class Driver:
    """Keeps `demand` open until `submitting` is false or nothing is left to submit. Work that has begun continues to
    its end.
    """

    def __init__(
        self, client: Client, account: Account, demand: Demand, jobs: Iterator[JobPlan], pods: Iterator[PodPlan]
    ) -> None:
        self.submitting = True
        self.wake = asyncio.Event()  # set after each end
        self.is_full = asyncio.Event()
        self._client = client
        self._account = account
        self._demand = demand
        self._jobs = jobs
        self._pods = pods
        self._next_job = next(jobs, None)
        self._next_pod = next(pods, None)

    async def run(self) -> None:
        """Drive until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.wake.clear()
                while started := self._submissions(tasks):
                    await asyncio.gather(*started)
                    self._sweep(tasks)
                self._sweep(tasks)
                self.is_full.set()
                await self.wake.wait()
                self.is_full.clear()

    @property
    def is_spent(self) -> bool:
        """True when no more jobs will be submitted."""
        return not self.submitting or self._next_job is None

    async def drained(self, limit_s: float) -> float | None:
        """Wait until all jobs of the load have ended, submit no more pods, and wait for those that are open.

        How long it took; None when the limit was over first."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while not self.is_spent or self._account.open_jobs:
                    await asyncio.sleep(LOOK_S)
                self.submitting = False
                while self._account.open_pods:
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return None
        return time.monotonic() - began_s

    def _submissions(self, tasks: asyncio.TaskGroup) -> list[Awaitable[None]]:
        """Return some of the missing demand, gangs and pods at once, so that neither keeps the other out."""
        found: list[Awaitable[None]] = []
        while self.submitting and len(found) < AT_ONCE:
            gang, pod = self._next_gang(), self._next_foreign_pod()
            if gang is not None:
                found.append(self._submit_job(gang, tasks))
            if pod is not None:
                found.append(insist(partial(self._client.create, PODS, pod_json(pod))))
            if gang is None and pod is None:
                break
        return found

    def _next_gang(self) -> JobEntry | None:
        plan = self._next_job
        if plan is None or self._account.open_gpus >= self._demand.gpus_of_gangs:
            return None
        self._next_job = next(self._jobs, None)
        return self._account.add_job(plan)

    def _next_foreign_pod(self) -> PodPlan | None:
        plan, per_job = self._next_pod, self._demand.pods_per_job
        is_enough = per_job is not None and len(self._account.pods) >= per_job * len(self._account.jobs)
        if plan is None or is_enough or not self._has_room(plan):
            return None
        self._next_pod = next(self._pods, None)
        self._account.add_pod(plan)
        return plan

    async def _submit_job(self, entry: JobEntry, tasks: asyncio.TaskGroup) -> None:
        await insist(lambda: self._client.create(jobs_path(entry.plan.namespace), job_json(entry.plan)))
        if entry.plan.act is not None:
            tasks.create_task(self._act(entry, entry.plan.act))

    def _has_room(self, wanted: PodPlan) -> bool:
        waiting = [entry.plan for entry in self._account.open_pods]
        if wanted.gpus:
            return sum(plan.gpus for plan in waiting if plan.gpus) + wanted.gpus <= self._demand.foreign_gpus
        return sum(plan.cpus for plan in waiting if not plan.gpus) + wanted.cpus <= self._demand.foreign_cpus

    def _sweep(self, tasks: asyncio.TaskGroup) -> None:
        jobs, pods = self._account.take_ended()
        for job in jobs:
            if not job.is_gone and not job.deletion_asked:
                job.deletion_asked = True
                tasks.create_task(self._delete_later(job_path(job.plan.id)))
        for pod in pods:
            if not pod.is_gone and not pod.deletion_asked:
                pod.deletion_asked = True
                tasks.create_task(self._delete_later(f"{PODS}/{pod.plan.name}"))

    async def _delete_later(self, path: str) -> None:
        await asyncio.sleep(KEEP_S)
        await insist(lambda: self._client.delete(path))

    async def _act(self, entry: JobEntry, act: Act) -> None:
        plan = entry.plan
        path = job_path(plan.id)
        await asyncio.sleep(plan.act_after_s)
        if not entry.is_open:
            return
        if act is Act.DELETE:
            entry.deletion_asked = True
            await insist(lambda: self._client.delete(path))
        elif act is Act.SUSPEND:
            await self._patch(path, {"spec": {"suspend": True}})
            await asyncio.sleep(plan.pause_s)
            entry.asked_anew += 1
            await self._patch(path, {"spec": {"suspend": False}})
        else:
            entry.asked_anew += 1
            await self._patch(path, edit_json(plan))

    async def _patch(self, path: str, patch: Json) -> None:
        await insist(lambda: self._client.patch(path, patch))


async def insist(request: Callable[[], Awaitable[object]]) -> None:
    """Repeat a request until the API server took it, has it already, or refuses it permanently."""
    while True:
        try:
            await request()
        except AlreadyExists:
            return  # the answer to an earlier try was lost
        except Rejected as error:
            if error.status != FORBIDDEN:
                return
            await asyncio.sleep(RETRY_S)
        except Outage:
            await asyncio.sleep(RETRY_S)
        else:
            return
