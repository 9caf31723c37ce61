"""Submits the load and does to the jobs what their plans say, over every outage. Decides nothing: see `load`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from coda.errors import Outage
from coda_kube.client import AlreadyExists, Client, Json, Rejected
from coda_kube.writing import job_path
from coda_lab.chaos.account import Account, JobEntry, PodEntry
from coda_lab.chaos.load import NAMESPACE, Act, JobPlan, PodPlan, edit_json, job_json, pod_json
from coda_lab.chaos.signs import JOBS, PODS

RETRY_S: Final = 0.3
KEEP_S: Final = 3.0  # what has ended is looked at for so long, then deleted: a long run must not fill the API server
FORBIDDEN: Final = 403  # a starting API server says that until it knows its roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How much is kept open at all times."""

    gpus_of_gangs: int
    foreign_gpus: int
    foreign_cpus: int


class Driver:
    """Keeps `demand` open until `submitting` is false; what was begun goes on to its end."""

    def __init__(
        self, client: Client, account: Account, demand: Demand, jobs: Iterator[JobPlan], pods: Iterator[PodPlan]
    ) -> None:
        self.submitting = True
        self.wake = asyncio.Event()  # set after each end
        self._client = client
        self._account = account
        self._demand = demand
        self._jobs = jobs
        self._pods = pods
        self._next_pod = next(pods)

    async def run(self) -> None:
        """Drive until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.wake.clear()
                self._sweep(tasks)
                await self._top_up(tasks)
                await self.wake.wait()

    async def _top_up(self, tasks: asyncio.TaskGroup) -> None:
        while self.submitting and self._account.open_gpus < self._demand.gpus_of_gangs:
            plan = next(self._jobs)
            entry = self._account.jobs[plan.name] = JobEntry(plan=plan)
            await insist(lambda: self._client.create(JOBS, job_json(plan)))  # noqa: B023  awaited in this round
            if plan.act is not None:
                tasks.create_task(self._act(entry, plan.act))
        while self.submitting and self._has_room():
            pod, self._next_pod = self._next_pod, next(self._pods)
            self._account.pods[pod.name] = PodEntry(plan=pod)
            await insist(lambda: self._client.create(PODS, pod_json(pod)))  # noqa: B023  awaited in this round

    def _has_room(self) -> bool:
        waiting = [entry.plan for entry in self._account.open_pods]
        wanted = self._next_pod
        if wanted.gpus:
            return sum(plan.gpus for plan in waiting) + wanted.gpus <= self._demand.foreign_gpus
        return sum(plan.cpus for plan in waiting) + wanted.cpus <= self._demand.foreign_cpus

    def _sweep(self, tasks: asyncio.TaskGroup) -> None:
        for name, job in self._account.jobs.items():
            if not job.is_open and not job.is_gone and not job.deletion_asked:
                job.deletion_asked = True
                tasks.create_task(self._delete_later(job_path(f"{NAMESPACE}/{name}")))
        for name, pod in self._account.pods.items():
            if pod.end is not None and not pod.is_gone and not pod.deletion_asked:
                pod.deletion_asked = True
                tasks.create_task(self._delete_later(f"{PODS}/{name}"))

    async def _delete_later(self, path: str) -> None:
        await asyncio.sleep(KEEP_S)
        await insist(lambda: self._client.delete(path))

    async def _act(self, entry: JobEntry, act: Act) -> None:
        plan = entry.plan
        path = job_path(f"{NAMESPACE}/{plan.name}")
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
    """Repeat a request until the API server took it, has it already, or refuses it for good."""
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
