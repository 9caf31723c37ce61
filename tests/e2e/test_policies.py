"""Only Coda speaks for Coda: what a real API server refuses, by who asks. A policy refuses, and not RBAC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path, status_patch
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Account, Asker, asking, component
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_phase
from tests.e2e.policy_cases import (
    ALL,
    COLLECTOR,
    EXTENDER,
    KUBE_SCHEDULER,
    MASTER,
    MINE,
    NAMESPACES,
    NEW_PODS,
    OPERATOR,
    PLATFORM,
    PODS,
    SCHEDULER,
    SEAT,
    USER,
    WIDE_USER,
    daemon_set,
    key,
    owner,
    pod,
    pods_path,
    wide_binding,
    wide_role,
)

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="4x8x48", racks=2)
EXTENDER_POD = "/api/v1/namespaces/coda-system/pods/coda-extender-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A running job, and what its objects are called."""

    asker: Asker
    job: Json
    rank: Json

    @property
    def node(self) -> str:
        return str(self.rank["spec"]["nodeName"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(cluster: LocalCluster) -> tuple[Json, Json]:
    """A running job and a pod of it."""
    async with cluster.client("admin") as admin, cluster.client("user") as user:
        await admin.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", wide_role())
        await admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", wide_binding())
        for metadata in NAMESPACES:
            await admin.create("/api/v1/namespaces", {"metadata": metadata})
        job = await submit(user, job_json("victim", replicas=2, gpus=1, run_s=None, namespace="elsewhere"))
        running = await wait_for_phase(user, job, "Running")
        await wait_for(
            admin,
            "/api/v1/namespaces/coda-system/configmaps/coda-pool-nodes-0",
            lambda item: "\n" in (item.get("data") or {}).get("names", ""),
        )
        return running, (await pods_of(user, job))[0]


@pytest.fixture
async def scene(cluster: LocalCluster, victim: tuple[Json, Json]) -> AsyncIterator[Scene]:
    async with asking(cluster) as asker:
        yield Scene(asker=asker, job=victim[0], rank=victim[1])


@pytest.mark.parametrize(("account", "body", "why"), NEW_PODS)
async def test_a_new_pod(scene: Scene, account: Account, body: Json, why: str | None) -> None:
    answer = await scene.asker.ask(account, "POST", pods_path(body["metadata"].get("namespace", "default")), body)
    if why is None:
        assert not answer.refused_by_policy, answer
        assert answer.status in (201, 422), answer  # 422: the API server's own rule
    else:
        assert answer.refused_by_policy, answer
        assert why in answer.message


@pytest.mark.parametrize(
    ("account", "method", "change", "why"),
    [
        pytest.param(USER, "PATCH", {"labels": {key("rank"): "1"}}, "rank", id="changes a label"),
        pytest.param(USER, "PATCH", {"labels": {key("job-uid"): None}}, "job-uid", id="removes a label"),
        pytest.param(USER, "PATCH", {"annotations": {key("plan"): "other"}}, "plan", id="changes the plan"),
        pytest.param(USER, "PATCH", {"ownerReferences": []}, "takes them", id="takes the job's pod"),
        pytest.param(COLLECTOR, "PATCH", {"ownerReferences": []}, None, id="the job's orphan"),
        pytest.param(COLLECTOR, "PATCH", {"labels": {key("rank"): "1"}}, "rank", id="no more than that"),
        pytest.param(USER, "PATCH", {"labels": {"mine": "1"}}, None, id="the user's own label"),
        pytest.param(USER, "PATCH", {"labels": {key("throttling"): "false"}}, None, id="the user's key"),
        pytest.param(OPERATOR, "PATCH", {"annotations": {key("plan"): "other"}}, None, id="the operator"),
        pytest.param(MASTER, "PATCH", {"labels": {key("job-uid"): None}}, None, id="an administrator"),
    ],
)
async def test_a_rank_is_changed(scene: Scene, account: Account, method: str, change: Json, why: str | None) -> None:
    path = f"/api/v1/namespaces/elsewhere/pods/{scene.rank['metadata']['name']}"
    for of in ("", "/status") if account.groups else ("",):
        answer = await scene.asker.ask(account, method, path + of, {"metadata": change})
        if of and "ownerReferences" in change:
            continue  # the API server keeps the owners there
        assert answer.refused_by_policy == (why is not None), answer
        assert why is None or why in answer.message
        assert why is not None or answer.status == 200


async def test_a_rank_is_resized_by_coda_alone(scene: Scene) -> None:
    path = f"/api/v1/namespaces/elsewhere/pods/{scene.rank['metadata']['name']}/resize"
    body = {"spec": {"containers": [scene.rank["spec"]["containers"][0]]}}
    assert (await scene.asker.ask(WIDE_USER, "PATCH", path, body)).refused_by_policy
    assert not (await scene.asker.ask(OPERATOR, "PATCH", path, body)).refused_by_policy


@pytest.mark.parametrize(
    ("account", "target", "notes", "refused"),
    [
        pytest.param(WIDE_USER, "node-0001", {}, True, id="somebody"),
        pytest.param(WIDE_USER, "elsewhere", {}, False, id="another node"),
        pytest.param(SCHEDULER, "node-0001", {}, False, id="Coda's scheduler"),
        pytest.param(KUBE_SCHEDULER, "node-0001", {}, False, id="the cluster's scheduler"),
        pytest.param(KUBE_SCHEDULER, "node-0001", {key("plan"): "x"}, True, id="a Binding's annotations"),
        pytest.param(MASTER, "node-0001", {}, False, id="an administrator"),
    ],
)
async def test_a_pod_is_bound(
    scene: Scene, admin: Client, account: Account, target: str, notes: Json, refused: bool
) -> None:
    await admin.create(PODS, pod(metadata={"name": "waits"}, schedulerName="nobody"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waits", "annotations": notes},
        "target": {"kind": "Node", "name": target},
    }
    try:
        elsewhere = f"{pods_path(PLATFORM)}/waits/binding"  # no pod is there, which is asked after the policies
        for path in (f"{PODS}/waits/binding", "/api/v1/namespaces/default/bindings", elsewhere):
            answer = await scene.asker.ask(account, "POST", path, binding)
            if answer.status == 403 and not answer.refused_by_policy:
                continue  # a role that does not know the older path
            assert answer.refused_by_policy == refused, answer
    finally:
        await admin.delete(f"{PODS}/waits", grace_s=0)


@pytest.mark.parametrize(
    ("account", "item", "refused"),
    [
        pytest.param(USER, daemon_set(ALL), True, id="a user's for every node"),
        pytest.param(USER, daemon_set(MINE), True, id="a user's for the pool"),
        pytest.param(USER, daemon_set(), False, id="a user's"),
        pytest.param(MASTER, daemon_set(ALL), False, id="the platform's"),
    ],
)
async def test_a_daemon_set(scene: Scene, account: Account, item: Json, refused: bool) -> None:
    answer = await scene.asker.ask(account, "POST", "/apis/apps/v1/namespaces/default/daemonsets", item)
    assert answer.refused_by_policy == refused, answer
    assert refused or answer.status == 201


@pytest.mark.parametrize(
    ("account", "metadata", "template", "refused"),
    [
        pytest.param(USER, {}, {"labels": {key("job-uid"): "x"}}, True, id="a label for its pods"),
        pytest.param(USER, {}, {"annotations": {key("borrowed"): "x"}}, True, id="an annotation for its pods"),
        pytest.param(USER, {}, {"labels": {key("throttling"): "false"}}, False, id="a user's key for its pods"),
        pytest.param(USER, {"finalizers": [key("operator")]}, {}, True, id="the finalizer"),
        pytest.param(USER, {"annotations": {key("kopf"): "x"}}, {}, True, id="an annotation"),
        pytest.param(USER, {}, {}, False, id="a plain one"),
    ],
)
async def test_a_new_job(scene: Scene, account: Account, metadata: Json, template: Json, refused: bool) -> None:
    job = job_json("new")
    job["metadata"] |= metadata
    job["spec"]["template"]["metadata"] |= template
    path = "/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs"
    answer = await scene.asker.ask(account, "POST", path, job)
    assert answer.refused_by_policy == refused, answer
    assert refused or answer.status == 201


@pytest.mark.parametrize(
    ("account", "template", "refused"),
    [
        pytest.param(USER, {"resources": {"limits": {SEAT: "1"}}}, True, id="a user"),
        pytest.param(OPERATOR, {"resources": {"limits": {SEAT: "1"}}}, True, id="the operator for a user"),
        pytest.param(MASTER, {"resources": {"limits": {SEAT: "1"}}}, False, id="an administrator"),
        pytest.param(USER, {"resources": {"limits": {"example.com/disk": "1"}}}, False, id="another resource"),
    ],
)
async def test_a_jobs_template_names_no_seat(scene: Scene, account: Account, template: Json, refused: bool) -> None:
    """The operator, who may ask for seats, makes the pods of the template."""
    job = job_json("seated")
    job["spec"]["template"]["spec"]["containers"][0] |= template
    path = "/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs?dryRun=All"
    answer = await scene.asker.ask(account, "POST", path, job)
    assert answer.refused_by_policy == refused, answer
    assert refused or answer.status == 201
    assert not refused or SEAT in answer.message


@pytest.mark.parametrize(
    ("account", "refused"),
    [
        pytest.param(USER, True, id="a user"),
        pytest.param(EXTENDER, True, id="the extender"),
        pytest.param(OPERATOR, False, id="the operator"),
        pytest.param(MASTER, False, id="an emergency"),
    ],
)
async def test_the_finalizer_of_a_job_is_taken_off(scene: Scene, account: Account, refused: bool) -> None:
    body: Json = {"metadata": {"finalizers": []}}
    answer = await scene.asker.ask(account, "PATCH", job_path("elsewhere/victim"), body)
    assert answer.refused_by_policy == refused, answer


@pytest.mark.parametrize(
    ("who", "field", "refused"),
    [
        ("operator", "message", False),
        ("operator", "placement", True),
        ("operator", "pending", True),
        ("operator", "tuning", True),
        ("operator", "progress", True),
        ("extender", "message", True),
        ("extender", "phase", True),
        ("extender", "placement", False),
        ("extender", "pending", False),
        ("extender", "tuning", True),
        ("extender", "progress", True),
        ("agent", "message", True),
        ("agent", "placement", True),
        ("agent", "tuning", False),
        ("agent", "progress", False),
        ("agent elsewhere", "tuning", True),
        ("agent elsewhere", "progress", True),
        ("agent nowhere", "tuning", True),
        ("agent nowhere", "progress", True),
        ("somebody", "tuning", True),
        ("somebody", "progress", True),
        ("somebody", "message", True),
        ("administrator", "message", False),
    ],
)
async def test_a_field_of_the_status_is_written(scene: Scene, who: str, field: str, refused: bool) -> None:
    accounts = {
        "operator": OPERATOR,
        "extender": EXTENDER,
        "agent": component("agent", node=scene.job["status"]["placement"]["nodes"][0]),
        "agent elsewhere": component("agent", node="node-9999"),
        "agent nowhere": component("agent"),
        "somebody": WIDE_USER,
        "administrator": MASTER,
    }
    values = {
        "message": "forged",
        "phase": "Failed",
        "placement": scene.job["status"]["placement"] | {"planId": "forged"},
        "pending": {"code": "X", "message": "x", "since": "2026-01-01T00:00:00Z"},
        "tuning": {"attempt": 1, "phase": "Measuring"},
        "progress": {"attempt": 1, "step": 1},
    }
    path = job_path("elsewhere/victim", status=True)
    answer = await scene.asker.ask(accounts[who], "PATCH", path, {"status": {field: values[field]}})
    assert answer.refused_by_policy == refused, answer
    assert refused or answer.status == 200, answer
    removal = await scene.asker.ask(accounts[who], "PATCH", path, {"status": {field: None}})
    present = field in scene.job["status"]
    assert removal.refused_by_policy == (refused and present), removal


async def test_an_agent_tells_of_its_own_node_alone(scene: Scene) -> None:
    agent = component("agent", node="node-0001")
    for node, refused in (("node-0001", False), ("node-0002", True)):
        path = f"/apis/coda.scheduler/v1alpha1/nodeprofiles/{node}"
        item = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "NodeProfile", "metadata": {"name": node}}
        answer = await scene.asker.ask(agent, "PATCH", path, item, apply=True)
        assert answer.refused_by_policy == refused, answer


async def test_the_leaders_label_is_the_extenders(scene: Scene) -> None:
    for account, refused in ((EXTENDER, False), (WIDE_USER, True), (OPERATOR, False)):
        for value in ("true", None):
            body: Json = {"metadata": {"labels": {key("leader"): value}}}
            answer = await scene.asker.ask(account, "PATCH", EXTENDER_POD, body)
            is_change = value != (await scene.asker.label(EXTENDER_POD, key("leader")))
            assert answer.refused_by_policy == (refused and is_change), answer


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"activeDeadlineSeconds": 1}}, id="how long it runs"),
        pytest.param({"metadata": {"labels": {"x": "y"}}}, id="a label"),
        pytest.param({"metadata": {"annotations": {"x": "y"}}}, id="an annotation"),
        pytest.param({"metadata": {"annotations": {key("plan"): "p"}}}, id="a plan"),
        pytest.param({"metadata": {"finalizers": ["example.com/x"]}}, id="a finalizer"),
        pytest.param({"metadata": owner("ConfigMap", "v1")}, id="an owner"),
    ],
)
async def test_the_extender_changes_nothing_else_of_a_pod_of_coda(scene: Scene, change: Json) -> None:
    answer = await scene.asker.ask(EXTENDER, "PATCH", EXTENDER_POD, change)
    assert answer.refused_by_policy, answer


