"""The history of a real control plane: a job is recorded before it goes, also by the operator after a killed one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.engine import URL

from coda.history import FinishedJob
from coda.history.cpu_jobs import CpuEnding
from coda_kube.api.client import Client
from coda_kube.objects.names import FINALIZER
from coda_kube.objects.run_times import PATH, groups_from_json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_operator.history.store import Store
from tests.e2e.agents import wait_until
from tests.e2e.cpu_jobs import JOBS, PODS, batch_job, opt_in, pod_json
from tests.e2e.jobs import job_json, submit, wait_for, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e


@pytest.fixture
def recorded(cluster: LocalCluster) -> Callable[[str], list[FinishedJob]]:
    """The records of a name, in the file that the operator writes."""
    url = URL.create("sqlite", database=str(cluster.layout.history))

    def read(name: str) -> list[FinishedJob]:
        store = Store(url)
        try:
            return [job for job in store.jobs(0.0, 2e10) if job.name == name]
        finally:
            store.close()

    return read


async def test_a_finished_job_is_recorded_and_let_go(
    user: Client, admin: Client, recorded: Callable[[str], list[FinishedJob]]
) -> None:
    job = await submit(user, job_json("brief", replicas=2, gpus=8, run_s=3))
    await wait_for_phase(user, job, "Succeeded")

    async def is_let_go() -> bool:
        return FINALIZER not in ((await admin.get(job_path(job)))["metadata"].get("finalizers") or ())

    await wait_until(is_let_go)
    (kept,) = recorded("brief")
    assert (kept.namespace, kept.replicas, kept.gpus, kept.attempt) == ("default", 2, 16, 1)
    assert kept.ended_s > kept.started_s >= kept.queued_s > 0
    assert kept.wait_s + kept.held_s == pytest.approx(kept.ended_s - kept.queued_s)
    assert kept.run_s > 0  # in whole seconds


async def test_a_job_that_ends_and_is_deleted_without_an_operator_is_recorded_by_the_next_one(
    cluster: LocalCluster, user: Client, recorded: Callable[[str], list[FinishedJob]]
) -> None:
    job = await submit(user, job_json("forsaken", gpus=8, run_s=None))
    await wait_for_phase(user, job, "Running")
    await cluster.kill("operator-0")
    await user.delete(job_path(job))
    assert recorded("forsaken") == []
    await cluster.start("operator-0")
    await wait_gone(user, job_path(job))
    (kept,) = recorded("forsaken")
    assert (kept.ending.value, kept.attempt) == ("Deleted", 1)
    assert kept.held_s > 0


async def test_the_run_times_are_published(admin: Client) -> None:
    """By the operator's own account. What it says is tested without a cluster: it is written once a minute."""

    async def is_there() -> bool:
        listing = await admin.list_pages(PATH.rpartition("/")[0])
        return "coda-run-times" in {item["metadata"]["name"] for item in listing["items"]}

    await wait_until(is_there)
    groups_from_json(await admin.get(PATH))


async def test_every_cpu_job_that_ends_is_counted_once_also_by_the_next_operator(
    cluster: LocalCluster, admin: Client
) -> None:
    """A Job's pods end, one by one; the operator is killed meanwhile, and again when all are counted."""
    await opt_in(admin)
    await admin.create(JOBS, batch_job("sweep", pods=12, cpu="1", run_s=1.0, parallelism=4))
    await wait_for(admin, f"{JOBS}/sweep", lambda job: (job.get("status") or {}).get("succeeded", 0) >= 4)
    await cluster.kill("operator-0")
    await cluster.start("operator-0")
    await wait_for(admin, f"{JOBS}/sweep", lambda job: (job.get("status") or {}).get("succeeded") == 12)
    store = Store(URL.create("sqlite", database=str(cluster.layout.history)))

    def counted() -> int:
        return sum(line.jobs for line in store.cpu_jobs.lines(0.0, 2e10) if line.name == "sweep")

    async def are_all_counted() -> bool:
        return counted() == 12

    await wait_until(are_all_counted)
    await cluster.kill("operator-0")
    await cluster.start("operator-0")
    await admin.create(PODS, pod_json("last", run_s=0.5))

    async def is_the_last_counted() -> bool:
        return any(line.kind == "v1/Pod" for line in store.cpu_jobs.lines(0.0, 2e10))

    await wait_until(is_the_last_counted)
    assert counted() == 12
    lines = [line for line in store.cpu_jobs.lines(0.0, 2e10) if line.name == "sweep"]
    assert len(lines) <= 2  # two hours at most
    assert {(line.kind, line.ending, line.cpu_m, line.category) for line in lines} == {
        ("batch/Job", CpuEnding.SUCCEEDED, 1000, "Batch")
    }
    assert all(0 < line.run_s <= line.held_s for line in lines)
    store.close()
