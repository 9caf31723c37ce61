"""`helm upgrade` from an earlier version with jobs that run and wait, and `helm rollback` to it again.

The earlier version is the one that design and decisions call N-1, chart and programs: without TLS between scheduler and
extender, policies, CPU jobs and a history. CODA_UPGRADE_FROM names another commit.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab.spec import ClusterSpec
from tests.deploy.charts import Helm
from tests.deploy.installed import TWO_OPERATORS, Installed, ready_for_the_chart
from tests.e2e.jobs import job_json, pods_of, submit, wait_for_pending, wait_for_phase

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
N_1 = "8d775a9"
EARLIER = os.environ.get("CODA_UPGRADE_FROM", N_1)
REFUSED = 'condition.get("reason") == "Unschedulable"'
SHARED = "pool.mode=shared"  # no node is tainted here


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the earlier version. Skips where the history does not reach so far back."""
    parts = ("core", "operator", "scheduler_extender", "deploy/helm")
    archived = subprocess.run(["git", "-C", str(ROOT), "archive", EARLIER, *parts], check=False, capture_output=True)
    if archived.returncode:
        pytest.skip(f"this tree does not know the commit {EARLIER}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as files:
        files.extractall(folder, filter="data")
    # Its image brought uvloop, which today's locks leave out (docs/decisions/0138): its programs get asyncio's loop.
    (folder / "core/uvloop.py").write_text("from asyncio import new_event_loop as new_event_loop\n")
    # kube-scheduler may write a refusal after the binding. That operator then stopped a job that ran: seen under load.
    pods = folder / "operator/coda_operator/rank_pods.py"
    if EARLIER == N_1:
        told = pods.read_text()
        assert told.count(REFUSED) == 2
        pods.write_text(told.replace(REFUSED, f'{REFUSED} and "startTime" not in status'))
    return folder


@pytest.fixture(scope="module")
def programs(earlier: Path) -> str:
    return os.pathsep.join(str(earlier / name) for name in ("core", "operator", "scheduler_extender"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(helm: Helm, earlier: Path, programs: str) -> AsyncIterator[Installed]:
    async with ready_for_the_chart(ClusterSpec(nodes="4x8x48", racks=2, coda=False), helm) as made:
        await made.install(SHARED, source=earlier / "deploy/helm/coda", path=programs)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def user(installed: Installed) -> AsyncIterator[Client]:
    async with installed.cluster.client("user") as client:
        yield client


async def seen(user: Client, job: str) -> tuple[Any, ...]:
    """What must not change of a job that runs."""
    status = (await user.get(job_path(job)))["status"]
    uids = tuple(sorted(pod["metadata"]["uid"] for pod in await pods_of(user, job)))
    why = () if status["attempt"] == 1 else (status.get("reason"), status.get("message"))
    return status["phase"], status["attempt"], status.get("failures"), status.get("disruptions"), uids, *why


async def test_jobs_go_on_under_an_upgrade_and_a_rollback(installed: Installed, user: Client, programs: str) -> None:
    first = [await submit(user, job_json(f"first-{number}", replicas=2, gpus=8, run_s=None)) for number in range(2)]
    for job in first:
        await wait_for_phase(user, job, "Running", within_s=60)
    waiting = [await submit(user, job_json(f"waits-{number}", replicas=2, gpus=8, run_s=None)) for number in range(2)]
    for job in waiting:
        await wait_for_pending(user, job, "InsufficientGPUs")
    before = [await seen(user, job) for job in first]

    said = await installed.upgrade(*TWO_OPERATORS, SHARED)

    assert "trainingjobs.coda.scheduler is up to date" in said
    assert [await seen(user, job) for job in first] == before
    await user.delete(job_path(first[0]))
    started = await wait_for_phase(user, waiting[0], "Running", within_s=60)
    assert started["status"]["attempt"] == 1
    newer = await submit(user, job_json("newer", replicas=2, gpus=8, run_s=1))
    await wait_for_pending(user, newer, "InsufficientGPUs")
    assert installed.complaints() == []
    before = [await seen(user, job) for job in (first[1], waiting[0])]

    await installed.roll_back(1, path=programs)

    assert [await seen(user, job) for job in (first[1], waiting[0])] == before
    for ends, starts in ((first[1], waiting[1]), (waiting[0], newer)):
        await user.delete(job_path(ends))
        started = await wait_for_phase(user, starts, "Running", "Succeeded", within_s=60)
        assert started["status"]["attempt"] == 1
    await wait_for_phase(user, newer, "Succeeded")
    assert installed.complaints() == []