async def test_the_extender_gives_no_pod_of_coda_another_image(scene: Scene) -> None:
    """Whoever runs in the operator's pod has the operator's token."""
    spec = (await scene.asker.ask(MASTER, "GET", EXTENDER_POD, None)).item["spec"]
    for forged in (
        {"containers": [spec["containers"][0] | {"image": "forged"}]},
        {"tolerations": [*spec["tolerations"], ALL]},
    ):
        assert (await scene.asker.ask(MASTER, "PATCH", EXTENDER_POD, {"spec": forged})).status == 200
        answer = await scene.asker.ask(EXTENDER, "PATCH", EXTENDER_POD, {"spec": forged})
        assert answer.refused_by_policy, answer
        assert "the extender changes only" in answer.message


@pytest.mark.parametrize(
    ("account", "refused"),
    [(WIDE_USER, True), (OPERATOR, False), (MASTER, False)],
    ids=["somebody", "the operator", "an administrator"],
)
async def test_the_list_of_the_pools_nodes_is_the_operators(scene: Scene, account: Account, refused: bool) -> None:
    path = "/api/v1/namespaces/coda-system/configmaps/coda-pool-nodes-0"
    for method, body in (("PATCH", {"data": {"names": ""}}), ("DELETE", None)):
        answer = await scene.asker.ask(account, method, path, body)
        if account is OPERATOR and method == "DELETE":
            continue  # its role does not grant it
        assert answer.refused_by_policy == refused, answer


