"""CPU jobs on a real control plane: gated at creation, released in order, and reclaimed for a training job."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import reclaim
from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Account, asking
from tests.e2e.cpu_jobs import (
    BATCH,
    BUDGETS,
    DEPLOYMENTS,
    FAILS_ON_DISRUPTION,
    GATE,
    JOBS,
    PODS,
    all_pods,
    batch_job,
    borrows,
    deployment,
    event_messages,
    event_reasons,
    is_bound,
    name_of,
    opt_in,
    pod_json,
    wait_until_bound,
    wait_until_empty,
    wait_until_some_wait,
)
from tests.e2e.jobs import PATIENCE_S, job_json, submit, wait_for, wait_for_phase
from tests.e2e.policy_cases import EXTENDER, MASTER, RETURNING, USER, WIDE_USER, owner
from tests.e2e.scheduling import QUICK_LEASE, leader_of

pytestmark = pytest.mark.e2e

ARRAYS = {
    "CODA_SCHEDULING_POLICY": "coda",
    "CODA_ARRAY_LARGE_SHARE": "0.5",
    "CODA_RECLAIM_MIN_RUNTIME_S": "1",
} | QUICK_LEASE
SPEC = ClusterSpec(nodes="2x8x48", racks=1, environ_by_part=dict.fromkeys(("extender-0", "extender-1"), ARRAYS))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace(cluster: LocalCluster) -> None:
    """A namespace that opted in, and somebody whom only the policies stop."""
    async with cluster.client("admin") as admin:
        await opt_in(admin)


@pytest.fixture
async def batch(namespace: None, admin: Client) -> AsyncIterator[None]:
    """The namespace, empty afterwards."""
    yield
    for path in (DEPLOYMENTS, JOBS, PODS):
        for item in (await admin.list_pages(path))["items"]:
            await admin.delete(f"{path}/{name_of(item)}")
    await wait_until_empty(admin)


@pytest.mark.usefixtures("batch")
async def test_a_bare_pod_waits_for_the_planner_and_runs_where_it_says(user: Client, admin: Client) -> None:
    made = await admin.create(PODS, pod_json("one", run_s=1))
    assert made["spec"]["schedulerName"] == "coda"
    assert made["spec"]["schedulingGates"] == [GATE]
    assert tolerated(made) == ["coda.scheduler/pool", "nvidia.com/gpu"]
    ended = await wait_for(admin, f"{PODS}/one", lambda pod: pod["status"]["phase"] == "Succeeded")
    terms = ended["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [ended["spec"]["nodeName"]]
    assert not borrows(ended)


@pytest.mark.usefixtures("batch")
async def test_borrowed_cores_go_to_a_gang_at_once_and_come_back_after_it(user: Client, admin: Client) -> None:
    """30 pods of 3 cores fill most of 96 cores; a gang that wants 2 x 24 gets them within seconds."""
    await admin.create(DEPLOYMENTS, deployment("web", pods=30, cpu="3"))
    before = await wait_until_bound(admin, 30)
    borrowed = {name_of(pod) for pod in before if borrows(pod)}
    gang = await submit(user, job_json("gang", gpus=8, replicas=2, run_s=None, spec={"cpusPerReplica": 24}))
    await wait_for_phase(user, gang, "Running")
    waiting = await wait_until_some_wait(admin)
    left = {name_of(pod) for pod in await all_pods(admin)}
    gone = {name_of(pod) for pod in before} - left
    assert gone
    assert gone <= borrowed
    assert "Reclaimed" in await event_reasons(admin)
    await user.delete(job_path(gang))
    assert waiting <= {name_of(pod) for pod in await wait_until_bound(admin, 30) if is_bound(pod)}


@pytest.mark.usefixtures("batch")
async def test_gpu_jobs_get_lent_cores_one_after_the_other_and_no_pod_is_evicted_in_vain(
    user: Client, admin: Client
) -> None:
    """The benchmark in small. Its pods borrow again after each job, so the same ones may be asked for twice."""
    borrowers = await reclaim.fill(admin, 2, spare=20)  # the Job has 19 pods
    assert borrowers >= 64  # of 96 cores 32 are their own at most
    found, in_vain = await reclaim.reclaim(admin, user, 5, seed=reclaim.SEED, full=96)
    assert in_vain == 0
    assert [one.evicted for one in found] == [one.cores for one in found]
    assert max(one.free_s for one in found) < PATIENCE_S  # 5 on a calm machine: `benchmarks --only reclaim`
    assert not (await admin.get(f"{JOBS}/sweep"))["status"].get("failed")


@pytest.mark.parametrize(
    ("budgets", "says"),
    [(1, "The disruption budget web-0"), (2, "more than one PodDisruptionBudget")],
    ids=["one", "two"],
)
@pytest.mark.usefixtures("batch")
async def test_a_budget_keeps_its_pods_and_is_named_until_it_is_gone(
    user: Client, admin: Client, budgets: int, says: str
) -> None:
    made = deployment("web", pods=30, cpu="3")
    await admin.create(DEPLOYMENTS, made)
    before = {name_of(pod) for pod in await wait_until_bound(admin, 30)}
    spec = {"minAvailable": "100%", "selector": made["spec"]["selector"]}
    for number in range(budgets):
        await admin.create(BUDGETS, {"metadata": {"name": f"web-{number}"}, "spec": spec})
    gang = await submit(user, job_json("gang", gpus=8, replicas=2, run_s=None, spec={"cpusPerReplica": 24}))
    async with asyncio.timeout(PATIENCE_S):
        while not any(says in text for text in await event_messages(admin, "ReclaimRefused")):
            await asyncio.sleep(0.2)
    assert {name_of(pod) for pod in await all_pods(admin)} == before
    for number in range(budgets):
        await admin.delete(f"{BUDGETS}/web-{number}")
    await wait_for_phase(user, gang, "Running")
    await user.delete(job_path(gang))


@pytest.mark.usefixtures("batch")
async def test_a_job_whose_pod_gave_its_cores_back_has_not_failed(user: Client, admin: Client) -> None:
    """Its successor comes after 10 s: the Job controller waits so long after any pod that ended early."""
    await admin.create(JOBS, batch_job("sweep", pods=32, cpu="3"))
    await wait_until_bound(admin, 32)
    gang = await submit(user, job_json("gang", gpus=8, run_s=None, spec={"cpusPerReplica": 3}))
    await wait_for_phase(user, gang, "Running")
    await wait_until_some_wait(admin)
    await user.delete(job_path(gang))
    await wait_until_bound(admin, 32)
    assert not (await admin.get(f"{JOBS}/sweep"))["status"].get("failed")


@pytest.mark.usefixtures("batch")
async def test_who_would_not_come_back_never_borrows(user: Client, admin: Client) -> None:
    """The CPU array owns 16 of 48 cores of each node. Bare pods, services and Jobs that count evictions stay there."""
    own: dict[str, Any] = {"backoffLimit": 3, "podFailurePolicy": {"rules": [FAILS_ON_DISRUPTION]}}
    await admin.create(JOBS, batch_job("counting", pods=8, cpu="8", **own))
    await admin.create(DEPLOYMENTS, deployment("service", pods=8, cpu="8", labels={"coda.scheduler/service": "true"}))
    for number in range(8):
        await admin.create(PODS, pod_json(f"bare-{number}", cpu="8"))
    pods = await wait_until_bound(admin, 4)
    assert sum(map(is_bound, pods)) == 4
    gang = await submit(user, job_json("gang", gpus=8, replicas=2, run_s=0.5, spec={"cpusPerReplica": 32}))
    await wait_for_phase(user, gang, "Succeeded")
    pods = await all_pods(admin)
    assert len(pods) == 24
    assert sum(map(is_bound, pods)) == 4
    assert not any(map(borrows, pods))


def tolerated(pod: Json) -> list[str]:
    """The keys of the taints that the pod tolerates with every value and effect."""
    return [
        one["key"] for one in pod["spec"]["tolerations"] if (one["operator"], one.get("effect")) == ("Exists", None)
    ]


@pytest.mark.usefixtures("batch")
async def test_what_a_pod_tolerates_itself_it_still_does(admin: Client) -> None:
    body = pod_json("one", tolerations=[{"key": "mine", "operator": "Exists"}])
    made = await admin.create(PODS, body, {"dryRun": "All"})
    assert tolerated(made) == ["mine", "coda.scheduler/pool", "nvidia.com/gpu"]


async def test_a_namespace_that_did_not_opt_in_is_left_alone(admin: Client) -> None:
    body = pod_json("plain") | {"metadata": {"name": "plain", "namespace": "default"}}
    made = await admin.create("/api/v1/namespaces/default/pods", body, {"dryRun": "All"})
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert not made["spec"].get("schedulingGates")


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "node-0"},
        {"schedulerName": "volcano"},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        {"hostNetwork": True},
    ],
    ids=["node", "scheduler", "spreading", "claim", "host-network"],
)
async def test_what_only_kube_scheduler_can_judge_is_left_as_it_is(admin: Client, spec: dict[str, Any]) -> None:
    try:
        made = await admin.create(PODS, pod_json("special", **spec), {"dryRun": "All"})
    except CodaError as error:
        pytest.fail(str(error))
    assert not made["spec"].get("schedulingGates")


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize(
    ("version", "kind", "is_gated"),
    [("apps.kruise.io/v1alpha1", "DaemonSet", False), ("apps.kruise.io/v1beta1", "StatefulSet", True)],
)
async def test_another_groups_daemons_are_left_alone(admin: Client, version: str, kind: str, is_gated: bool) -> None:
    body = pod_json("other")
    made = await admin.create(PODS, body | {"metadata": body["metadata"] | owner(kind, version)}, {"dryRun": "All"})
    assert bool(made["spec"].get("schedulingGates")) == is_gated


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize(("job", "is_ruled"), RETURNING)
async def test_a_job_whose_pods_may_come_back_gets_the_rule_for_it(admin: Client, job: Json, is_ruled: bool) -> None:
    made = await admin.create(JOBS, job, {"dryRun": "All"})
    assert ("podFailurePolicy" in made["spec"]) == is_ruled, made
    assert made["spec"]["podReplacementPolicy"] == ("Failed" if is_ruled else "TerminatingOrFailed")


@pytest.mark.usefixtures("batch")
async def test_a_quota_that_leaves_training_jobs_out_is_not_filled_for_them(user: Client, admin: Client) -> None:
    """As docs/cpu-jobs.md recommends it. The pod waits for ever, and has all that the quota allows."""
    quota = f"/api/v1/namespaces/{BATCH}/resourcequotas/cores"
    scope = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["training"]}]}
    spec = {"hard": {"requests.cpu": "1000"}, "scopeSelector": scope}
    await admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "training"}, "value": 0})
    await admin.create(quota.rpartition("/")[0], {"metadata": {"name": "cores"}, "spec": spec})
    try:
        await wait_for(admin, quota, lambda item: "used" in (item.get("status") or {}))
        await admin.create(PODS, pod_json("waits", cpu="1000"))
        with pytest.raises(CodaError, match="exceeded quota: cores"):
            await admin.create(PODS, pod_json("more"), {"dryRun": "All"})
        body = job_json("gang", gpus=8, replicas=2, run_s=0.2, namespace=BATCH)
        body["spec"]["template"]["spec"]["priorityClassName"] = "training"
        gang = await submit(user, body)
        await wait_for_phase(user, gang, "Succeeded")
        await user.delete(job_path(gang))
    finally:
        await admin.delete(quota)


@pytest.mark.usefixtures("batch")
async def test_under_kills_every_pod_runs_and_every_gang_gets_its_cores(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    """The checker watches that no node has more than it holds. Whoever dies leaves a pod gated, or released."""
    rng = random.Random(7)
    await admin.create(DEPLOYMENTS, deployment("web", pods=16, cpu="3"))
    await admin.create(DEPLOYMENTS, deployment("more", pods=8, cpu="4"))
    gangs: list[str] = []
    for number in range(4):
        body = job_json(f"gang-{number}", gpus=4, replicas=2, run_s=1, spec={"cpusPerReplica": 16})
        gangs.append(await submit(user, body))
        part = rng.choice(("operator-0", await leader_of(admin)))
        await cluster.kill(part)
        await cluster.start(part)
        await asyncio.sleep(rng.uniform(0.2, 1.0))  # the load, not a wait
    for gang in gangs:
        ended = await wait_for_phase(user, gang, "Succeeded", within_s=90)
        assert ended["status"]["failures"] == 0
    await wait_until_bound(admin, 24, within_s=60)
    assert len(await all_pods(admin)) == 24


def pinned_to(node: str) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


PLAN = {"coda.scheduler/plan": "mine", "coda.scheduler/planned-time": "2026-01-01T00:00:00Z"}
MARKS = {"coda.scheduler/queued-time": "2026-01-01T00:00:00Z", "coda.scheduler/borrows": "true"}
RELEASE = {"schedulingGates": [], "affinity": pinned_to("node-0000")}


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize(
    ("account", "change", "refused"),
    [
        pytest.param(USER, {"spec": {"schedulingGates": []}}, "admission", id="takes the gate away"),
        pytest.param(USER, {"metadata": {"annotations": PLAN}}, "plan", id="writes a plan"),
        pytest.param(USER, {"metadata": {"annotations": PLAN}, "spec": RELEASE}, "plan", id="releases itself"),
        pytest.param(USER, {"metadata": {"annotations": {"coda.scheduler/borrows": "x"}}}, "borrows", id="a mark"),
        pytest.param(USER, {"metadata": {"labels": {"mine": "1"}}}, None, id="a label of the user's"),
        pytest.param(EXTENDER, {"metadata": {"annotations": PLAN}, "spec": RELEASE}, None, id="the extender releases"),
        pytest.param(EXTENDER, {"metadata": {"labels": {"mine": "1"}}}, "extender", id="the extender labels"),
        pytest.param(EXTENDER, {"metadata": {"annotations": {"mine": "1"}}}, "extender", id="a foreign annotation"),
        pytest.param(EXTENDER, {"metadata": {"finalizers": ["example.com/x"]}}, "extender", id="a finalizer"),
        pytest.param(EXTENDER, {"metadata": owner("ConfigMap", "v1")}, "extender", id="an owner"),
        pytest.param(EXTENDER, {"metadata": {"annotations": {"mine": None}}}, None, id="nothing"),
    ],
)
async def test_only_the_planner_releases_a_gated_pod(
    cluster: LocalCluster, admin: Client, account: Account, change: dict[str, Any], refused: str | None
) -> None:
    """The pod can never start: it is asked about for as long as the test needs."""
    await admin.create(PODS, pod_json("waits", cpu="1000"))
    async with asking(cluster) as asker:
        answer = await asker.ask(account, "PATCH", f"{PODS}/waits", change)
    assert answer.refused_by_policy == (refused is not None), answer
    assert answer.status == 200 if refused is None else refused in answer.message


@pytest.mark.usefixtures("batch")
async def test_a_release_changes_nothing_but_gate_and_pin(cluster: LocalCluster, admin: Client) -> None:
    """The API server lets anybody who may patch a gated pod change each of these."""
    first, other = {"name": "first", "image": "work:1"}, {"name": "example.com/gate"}
    made = await admin.create(PODS, pod_json("waits", cpu="1000", initContainers=[first], schedulingGates=[other]))
    spec = made["spec"]
    changes: list[dict[str, Any]] = [
        {"containers": [spec["containers"][0] | {"image": "forged"}]},
        {"initContainers": [spec["initContainers"][0] | {"image": "forged"}]},
        {"tolerations": [*spec["tolerations"], {"key": "x", "operator": "Exists"}]},
        {"nodeSelector": {"a": "b"}},
        {"activeDeadlineSeconds": 1},
        {"schedulingGates": []},
    ]
    async with asking(cluster) as asker:
        for change in changes:
            body = {"spec": RELEASE | {"schedulingGates": [other]} | change}
            assert (await asker.ask(MASTER, "PATCH", f"{PODS}/waits", body)).status == 200
            answer = await asker.ask(EXTENDER, "PATCH", f"{PODS}/waits", body)
            assert answer.refused_by_policy, answer
            assert "the extender changes only" in answer.message


KIB = 1024


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize(
    "notes",
    [{f"x{number}": "" for number in range(255)}, {"x": "\u00e9" * (126 * KIB - 100)}],
    ids=["as many annotations as there may be", "as large ones"],
)
async def test_what_is_as_large_as_it_may_be_is_still_released(
    cluster: LocalCluster, admin: Client, notes: dict[str, str]
) -> None:
    """The API server's stamp is one annotation more; the release adds four."""
    body = pod_json("waits", cpu="1000")
    body["metadata"]["annotations"] = notes
    await admin.create(PODS, body)
    release = {"metadata": {"annotations": PLAN | MARKS}, "spec": RELEASE}
    more = {"metadata": {"annotations": {"y": "z" * KIB}}}
    async with asking(cluster) as asker:
        assert (await asker.ask(EXTENDER, "PATCH", f"{PODS}/waits", release)).status == 200
        answer = await asker.ask(WIDE_USER, "PATCH", f"{PODS}/waits", more)
    assert answer.refused_by_policy, answer


