"""What an administrator may do to a real API server: restore a backup, and apply definitions that are older than the
programs."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import signal
from collections.abc import AsyncIterator

import pytest

from coda.errors import CodaError
from coda_kube.api.client import AlreadyExists, Client
from coda_kube.objects.write import job_path
from coda_lab import install
from coda_lab.experiments.chaos.happenings import older
from coda_lab.experiments.chaos.restore import FORGETFUL, STORE
from coda_lab.host.paths import crds
from coda_lab.install import wait_until_jobs_are_taken
from coda_lab.local.cluster import LocalCluster, answers_ok
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import PATIENCE_S, job_json, submit, wait_for, wait_for_pending, wait_for_phase, wait_gone
from tests.e2e.scheduling import QUICK_LEASE

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="2x8x48")


async def test_nobody_plans_with_older_definitions(cluster: LocalCluster, user: Client, admin: Client) -> None:
    """The API server would cut off what the planner writes, in silence."""
    definitions = install.objects_in(crds())
    for part in ("extender-0", "extender-1"):
        await cluster.kill(part)
    await install.apply_all(admin, [older(each) for each in definitions])
    try:
        for part in ("extender-0", "extender-1"):
            cluster.launch(part)
        async with asyncio.timeout(PATIENCE_S):
            while "not leading: the API server does not know" not in cluster.log_path("extender-0").read_text():
                await asyncio.sleep(0.2)
        job = await submit(user, job_json("waits", run_s=0.2))
        await wait_for_phase(user, job, "Queued")
        await asyncio.sleep(2)
        found = await user.get(job_path(job))
        assert "placement" not in found["status"]
    finally:
        await install.apply_all(admin, definitions)
    await wait_for_phase(user, job, "Succeeded")


@pytest.fixture
async def restorable() -> AsyncIterator[LocalCluster]:
    """A cluster without a referee, who would have to be told. Its Leases run out while the API server is away, so
    that whoever leads next knows nothing of jobs, and of pods what was there before."""
    parts = ("operator-0", "extender-0", "extender-1")
    spec = dataclasses.replace(SPEC, environ_by_part=dict.fromkeys(parts, QUICK_LEASE))
    async with running_cluster(spec, tell=print) as running:
        yield running


async def test_what_a_restored_backup_brings_back_is_there_again(restorable: LocalCluster) -> None:
    """A job that was deleted since runs again; its capacity must not be given away, and the next job waits for it."""
    async with restorable.client("user") as user, restorable.client("admin") as admin:
        first = await submit(user, job_json("first", replicas=2, gpus=8, run_s=None))
        await wait_for_phase(user, first, "Running")
        data = restorable.layout.folder / "etcd"
        copy = data.with_name("etcd-snapshot")
        await restorable.kill("etcd", signal.SIGSTOP)
        await asyncio.to_thread(shutil.copytree, data, copy)
        await restorable.kill("etcd", signal.SIGCONT)
        await user.delete(job_path(first))
        await wait_gone(user, job_path(first))
        second = await submit(user, job_json("second", replicas=2, gpus=8, run_s=None))
        await wait_for_phase(user, second, "Running")
        for part in (*FORGETFUL, *reversed(STORE)):
            await restorable.kill(part)
        await asyncio.to_thread(shutil.rmtree, data)
        copy.rename(data)
        for part in (*STORE, *FORGETFUL):
            restorable.launch(part)
            url = restorable.part_by_name[part].ready_url
            while part in STORE and url is not None and not await answers_ok(url):
                await asyncio.sleep(0.05)
        for number in range(300):  # versions pass the known ones before or after anybody looks
            name = f"noise-{number}"
            await _insist(admin, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
        await wait_until_jobs_are_taken(user)
        third = await submit(user, job_json("third", replicas=2, gpus=8, run_s=0.2))
        await wait_for_pending(user, third, "InsufficientGPUs")
        status = (await user.get(job_path(first)))["status"]
        assert status["phase"] == "Running", f"{status['reason']}: {status['message']}"
        await user.delete(job_path(first))
        await wait_for_phase(user, third, "Succeeded")
        await wait_for(user, job_path(third), lambda job: job["status"]["attempt"] == 1)


async def _insist(admin: Client, item: dict[str, object]) -> None:
    """Create it, as soon as the API server takes it."""
    while True:
        try:
            await admin.create("/api/v1/namespaces/default/configmaps", item)
        except AlreadyExists:
            return
        except CodaError:
            await asyncio.sleep(0.2)
        else:
            return