async def test_nodes_and_namespaces_carry_no_keys_that_nobody_gave_them(scene: Scene) -> None:
    for path, name, refused in (
        ("/api/v1/nodes/node-0001", "anything", True),
        ("/api/v1/nodes/node-0001/status", "anything", True),
        ("/api/v1/namespaces/default", "pool", True),
        ("/api/v1/namespaces/default/status", "anything", True),
        ("/api/v1/namespaces/default/services/kubernetes/status", "anything", True),
        ("/api/v1/namespaces/default", "throttling", False),
    ):
        answer = await scene.asker.ask(WIDE_USER, "PATCH", path, {"metadata": {"labels": {key(name): "true"}}})
        assert answer.refused_by_policy == refused, answer


async def test_the_agents_real_token_says_where_it_runs(cluster: LocalCluster, scene: Scene) -> None:
    first = scene.job["status"]["placement"]["nodes"][0]
    body = status_patch(
        "elsewhere/victim", {"tuning": {"attempt": 1, "phase": "Measuring"}}, uid=scene.job["metadata"]["uid"]
    )
    path = job_path("elsewhere/victim", status=True)
    elsewhere = next(name for name in ("node-0000", "node-0001") if name != first)
    async with cluster.agent_client(elsewhere) as agent:
        with pytest.raises(Rejected, match="only the agent on the node of rank 0"):
            await agent.apply(path, body, manager="coda-agent")
    async with cluster.agent_client(first) as agent:
        await agent.apply(path, body, manager="coda-agent")