@pytest.mark.usefixtures("batch")
async def test_a_cpu_job_leaves_room_for_the_annotations_of_its_release(cluster: LocalCluster) -> None:
    body = pod_json("large")
    body["metadata"]["annotations"] = {"x": "\u00e9" * (126 * KIB)}
    outside = body | {"metadata": body["metadata"] | {"labels": {"coda.scheduler/opt-in": "false"}}}
    async with asking(cluster) as asker:
        answer = await asker.ask(WIDE_USER, "POST", PODS, body)
        assert answer.refused_by_policy, answer
        assert "at most 252 KiB" in answer.message
        assert (await asker.ask(WIDE_USER, "POST", PODS, outside)).status == 201


@pytest.mark.usefixtures("batch")
async def test_a_released_pod_is_nobodys_to_change(cluster: LocalCluster, admin: Client) -> None:
    await admin.create(PODS, pod_json("runs"))
    (pod,) = await wait_until_bound(admin, 1)
    (container,) = pod["spec"]["containers"]
    larger = container | {"resources": {"requests": {"cpu": "20"}}}
    tries = [
        (EXTENDER, "", {"metadata": {"annotations": {"mine": "1"}}}),
        (USER, "", {"metadata": {"annotations": {"coda.scheduler/borrows": None, "coda.scheduler/plan": None}}}),
        (WIDE_USER, "/resize", {"spec": {"containers": [larger]}}),
    ]
    async with asking(cluster) as asker:
        for account, of, change in tries:
            answer = await asker.ask(account, "PATCH", f"{PODS}/{name_of(pod)}{of}", change)
            assert answer.refused_by_policy, answer
