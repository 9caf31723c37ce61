"""The chart on a real control plane: installed by Helm, its pods run as processes with what its roles grant."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio
import yaml

from coda_kube.api.client import Client
from coda_kube.api.until import until
from coda_kube.objects.names import LABEL_LEADER, OPERATOR_LEASE, PLANNER_LEASE
from coda_kube.objects.write import job_path
from coda_lab.checker import Checker
from coda_lab.host.client_tls import client_context
from coda_lab.host.paths import chart
from coda_lab.host.ports import LOOPBACK
from coda_lab.install import wait_for_account, wait_for_leader
from coda_lab.local.cluster import LocalCluster, answers_ok
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from tests.deploy import history
from tests.deploy.charts import NAMESPACE, Helm, Json
from tests.deploy.golden import compare_with_golden
from tests.deploy.granted import HOOKS, RBAC, account_of, accounts_of_hook, applied, own
from tests.deploy.installed import COLLECTIONS, forward, take_away_what_the_chart_brings
from tests.deploy.pods_as_processes import PODS, ROOT, RunningPod, complaints_of, run_hook, run_pods
from tests.deploy.renewal import TAKEN_UP, ask_anew, renew_certificate
from tests.e2e.jobs import events_of, job_json, submit, wait_for_pending, wait_for_phase, wait_gone

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LEASES = {"operator": OPERATOR_LEASE, "extender": PLANNER_LEASE, "scheduler": "coda-scheduler"}
PATIENCE_S = 60  # a take-over takes 15 s at most
LEADER = f"{LABEL_LEADER}=true"
READER = {"kind": "ServiceAccount", "name": "default", "namespace": "kube-public"}
VALUES = {"history": history.VALUES, "operator": {"replicas": 2}, "metrics": {"readers": [READER]}}
TWO_OPERATORS = tuple(word for key, value in VALUES.items() for word in ("--set-json", f"{key}={json.dumps(value)}"))
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A cluster in which the chart is installed, and the processes of its pods."""

    cluster: LocalCluster
    helm: Helm
    running: dict[str, list[RunningPod]]
    history_url: str
    beside_own: str  # what `helm install` said while a CPU job of an earlier installation ran
    warned: str  # and while a pod ran that Deny would refuse

    def run_helm(self, *words: str) -> str:
        kubeconfig = str(self.cluster.kubeconfig("admin"))
        ended = self.helm.run(*words, "--namespace", NAMESPACE, "--kubeconfig", kubeconfig)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def complaints(self) -> list[str]:
        """What the parts said of things they were not allowed to do."""
        return [line for pods in self.running.values() for line in complaints_of(pods)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installation(helm: Helm) -> AsyncIterator[Installation]:
    async with (
        running_cluster(ClusterSpec(nodes="4x8x48", racks=2, coda=False), tell=print) as cluster,
        cluster.client("admin") as admin,
        history.database_with_secret(admin) as history_url,
    ):
        await take_away_what_the_chart_brings(admin)
        made = Installation(
            cluster=cluster,
            helm=helm,
            running={},
            history_url=history_url,
            beside_own=await plan_beside(cluster, helm, released_pod()),
            warned=await plan_beside(cluster, helm, tolerant_pod()),
        )
        # --wait: the cluster's own scheduler places the pods, and their simulated kubelets report them ready.
        installing = asyncio.to_thread(made.run_helm, "install", "coda", str(chart()), "--wait", *TWO_OPERATORS)
        await asyncio.gather(installing, run_hook(cluster, admin, "definitions"))
        await cluster.kill("kube-scheduler")  # from here on Coda's own is the only one
        with contextlib.ExitStack() as processes_of_pods:
            processes_of_pods.callback(forward(cluster).end_at_once)
            for part in ("operator", "extender", "scheduler"):  # the operator makes the others' certificates
                made.running[part] = await run_pods(cluster, admin, part)
                for pod in made.running[part]:
                    processes_of_pods.callback(pod.process.end_at_once)
            await asyncio.gather(*(pod.becomes_ready() for pods in made.running.values() for pod in pods))
            async with asyncio.timeout(PATIENCE_S):
                await wait_for_leader(admin)
            yield made


def tolerant_pod() -> Json:
    return {
        "metadata": {"name": "tolerant", "annotations": {"coda.scheduler/plan": "forged"}},
        "spec": {
            "nodeName": "node-0000",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }


def released_pod() -> Json:
    """A CPU job on borrowed cores, as the planner of an installation before this one released it."""
    released = {"plan": "p1", "planned-time": "2026-01-01T00:00:00Z", "queued-time": "2026-01-01T00:00:00Z"}
    notes = {f"coda.scheduler/{key}": value for key, value in (released | {"borrows": "true", "user": "ann"}).items()}
    return {
        "metadata": {"name": "released", "annotations": notes},
        "spec": {
            "schedulerName": "coda",
            "tolerations": [{"key": "coda.scheduler/pool", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }


async def plan_beside(cluster: LocalCluster, helm: Helm, pod: Json) -> str:
    """What an installation would be while this pod runs."""
    path = "/api/v1/namespaces/default/pods"
    kubeconfig = str(cluster.kubeconfig("admin"))
    async with cluster.client("admin") as admin:
        await admin.create(path, pod)
        words = (
            "install",
            "coda",
            str(chart()),
            "--dry-run=server",
            "--namespace",
            NAMESPACE,
            "--kubeconfig",
            kubeconfig,
        )
        ended = await asyncio.to_thread(helm.run, *words)
        await admin.delete(f"{path}/{pod['metadata']['name']}", grace_s=0)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest_asyncio.fixture(loop_scope="module")
async def admin(installation: Installation) -> AsyncIterator[Client]:
    async with installation.cluster.client("admin") as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def user(installation: Installation) -> AsyncIterator[Client]:
    async with installation.cluster.client("user") as client:
        yield client


async def leader_of(admin: Client) -> str:
    (pod,) = (await admin.list_pages(PODS, {"labelSelector": LEADER}))["items"]
    return str(pod["metadata"]["name"])


def leading_process(installation: Installation, part: str, holder: str) -> RunningPod:
    """Of a part's pods the one that holds its Lease. kube-scheduler does not name its pod there, but says it has it."""
    pods = installation.running[part]
    acquired = [
        pod for pod in pods if part == "scheduler" and "successfully acquired lease" in pod.log.read_text().lower()
    ]
    (leading,) = acquired or [pod for pod in pods if holder.startswith(pod.name)]
    return leading


async def metrics(pod: RunningPod, token: str | None) -> tuple[int, str]:
    """The status and the text of an answer to whoever has this token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"http://{LOOPBACK}:{pod.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


async def token_of(admin: Client, namespace: str) -> str:
    """A token of the account `default` of this namespace."""
    await wait_for_account(admin, namespace)
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    return str((await admin.create(path, {"spec": {}}))["status"]["token"])


async def filter_answers(admin: Client, pod: RunningPod) -> float:
    """How many times kube-scheduler has asked this extender which nodes a pod may take."""
    status, text = await metrics(pod, await token_of(admin, READER["namespace"]))
    assert status == 200, text
    lines = text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("coda_extender_answers_total{") and 'verb="filter"' in line
    )


async def test_a_gang_runs_on_what_the_chart_installs(installation: Installation, admin: Client, user: Client) -> None:
    leader = await leader_of(admin)
    (leading,) = (pod for pod in installation.running["extender"] if pod.name == leader)
    before = await filter_answers(admin, leading)
    checker = Checker(admin)
    async with checker.watching():
        job = await submit(user, job_json("gang", replicas=3, gpus=8))
        too_large = await submit(user, job_json("too-large", replicas=5, gpus=8))
        done = await wait_for_phase(user, job, "Succeeded")
        await wait_for_pending(user, too_large, "NeverFits")
        await user.delete(job_path(too_large))
        await wait_gone(user, job_path(too_large))
    assert len(set(done["status"]["placement"]["nodes"])) == 3
    assert {"Running", "Succeeded"} <= await events_of(user, job)
    await history.recorded(installation.history_url, "gang")
    assert await filter_answers(admin, leading) >= before + 3
    assert [breach.sentence for breach in checker.breaches] == []
    assert installation.complaints() == []


async def test_only_whom_the_api_server_lets_reads_metrics(installation: Installation, admin: Client) -> None:
    reader = await token_of(admin, READER["namespace"])
    other = await token_of(admin, "default")
    for part in ("operator", "extender"):
        for pod in installation.running[part]:
            statuses = [(await metrics(pod, token))[0] for token in (None, "made-up", other, reader, reader)]
            assert statuses == [401, 401, 403, 200, 200], pod.name
            assert await answers_ok(f"http://{LOOPBACK}:{pod.port}/healthz")


async def test_the_demo_jobs_of_kind_are_taken(admin: Client) -> None:
    for item in yaml.safe_load_all((ROOT / "deploy" / "kind" / "demo.yaml").read_text()):
        if item["kind"] == "Namespace":
            await admin.create("/api/v1/namespaces", item)
            await wait_for_account(admin, item["metadata"]["name"])
            continue
        group, plural = ("batch/v1", "jobs") if item["kind"] == "Job" else ("coda.scheduler/v1alpha1", "trainingjobs")
        made = await admin.create(f"/apis/{group}/namespaces/coda-demo/{plural}", item, {"dryRun": "All"})
        assert made["metadata"]["annotations"]["coda.scheduler/user"]


async def test_certificates_are_renewed_under_load(installation: Installation, admin: Client, user: Client) -> None:
    """The Secrets change, and the files with them, while jobs are scheduled and a client makes a new connection for
    each call, with the scheduler's old and new certificate in turn. The next test needs new handshakes of the real one.
    """
    scheduler = installation.running["scheduler"][0].log.parent / "tls"
    contexts = [client_context(scheduler)]
    failed: list[str] = []
    calls, jobs = 0, []

    async def call() -> None:
        nonlocal calls
        while True:
            calls += 1
            try:
                await ask_anew(installation.cluster.ports["forwarder"], contexts[-1 - calls % min(2, len(contexts))])
            except (OSError, asyncio.IncompleteReadError, AssertionError) as error:
                failed.append(f"call {calls}: {type(error).__name__}: {error}")
            await asyncio.sleep(0.01)

    calling = asyncio.create_task(call())
    for turn, order in enumerate((("extender", "scheduler"), ("scheduler", "extender"))):
        for part in order:
            jobs += [await submit(user, job_json(f"turn-{turn}-{part}-{n}", run_s=0.2)) for n in range(5)]
            renewed = [pod.log.read_text().count(TAKEN_UP) for pod in installation.running["extender"]]
            await renew_certificate(admin, part, installation.running[part])
            if part == "scheduler":
                contexts.append(client_context(scheduler))
                continue
            async with asyncio.timeout(PATIENCE_S):
                for pod, before in zip(installation.running["extender"], renewed, strict=True):
                    while pod.log.read_text().count(TAKEN_UP) == before:
                        await asyncio.sleep(0.1)  # a log is asked, it tells nobody
    jobs += [await submit(user, job_json(f"then-{number}", run_s=0.2)) for number in range(5)]
    for job in jobs:
        done = await wait_for_phase(user, job, "Succeeded", within_s=60)
        assert (done["status"]["attempt"], done["status"]["failures"], done["status"]["disruptions"]) == (1, 0, 0)
    calling.cancel()
    await asyncio.wait({calling})
    assert failed == []
    assert calls > 50
    said = [line for pod in installation.running["scheduler"] for line in pod.log.read_text().splitlines()]
    assert [line for line in said if "x509" in line or "tls:" in line] == []


async def test_another_replica_of_each_part_takes_over(installation: Installation, admin: Client, user: Client) -> None:
    first = await leader_of(admin)
    for part, name in LEASES.items():
        lease = await admin.get(f"{LEASE_PATH}/{name}")
        leading_process(installation, part, lease["spec"]["holderIdentity"]).process.end_at_once()
    async with asyncio.timeout(PATIENCE_S):
        await until(admin, PODS, lambda by_name: f"{NAMESPACE}/{first}" not in by_name, query={"labelSelector": LEADER})
        await wait_for_leader(admin)
    job = await submit(user, job_json("after-the-change", replicas=2, gpus=8))
    await wait_for_phase(user, job, "Succeeded", within_s=60)
    assert await leader_of(admin) != first
    assert installation.complaints() == []


@pytest.mark.parametrize(
    ("part", "verb", "group", "resource"),
    [
        ("operator", "get", "", "secrets"),
        ("operator", "patch", "", "nodes"),
        ("operator", "create", "rbac.authorization.k8s.io", "clusterrolebindings"),
        ("operator", "patch", "coordination.k8s.io", "leases"),
        ("extender", "create", "", "pods"),
        ("extender", "delete", "", "pods"),
        ("extender", "patch", "coda.scheduler", "trainingjobs"),
        ("extender", "get", "", "secrets"),
        ("scheduler", "patch", "coda.scheduler", "trainingjobs/status"),
        ("scheduler", "get", "", "secrets"),
    ],
)
async def test_a_part_may_not_do_in_a_users_namespace(
    admin: Client, part: str, verb: str, group: str, resource: str
) -> None:
    kind, _, subresource = resource.partition("/")
    attributes = {"namespace": "default", "verb": verb, "group": group, "resource": kind, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{NAMESPACE}:coda-{part}", "resourceAttributes": attributes},
    }
    answer = await admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is False


@pytest.mark.parametrize("part", ["operator", "extender", "agent", "scheduler", *HOOKS])
@pytest.mark.parametrize("namespace", ["default", NAMESPACE])
async def test_a_part_may_do_what_was_reviewed(
    installation: Installation, admin: Client, part: str, namespace: str
) -> None:
    """As `kubectl auth can-i --list` says, less what every account may."""
    async with contextlib.AsyncExitStack() as granted:
        if part in HOOKS:
            await granted.enter_async_context(applied(admin, accounts_of_hook(installation.helm, part)))
        compare_with_golden(f"may-{part}-in-{namespace}.txt", own(installation.cluster, account_of(part), namespace))


@pytest.mark.parametrize("role", ["coda-edit", "coda-view", "coda-pool-user"])
async def test_a_role_for_users_grants_what_was_reviewed(installation: Installation, admin: Client, role: str) -> None:
    metadata = {"name": f"reviewed-{role}", "namespace": "default"}
    subject = {"kind": "User", "name": metadata["name"], "apiGroup": RBAC}
    reference = {"kind": "ClusterRole", "name": role, "apiGroup": RBAC}
    binding: Json = {"kind": "RoleBinding", "metadata": metadata, "roleRef": reference, "subjects": [subject]}
    binding["apiVersion"] = f"{RBAC}/v1"
    async with applied(admin, [binding]):
        compare_with_golden(f"may-{role}.txt", own(installation.cluster, metadata["name"], "default"))


async def test_the_policies_warn_while_a_pod_runs_that_they_would_refuse(
    installation: Installation, admin: Client
) -> None:
    warned = installation.warned
    assert "default/tolerant: tolerates the taint coda.scheduler/pool" in warned
    assert "default/tolerant: has coda.scheduler/plan" in warned
    assert "default/tolerant: named the node node-0000 of the pool itself" in warned
    assert "validationActions:\n  - Warn\n  - Audit" in warned
    assert "- Deny" not in warned
    bindings = (await admin.list_pages(COLLECTIONS["ValidatingAdmissionPolicyBinding"]))["items"]
    ours = {item["metadata"]["name"]: item["spec"]["validationActions"] for item in bindings}
    assert len(ours) == 11
    assert set(map(tuple, ours.values())) == {("Deny",)}


async def test_the_policies_refuse_from_the_start_beside_what_an_earlier_coda_released(
    installation: Installation,
) -> None:
    assert "default/released" not in installation.beside_own
    assert "validationActions:\n  - Deny" in installation.beside_own
    assert "- Warn" not in installation.beside_own


async def test_an_upgrade_changes_what_it_concerns_and_an_uninstallation_leaves_the_jobs(
    installation: Installation, admin: Client, user: Client
) -> None:
    async def templates() -> dict[str, Json]:
        listing = await admin.list_pages(DEPLOYMENTS)
        return {item["metadata"]["name"]: item["spec"]["template"] for item in listing["items"]}

    before = await templates()
    installation.run_helm(
        *("upgrade", "coda", str(chart()), "--reset-values"),
        *("--set", "pool.mode=shared,definitions.upgrade=false", *TWO_OPERATORS),
    )
    after = await templates()
    assert {name for name in before if before[name] != after[name]} == {"coda-scheduler", "coda-operator"}

    job = await submit(user, job_json("stays", run_s=None, spec={"suspend": True}))
    assert "Helm installs CustomResourceDefinitions but never upgrades them" in installation.run_helm(
        "get", "notes", "coda"
    )
    installation.run_helm("uninstall", "coda", "--wait", "--no-hooks")  # no scheduler for the hook's pod is left here
    assert (await admin.list_pages(DEPLOYMENTS))["items"] == []
    assert (await admin.get(job_path(job)))["spec"]["suspend"] is True