async def test_a_forged_placement_with_an_agents_account_moves_no_job(cluster: LocalCluster, scene: Scene) -> None:
    """Finding H8: one agent's token moved every job of every tenant."""
    forged = scene.job["status"]["placement"] | {"planId": "forged", "nodes": ["node-0003", "node-0003"]}
    body = status_patch("elsewhere/victim", {"placement": forged}, uid=scene.job["metadata"]["uid"])
    async with cluster.agent_client(scene.job["status"]["placement"]["nodes"][0]) as agent:
        with pytest.raises(Rejected, match=r"does not write status\.placement"):
            await agent.apply(job_path("elsewhere/victim", status=True), body, manager="coda-agent")


async def test_the_extender_answers_nobody_but_the_scheduler(cluster: LocalCluster, user: Client) -> None:
    """Finding C5: one question with a made-up pod kept 8 GPUs of every node from everybody for 30 s."""
    made_up = pod(metadata={"name": "made-up", "namespace": "default", "uid": "made-up"})
    made_up["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "8"}}
    names = [f"node-{number:04d}" for number in range(4)]
    question = {"Pod": made_up, "Nodes": None, "NodeNames": names}
    async with aiohttp.ClientSession() as session:
        for part in ("forwarder", "extender-0", "extender-1"):
            for scheme in ("http", "https"):
                url = f"{scheme}://127.0.0.1:{cluster.ports[part]}/filter"
                with pytest.raises((aiohttp.ClientError, OSError)):
                    async with session.post(url, json=question, ssl=False) as answer:
                        pytest.fail(f"{url} answered {answer.status}: {await answer.text()}")
    job = await submit(user, job_json("honest", replicas=3, gpus=8, run_s=0.1))
    await wait_for_phase(user, job, "Succeeded")
