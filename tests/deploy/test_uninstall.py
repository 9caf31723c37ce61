"""Coda comes into a cluster that is in use, and leaves it: foreign pods are untouched, nothing is stuck.

One story in order, so that one cluster serves it: each test goes on where the one before it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab import install
from coda_lab.experiments.chaos.happenings import older
from coda_lab.host.paths import crds
from coda_lab.spec import ClusterSpec
from coda_operator.definitions import fields_of
from coda_operator.uninstall.removal import uninstall
from coda_operator.uninstall.settings import Settings
from tests.deploy.charts import NAMESPACE, Helm, Json
from tests.deploy.installed import COLLECTIONS, TWO_OPERATORS, Installed, ready_for_the_chart
from tests.deploy.pods_as_processes import volume_folder
from tests.e2e.cpu_jobs import (
    BATCH,
    DEPLOYMENTS,
    FAILS_ON_DISRUPTION,
    JOBS,
    PODS,
    batch_job,
    deployment,
    pod_json,
    wait_until_gated,
)
from tests.e2e.jobs import job_json, pods_of, submit, wait_for_pending, wait_for_phase, wait_gone

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

DEFINITION = "trainingjobs.coda.scheduler"
FOREIGN = "web"
FOREIGN_PODS, FOREIGN_JOBS = 200, 20
POOL = tuple(f"node-{number:04}" for number in range(4))
SERVICE = {"coda.scheduler/service": "true"}
USERS_ROLES = {"coda-edit", "coda-view"}  # they stay with the definitions
TOO_MANY_CORES = "20"  # of 48, 16 belong to the CPU array: nobody gets them without borrowing, and none of these may


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(helm: Helm) -> AsyncIterator[Installed]:
    async with ready_for_the_chart(ClusterSpec(nodes="8x8x48", racks=2, coda=False), helm) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def admin(installed: Installed) -> Client:
    return installed.admin


@pytest_asyncio.fixture(loop_scope="module")
async def user(installed: Installed) -> AsyncIterator[Client]:
    async with installed.cluster.client("user") as client:
        yield client


async def make_namespace(admin: Client, name: str) -> None:
    await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    await install.wait_for_account(admin, name)


async def foreign_pods(admin: Client) -> dict[str, Any]:
    """What must not change of the pods that were there first."""
    items = (await admin.list_pages(f"/api/v1/namespaces/{FOREIGN}/pods"))["items"]
    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["spec"], pod["status"]["phase"]) for pod in items}


async def all_waiting(admin: Client, names: set[str]) -> bool:
    return names <= {pod["metadata"]["name"] for pod in await gated(admin)}


async def gated(admin: Client) -> list[Json]:
    items = (await admin.list_pages("/api/v1/pods"))["items"]
    return [pod for pod in items if pod["spec"].get("schedulingGates") and "deletionTimestamp" not in pod["metadata"]]


async def settled(holds: Callable[[], Any], *, within_s: float = 60) -> None:
    """Until an answer of the API server is as wanted."""
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    """What later tests compare with."""
    return {}


async def test_it_is_installed_while_foreign_pods_run(
    installed: Installed, admin: Client, before: dict[str, Any]
) -> None:
    await make_namespace(admin, FOREIGN)
    await make_namespace(admin, BATCH)
    web = deployment("web", pods=FOREIGN_PODS, cpu="100m")
    web["metadata"]["namespace"] = FOREIGN
    await admin.create(DEPLOYMENTS.replace(f"/{BATCH}/", f"/{FOREIGN}/"), web)
    for number in range(FOREIGN_JOBS):
        job = batch_job(f"work-{number}", pods=1, cpu="100m")
        job["metadata"]["namespace"] = FOREIGN
        await admin.create(JOBS.replace(f"/{BATCH}/jobs", f"/{FOREIGN}/jobs"), job)

    async def all_run() -> bool:
        phases = [phase for _, _, phase in (await foreign_pods(admin)).values()]
        return phases == ["Running"] * (FOREIGN_PODS + FOREIGN_JOBS)

    await settled(all_run)
    before["foreign"] = await foreign_pods(admin)
    for node in POOL:
        taint = {"key": "coda.scheduler/pool", "value": "true", "effect": "NoSchedule"}
        await admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    await installed.install(*TWO_OPERATORS)
    assert await foreign_pods(admin) == before["foreign"]
    assert installed.complaints() == []


async def test_a_namespace_opts_in_and_out(admin: Client) -> None:
    await admin.patch(f"/api/v1/namespaces/{BATCH}", {"metadata": {"labels": {"coda.scheduler/opt-in": "true"}}})
    await wait_until_gated(admin)
    fits = batch_job("fits", pods=2, cpu="1", run_s=1)
    await admin.create(JOBS, fits)
    await admin.create(DEPLOYMENTS, deployment("service", pods=2, cpu=TOO_MANY_CORES, labels=SERVICE))
    counts = batch_job("counts", pods=3, cpu=TOO_MANY_CORES, backoffLimit=0)
    counts["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    rules = {"rules": [FAILS_ON_DISRUPTION | {"action": "Ignore"}]}
    ignores = batch_job("ignores", pods=2, cpu=TOO_MANY_CORES, backoffLimit=0, podFailurePolicy=rules)
    for job in (counts, ignores):
        job["spec"]["template"]["metadata"]["labels"] = SERVICE
        await admin.create(JOBS, job)
    await admin.create(PODS, pod_json("bare", cpu=TOO_MANY_CORES))

    async def eight_wait_and_two_have_run() -> bool:
        done = (await admin.get(f"{JOBS}/fits"))["status"].get("succeeded") == 2
        return done and len(await gated(admin)) == 8

    await settled(eight_wait_and_two_have_run)
    await admin.patch(f"/api/v1/namespaces/{BATCH}", {"metadata": {"labels": {"coda.scheduler/opt-in": None}}})

    async def new_pods_are_ordinary() -> bool:
        probe = await admin.create(PODS, pod_json("probe"), {"dryRun": "All"})
        return not probe["spec"].get("schedulingGates")

    await settled(new_pods_are_ordinary)
    assert len(await gated(admin)) == 8  # they wait as before
    await admin.patch(f"/api/v1/namespaces/{BATCH}", {"metadata": {"labels": {"coda.scheduler/opt-in": "true"}}})
    await wait_until_gated(admin)  # so that new gates come until the very end


async def test_it_leaves_nothing_behind(
    installed: Installed, admin: Client, user: Client, before: dict[str, Any]
) -> None:
    """New gates come until the very end: the namespace is opted in."""
    running = await submit(user, job_json("running", replicas=8, gpus=8, run_s=None))
    await wait_for_phase(user, running, "Running", within_s=60)
    queued = await submit(user, job_json("queued", replicas=2, gpus=8, run_s=1))
    await wait_for_pending(user, queued, "InsufficientGPUs")
    before["ranks"] = {pod["metadata"]["uid"] for pod in await pods_of(user, running)}
    complaints = installed.complaints()

    said = await installed.uninstall()

    assert complaints == []
    assert "ERROR" not in said
    assert await gated(admin) == []
    assert await foreign_pods(admin) == before["foreign"]
    ranks = await pods_of(user, running)
    assert {pod["metadata"]["uid"] for pod in ranks} == before["ranks"]
    assert {pod["status"]["phase"] for pod in ranks} == {"Running"}
    assert [pod["metadata"].get("finalizers") for pod in ranks] == [None] * 8
    for path in (COLLECTIONS[kind] for kind in COLLECTIONS if kind != "CustomResourceDefinition"):
        names = [item["metadata"]["name"] for item in (await admin.list_pages(path))["items"]]
        ours = {one for one in names if one.startswith("coda-") and not one.startswith("coda-local-")}
        assert ours <= USERS_ROLES, path
    for plural in ("pods", "secrets", "configmaps", "services"):
        items = (await admin.list_pages(f"/api/v1/namespaces/{NAMESPACE}/{plural}"))["items"]
        assert [item["metadata"]["name"] for item in items if "coda" in item["metadata"]["name"]] == [], plural
    leases = (await admin.list_pages(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"))["items"]
    assert leases == []
    for node in (await admin.list_pages("/api/v1/nodes"))["items"]:
        assert "taints" not in node["spec"]
    await uninstall(admin, Settings())  # once more: nothing is left to do, and nothing fails
    assert await foreign_pods(admin) == before["foreign"]
    await admin.patch(f"/api/v1/namespaces/{BATCH}", {"metadata": {"labels": {"coda.scheduler/opt-in": None}}})


async def test_a_job_can_be_deleted_without_coda(user: Client) -> None:
    leftover = await submit(user, job_json("made-meanwhile"))
    await user.delete(job_path(leftover))
    await wait_gone(user, job_path(leftover))


async def test_a_later_installation_takes_the_jobs_up_again(
    installed: Installed, admin: Client, user: Client, before: dict[str, Any]
) -> None:
    for node in POOL:
        taint = {"key": "coda.scheduler/pool", "value": "true", "effect": "NoSchedule"}
        await admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    whole = {item["metadata"]["name"]: item for item in install.objects_in(crds())}[DEFINITION]
    path = f"{COLLECTIONS['CustomResourceDefinition']}/{DEFINITION}"
    await install.apply_all(admin, [older(whole)])  # as an earlier version left it behind
    assert fields_of(await admin.get(path)) < fields_of(whole)
    await installed.install("uninstall.jobs=end")  # one operator, with SQLite on a volume: the defaults
    assert fields_of(await admin.get(path)) == fields_of(whole)
    await wait_for_pending(user, "default/queued", "InsufficientGPUs")
    job = await wait_for_phase(user, "default/running", "Running")
    assert (job["status"]["attempt"], job["status"].get("failures") or 0) == (1, 0)
    assert {pod["metadata"]["uid"] for pod in await pods_of(user, "default/running")} == before["ranks"]
    await user.delete(job_path("default/running"))
    await wait_for_phase(user, "default/queued", "Succeeded", within_s=60)
    await settled(lambda: is_recorded(installed, "queued"))
    assert installed.complaints() == []


async def is_recorded(installed: Installed, job: str) -> bool:
    """True once the history on the operator's volume has this job."""
    file = volume_folder(installed.cluster.layout.folder / "pods", "coda-history") / "history.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as history:
        return bool(history.execute("SELECT 1 FROM finished_jobs WHERE name = ?", (job,)).fetchall())


async def test_it_ends_all_jobs_where_that_was_chosen(installed: Installed, admin: Client, user: Client) -> None:
    running = await submit(user, job_json("again", replicas=2, gpus=8, run_s=None))
    await wait_for_phase(user, running, "Running")
    said = await installed.uninstall()
    assert (await admin.list_pages("/apis/coda.scheduler/v1alpha1/trainingjobs"))["items"] == []
    assert await pods_of(user, running) == []
    assert "the others end without a record" not in said


async def test_what_waited_runs_under_the_clusters_own_scheduler(admin: Client) -> None:
    """Last, since the controllers take half a minute to let go of a Job's pod that was never bound."""

    async def all_run() -> bool:
        pods = (await admin.list_pages(PODS))["items"]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        return len(running) == 8 and {pod["spec"]["schedulerName"] for pod in running} == {"default-scheduler"}

    await settled(all_run)
    for name in ("counts", "ignores"):
        conditions = (await admin.get(f"{JOBS}/{name}"))["status"].get("conditions") or ()
        assert [one["type"] for one in conditions] == []
