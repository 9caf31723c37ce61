"""Restores etcd from a snapshot, as Kubernetes' documentation says, and corrects the books of the run afterwards.

The snapshot is a copy of the data folder at one moment. At the restore etcd and the API server are down; then the
scheduler, the controllers and the kubelets are started again, so that they forget what they know. Coda's parts are not:
they must see by themselves that the API server went back in time. Versions count from the snapshot's again.

A restore takes back history. What was submitted after the snapshot is gone, and nobody lost it. What was
deleted is back.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from coda.errors import Outage
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.checker import Checker
from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.driver import RETRY_S, insist
from coda_lab.experiments.load.watches import ALL_JOBS, PODS, Watches
from coda_lab.local.cluster import LocalCluster, answers_ok
from coda_lab.local.restarts import Restarter
from coda_lab.spec import KUBELETS, SCHEDULER

STORE: Final = ("etcd", "kube-apiserver")
FORGETFUL: Final = (SCHEDULER, "kube-controller-manager", KUBELETS)
"""Parts that Kubernetes' documentation starts again after a restore."""
SUBMITTED_S: Final = 3.0  # by then a submission that was under way has been repeated
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Restorer:
    """The parts and the books that a restore concerns."""

    cluster: LocalCluster
    restarter: Restarter
    admin: Client
    account: Account
    checker: Checker
    watches: Watches

    async def restore(self, age_s: float) -> None:
        """Take a snapshot, wait `age_s`, and restore it. Returns once the books are right."""
        data = self.cluster.layout.etcd
        copy = data.with_name("etcd-snapshot")
        await self._snapshot()
        await asyncio.sleep(age_s)
        known_jobs, known_pods = set(self.account.jobs), set(self.account.pods)
        with ExitStack() as left, self.account.taking_back():
            for part in (*STORE, *FORGETFUL):
                left.enter_context(self.restarter.leaving(part))
            for part in (*FORGETFUL, *reversed(STORE)):
                if self.cluster.is_running(part):
                    await self.cluster.kill(part, signal.SIGKILL)
            await asyncio.to_thread(shutil.rmtree, data)
            copy.rename(data)
            for part in STORE:
                self.cluster.launch(part)
                await self._until_ready(part)
            for part in FORGETFUL:
                self.cluster.launch(part)
            self.checker.restored()
            await self.watches.restored()
            await asyncio.sleep(SUBMITTED_S)
            await self._correct(known_jobs, known_pods)

    async def _snapshot(self) -> None:
        """Copy the folder while etcd stands still: what a disk has at one moment."""
        data = self.cluster.layout.etcd
        with self.restarter.leaving("etcd"):
            await self.cluster.kill("etcd", signal.SIGSTOP)
            try:
                copy = data.with_name("etcd-snapshot")
                await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
                await asyncio.to_thread(shutil.copytree, data, copy)
            finally:
                await self.cluster.kill("etcd", signal.SIGCONT)

    async def _until_ready(self, part: str) -> None:
        url = self.cluster.part_by_name[part].ready_url
        assert url is not None
        while not await answers_ok(url):
            await asyncio.sleep(_POLL_S)

    async def _correct(self, known_jobs: set[str], known_pods: set[str]) -> None:
        """Take back what is gone, and do again what was undone: deletions, and resuming."""
        jobs = await self._by_name(ALL_JOBS)
        pods = await self._by_name(PODS)
        self.account.take_back(known_jobs - set(jobs), known_pods - set(pods))
        for name, job in jobs.items():
            entry = self.account.jobs.get(name)
            if entry is not None and name in known_jobs:
                entry.restores += 1
            if entry is not None and (entry.deletion_asked or not entry.is_open):
                await insist(_delete(self.admin, job_path(entry.plan.id)))
            elif entry is not None and entry.asked_anew and job["spec"].get("suspend"):
                await insist(_resume(self.admin, job_path(entry.plan.id)))
        for name in pods:
            known = self.account.pods.get(name)
            if known is not None and (known.deletion_asked or known.end is not None):
                await insist(_delete(self.admin, f"{PODS}/{name}"))

    async def _by_name(self, path: str) -> dict[str, Json]:
        while True:
            try:
                items = (await self.admin.list_pages(path))["items"]
            except (Outage, Rejected):
                await asyncio.sleep(RETRY_S)
            else:
                return {str(item["metadata"]["name"]): item for item in items}


def _delete(client: Client, path: str) -> Callable[[], Awaitable[object]]:
    return lambda: client.delete(path)


def _resume(client: Client, path: str) -> Callable[[], Awaitable[object]]:
    return lambda: client.patch(path, {"spec": {"suspend": False}})
