"""What a namespace's editors try to get more than their share: each is refused in a sentence, or corrected.

Ann and Bob have Kubernetes' role `admin` in the namespace. `WIDE_USER` may do more, so that a policy refuses and not
RBAC. What harms other users' objects is in `test_hostile_users`, what any account may write in `test_policies`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Asker, asking
from tests.e2e.cpu_jobs import (
    ANN,
    BATCH,
    DEPLOYMENTS,
    JOBS,
    PODS,
    all_pods,
    borrows,
    deployment,
    is_bound,
    name_of,
    opt_in,
    pod_json,
    wait_until_bound,
    wait_until_empty,
)
from tests.e2e.jobs import (
    PATIENCE_S,
    job_json,
    jobs_path,
    pods_of,
    submit,
    wait_for,
    wait_for_pending,
    wait_for_phase,
    wait_gone,
)
from tests.e2e.policy_cases import key
from tests.e2e.scheduling import QUICK_LEASE
from tests.e2e.trick_cases import CORRECTED, REFUSED, TOO_LARGE, opted_out

pytestmark = pytest.mark.e2e

VIRTUAL_CLUSTERS = "/apis/coda.scheduler/v1alpha1/virtualclusters"
ARRAYS = {
    "CODA_SCHEDULING_POLICY": "coda",
    "CODA_ARRAY_LARGE_SHARE": "0.5",
    "CODA_PRIORITY_LIMIT": "1000",
    **QUICK_LEASE,
}
SPEC = ClusterSpec(nodes="2x8x48", racks=1, extenders=1, environ_by_part={"extender-0": ARRAYS})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(cluster: LocalCluster) -> None:
    """A pod that waits for good, one that runs, one that opted out, and a training job that runs."""
    async with cluster.client("admin") as admin:
        await opt_in(admin)
        await wait_for(
            admin,
            "/api/v1/namespaces/coda-system/configmaps/coda-pool-nodes-0",
            lambda item: "\n" in (item.get("data") or {}).get("names", ""),
        )
        await admin.create(PODS, pod_json("waits", cpu="1000"))
        await admin.create(PODS, pod_json("runs"))
        await admin.create(PODS, opted_out("outside"))
        job = await submit(admin, job_json("train", namespace=BATCH, run_s=None))
        await wait_for_phase(admin, job, "Running")
        await wait_for(admin, f"{PODS}/runs", is_bound)


@pytest.fixture
async def asker(cluster: LocalCluster, scene: None) -> AsyncIterator[Asker]:
    async with asking(cluster) as one:
        yield one


@pytest.fixture
async def emptied(scene: None, admin: Client) -> AsyncIterator[None]:
    """The scene has gone: the test has the nodes for itself, and leaves nothing."""
    await remove_all(admin)
    yield
    await remove_all(admin)


async def remove_all(admin: Client) -> None:
    for path in (jobs_path(BATCH), DEPLOYMENTS, JOBS, PODS):
        for item in (await admin.list_pages(path))["items"]:
            await admin.delete(f"{path}/{name_of(item)}")
    await wait_until_empty(admin)
    for item in (await admin.list_pages(jobs_path(BATCH)))["items"]:  # the operator lets them go, in its time
        await wait_gone(admin, f"{jobs_path(BATCH)}/{name_of(item)}")


@pytest.mark.parametrize("trick", REFUSED)
async def test_it_is_refused_in_a_sentence(asker: Asker, trick: str) -> None:
    each = REFUSED[trick]
    answer = await asker.ask(each.account, each.method, each.path, each.body)
    assert answer.status in (403, 422), answer
    assert each.by in answer.message
    assert each.says in answer.message


@pytest.mark.parametrize("trick", CORRECTED)
async def test_it_is_corrected_at_admission(asker: Asker, trick: str) -> None:
    each, look, expected = CORRECTED[trick]
    answer = await asker.ask(each.account, each.method, each.path, each.body)
    assert answer.status in (200, 201), answer
    assert look(answer.item) == expected


async def test_whatever_asks_for_too_much_is_counted_and_told_so(
    emptied: None, asker: Asker, user: Client, admin: Client
) -> None:
    """A node has 48 cores. Others start beside them."""
    heavy = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"}, "handler": "heavy"}
    await admin.create("/apis/node.k8s.io/v1/runtimeclasses", heavy | {"overhead": {"podFixed": {"cpu": "49"}}})
    for number, spec in enumerate(TOO_LARGE.values()):
        answer = await asker.ask(ANN, "POST", PODS, pod_json(f"large-{number}", **spec), for_real=True)
        assert answer.status == 201, answer
    await admin.create(PODS, pod_json("small"))
    await wait_for(admin, f"{PODS}/small", is_bound)
    told: dict[str, str] = {}
    async with asyncio.timeout(PATIENCE_S):
        while not told.keys() >= {f"large-{number}" for number in range(len(TOO_LARGE))}:
            told = await why_pods_wait(admin)
            await asyncio.sleep(0.2)
    for number, trick in enumerate(TOO_LARGE):
        assert told[f"large-{number}"].startswith(("NeverFits", "InsufficientResources")), (trick, told)
    assert sum(map(is_bound, await all_pods(admin))) == 1


async def why_pods_wait(admin: Client) -> dict[str, str]:
    """Code and sentence by pod, as events say."""
    events = (await admin.list_pages(f"/api/v1/namespaces/{BATCH}/events"))["items"]
    return {
        event["involvedObject"]["name"]: f"{event['reason']} {event['message']}"
        for event in events
        if str(event["message"]).startswith("waits: ")
    }


async def test_a_service_label_keeps_no_borrowed_cores(
    emptied: None, asker: Asker, user: Client, admin: Client
) -> None:
    """12 pods of 6 cores: the CPU array owns 32 of 96, so five run on own cores and seven borrow."""
    await admin.create(DEPLOYMENTS, deployment("web", pods=12, cpu="6"))
    pods = await wait_until_bound(admin, 12)
    borrowers = {name_of(pod) for pod in pods if borrows(pod)}
    for name in borrowers:
        change = {"metadata": {"labels": {key("service"): "true"}}}
        assert (await asker.ask(ANN, "PATCH", f"{PODS}/{name}", change, for_real=True)).status == 200
    gang = await submit(user, job_json("gang", gpus=8, replicas=2, run_s=None, spec={"cpusPerReplica": 24}))
    await wait_for_phase(user, gang, "Running")
    gone = {name_of(pod) for pod in pods} - {name_of(pod) for pod in await all_pods(admin) if is_bound(pod)}
    assert gone
    assert gone <= borrowers


async def test_a_pod_that_takes_an_hour_to_end_never_borrows(emptied: None, admin: Client) -> None:
    slow = deployment("slow", pods=8, cpu="8")
    slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
    await admin.create(DEPLOYMENTS, slow)
    await wait_until_bound(admin, 4)
    await admin.create(DEPLOYMENTS, deployment("quick", pods=1, cpu="8"))
    pods = await wait_until_bound(admin, 5)  # it came last, and borrows
    assert [str(pod["metadata"]["labels"]["app"]) for pod in pods if borrows(pod)] == ["quick"]
    await admin.delete(f"{DEPLOYMENTS}/slow")
    for pod in await all_pods(admin):
        await admin.delete(f"{PODS}/{name_of(pod)}", grace_s=0)  # else it may take its hour


async def time_of_a_new_pod(asker: Asker) -> str:
    answer = await asker.ask(ANN, "POST", PODS, pod_json("probe"))
    return str(answer.item["metadata"]["creationTimestamp"])


@pytest.mark.parametrize("policy", ["Orphan", "Background"])
async def test_pods_that_outlive_their_job_keep_its_quota(
    emptied: None, asker: Asker, admin: Client, policy: str
) -> None:
    """Ann deletes her job, whose pod runs on, because it takes an hour to end; or an administrator orphans it."""
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster", "metadata": {"name": "ann"}}
    await admin.create(
        VIRTUAL_CLUSTERS, kind | {"spec": {"namespaces": [BATCH], "quota": {"gpus": 2}, "mayBorrow": False}}
    )
    try:
        slow = job_json("first", namespace=BATCH, gpus=2, run_s=None, simulated={"stop-seconds": "3600"})
        slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
        first = await submit(admin, slow)
        await wait_for_phase(admin, first, "Running")
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        answer = await asker.ask(ANN, "DELETE", job_path(first), options, for_real=True)
        assert answer.refused_by_policy == (policy == "Orphan"), answer
        if policy == "Orphan":
            await admin._call("DELETE", job_path(first), None, options)
            await wait_gone(admin, job_path(first))
        again = await submit(admin, job_json("again", namespace=BATCH, gpus=2, run_s=None))
        await wait_for_pending(admin, again, "VirtualClusterFull")
        for pod in await pods_of(admin, first):
            await admin.delete(f"{PODS}/{name_of(pod)}", grace_s=0)
        await wait_for_phase(admin, again, "Running")
    finally:
        await admin.delete(f"{VIRTUAL_CLUSTERS}/ann")


async def test_neither_a_high_class_nor_a_new_pod_goes_first(emptied: None, asker: Asker, admin: Client) -> None:
    """The class is above `CODA_PRIORITY_LIMIT`. Who deletes a pod that waits, and makes it again, is last."""
    highest = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "highest"}}
    await admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", highest | {"value": 1000000000})
    for number in range(4):
        await admin.create(PODS, pod_json(f"fills-{number}", cpu="8"))
    await wait_until_bound(admin, 4)
    for pod in (
        pod_json("again", cpu="8"),
        pod_json("first", cpu="8"),
        pod_json("high", cpu="8", priorityClassName="highest"),
    ):
        assert (await asker.ask(ANN, "POST", PODS, pod, for_real=True)).status == 201
    assert (await asker.ask(ANN, "DELETE", f"{PODS}/again", None, for_real=True)).status == 200
    made = await admin.get(f"{PODS}/high")
    async with asyncio.timeout(PATIENCE_S):
        while made["metadata"]["creationTimestamp"] >= await time_of_a_new_pod(asker):
            await asyncio.sleep(0.1)  # the API server counts whole seconds
    assert (await asker.ask(ANN, "POST", PODS, pod_json("again", cpu="8"), for_real=True)).status == 201
    order: list[str] = []
    for number in range(3):
        await admin.delete(f"{PODS}/fills-{number}")
        pods = await wait_until_bound(admin, 4)
        order += [name_of(pod) for pod in pods if is_bound(pod) and name_of(pod) not in (*order, "fills-3")]
        order = [name for name in order if not name.startswith("fills")]
    assert order == ["first", "high", "again"]
