"""A tree of virtual clusters of three levels on a real control plane: what is lent comes back, whole gangs at a time.

The checker watches every test: nothing starts beyond a limit on any level, and no gang is stopped for an owner while
its tenant is within its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, jobs_path, pods_of, submit, wait_for, wait_for_pending, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e

SHARES = {"CODA_SCHEDULING_POLICY": "coda", "CODA_FAIR_SHARE_MIN_RUNTIME_S": "0"}
SPEC = ClusterSpec(nodes="4x8x48", racks=1, extenders=1, environ_by_part={"extender-0": SHARES})
VIRTUAL_CLUSTERS = "/apis/coda.scheduler/v1alpha1/virtualclusters"
NAMESPACES = ("red", "blue", "firm")


def tenant(name: str, gpus: int, *, parent: str = "", namespaces: tuple[str, ...] = ()) -> Json:
    spec: dict[str, Any] = {"namespaces": list(namespaces), "quota": {"gpus": gpus}}
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster"}
    return kind | {"metadata": {"name": name}, "spec": spec | ({"parent": parent} if parent else {})}


TREE = (
    tenant("org", 16),
    tenant("research", 16, parent="org"),
    tenant("red", 8, parent="research", namespaces=("red",)),
    tenant("blue", 8, parent="research", namespaces=("blue",)),
    tenant("firm", 16, namespaces=("firm",)),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespaces(cluster: LocalCluster) -> None:
    async with cluster.client("admin") as admin:
        for name in NAMESPACES:
            await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})


@pytest_asyncio.fixture
async def tree(admin: Client, namespaces: None) -> AsyncIterator[None]:
    for item in TREE:
        await admin.create(VIRTUAL_CLUSTERS, item)
    await wait_for(admin, f"{VIRTUAL_CLUSTERS}/red", shows("path", "org/research/red"), within_s=15)
    yield
    jobs = [job_path(f"{name}/{job['metadata']['name']}") for name in NAMESPACES for job in await jobs_of(admin, name)]
    for path in jobs:
        await admin.delete(path)
    for path in jobs:
        await wait_gone(admin, path)
    for item in (await admin.list_pages(VIRTUAL_CLUSTERS))["items"]:
        await admin.delete(f"{VIRTUAL_CLUSTERS}/{item['metadata']['name']}")


async def jobs_of(admin: Client, namespace: str) -> list[Json]:
    items: list[Json] = (await admin.list_pages(jobs_path(namespace)))["items"]
    return items


def shows(field: str, expected: Any) -> Callable[[Json], bool]:
    return lambda item: (item.get("status") or {}).get(field) == expected


def says(kind: str, reason: str) -> Callable[[Json], bool]:
    def holds(item: Json) -> bool:
        conditions = (item.get("status") or {}).get("conditions") or ()
        return any((one["type"], one["reason"]) == (kind, reason) for one in conditions)

    return holds


async def runs(client: Client, namespace: str, name: str, *, replicas: int = 1) -> str:
    job = job_json(name, namespace=namespace, replicas=replicas, gpus=8, run_s=None)
    found = await submit(client, job)
    await wait_for_phase(client, found, "Running")
    return found


async def test_lent_gpus_come_back_gang_by_gang_on_each_level(admin: Client, tree: None) -> None:
    """The firm borrows a node, and blue borrows red's: the owner in red takes from its sibling, its own organisation
    being within its quota; and blue, which is within its own by then, takes from the firm nothing."""
    await runs(admin, "firm", "wide", replicas=2)
    await runs(admin, "blue", "first")
    second = await runs(admin, "blue", "second")
    await wait_for(
        admin,
        f"{VIRTUAL_CLUSTERS}/research",
        shows("gpus", {"used": 16, "own": 16, "borrowed": 0, "waiting": 0}),
        within_s=15,
    )
    owner = await submit(admin, job_json("owner", namespace="red", gpus=8, run_s=None))
    await wait_for_phase(admin, owner, "Running")
    stopped = await wait_for(admin, job_path(second), lambda job: job["status"]["attempt"] == 2, within_s=30)
    assert (stopped["status"]["failures"], stopped["status"]["disruptions"]) == (0, 0)
    events = await admin.list_pages("/api/v1/namespaces/blue/events", {"fieldSelector": "involvedObject.name=second"})
    said = {event["reason"]: event["message"] for event in events["items"]}
    assert said["LentGPUsReturned"] == "attempt 1: stopped so that red/* gets its room"
    await wait_for_phase(admin, "firm/wide", "Running")
    await wait_for_pending(admin, second, "InsufficientGPUs")


async def test_whole_gangs_of_another_organisation_stop_only_if_it_borrows(admin: Client, tree: None) -> None:
    await runs(admin, "firm", "own", replicas=2)
    lent = await runs(admin, "firm", "lent", replicas=2)
    owner = await submit(admin, job_json("owner", namespace="red", gpus=8, run_s=None))
    await wait_for_phase(admin, owner, "Running")
    await wait_for(admin, job_path(lent), lambda job: job["status"]["attempt"] == 2, within_s=30)
    left = [pod for pod in await pods_of(admin, lent) if not pod["metadata"].get("deletionTimestamp")]
    assert left == [], "all ranks of the gang, though one node was enough"
    other = await submit(admin, job_json("other", namespace="blue", gpus=8, run_s=None))
    await wait_for_phase(admin, other, "Running")
    more = await submit(admin, job_json("more", namespace="blue", gpus=8, run_s=None))
    await wait_for_pending(admin, more, "InsufficientGPUs")
    await wait_for_phase(admin, "firm/own", "Running")


async def test_a_parent_that_is_deleted_or_a_loop_stops_nobody(admin: Client, tree: None) -> None:
    running = await runs(admin, "red", "running")
    await runs(admin, "firm", "rest", replicas=3)
    await admin.delete(f"{VIRTUAL_CLUSTERS}/research")
    red = await wait_for(admin, f"{VIRTUAL_CLUSTERS}/red", says("Detached", "ParentMissing"), within_s=15)
    assert red["status"]["path"] == "red"
    waiting = await submit(admin, job_json("waiting", namespace="red", replicas=2, gpus=8, run_s=None))

    def names(parent: str) -> Callable[[Json], bool]:
        return lambda job: parent in ((job.get("status") or {}).get("pending") or {}).get("message", "")

    await wait_for(admin, job_path(waiting), names("its parent research does not exist"), within_s=10)
    await admin.create(VIRTUAL_CLUSTERS, tenant("research", 8, parent="red"))
    loop = await wait_for(admin, f"{VIRTUAL_CLUSTERS}/red", says("Detached", "ParentLoop"), within_s=15)
    assert loop["status"]["gpus"]["own"] == 8
    await wait_for(admin, job_path(waiting), names("its parents form a loop (red < research < red)"), within_s=10)
    await admin.patch(f"{VIRTUAL_CLUSTERS}/research", {"spec": {"parent": None}})
    await wait_for(admin, f"{VIRTUAL_CLUSTERS}/red", says("Detached", "InTree"), within_s=15)
    short = await wait_for(admin, f"{VIRTUAL_CLUSTERS}/red", says("Oversubscribed", "ParentOwnsLess"), within_s=15)
    assert short["status"]["gpus"]["own"] == 4, "half of what its parent has, as blue"
    await wait_for_phase(admin, running, "Running")
