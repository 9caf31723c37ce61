"""CPU jobs as users make them, and what a user sees of them."""

from __future__ import annotations

import asyncio
from typing import Any

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_lab import install
from tests.e2e.accounts import Account
from tests.e2e.jobs import PATIENCE_S
from tests.e2e.policy_cases import wide_binding, wide_role

BATCH = "batch"
PODS = f"/api/v1/namespaces/{BATCH}/pods"
JOBS = f"/apis/batch/v1/namespaces/{BATCH}/jobs"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{BATCH}/deployments"
BUDGETS = f"/apis/policy/v1/namespaces/{BATCH}/poddisruptionbudgets"
FAILS_ON_DISRUPTION = {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
GATE = {"name": "coda.scheduler/admission"}


def pod_json(name: str, *, cpu: str = "1", run_s: float | None = None, **spec: Any) -> Json:
    notes = {} if run_s is None else {"sim.coda.scheduler/run-seconds": str(run_s)}
    container = {"name": "main", "image": "work:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": BATCH, "annotations": notes},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]} | spec,
    }


def batch_job(name: str, *, pods: int, cpu: str, run_s: float | None = None, **spec: Any) -> Json:
    pod = pod_json(name, cpu=cpu, run_s=run_s)
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": BATCH},
        "spec": {"completions": pods, "parallelism": pods, "template": template} | spec,
    }


def deployment(name: str, *, pods: int, cpu: str, labels: dict[str, str] | None = None) -> Json:
    pod = pod_json(name, cpu=cpu, restartPolicy="Always")
    template = {"metadata": {"labels": {"app": name} | (labels or {})}, "spec": pod["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": BATCH},
        "spec": {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


ANN, BOB = Account(user="ann"), Account(user="bob")
"""Two administrators of the namespace."""


async def opt_in(admin: Client) -> None:
    """Make the namespace, with its administrators, and somebody whom only the policies stop."""
    labels = {"coda.scheduler/opt-in": "true"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BATCH, "labels": labels}}
    await admin.create("/api/v1/namespaces", body)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await admin.create(f"{rbac}/clusterroles", wide_role())
    await admin.create(f"{rbac}/clusterrolebindings", wide_binding())
    for role in ("admin", "coda-edit"):
        await admin.create(f"{rbac}/namespaces/{BATCH}/rolebindings", _administrators(role))
    await install.wait_for_account(admin, BATCH)
    await wait_until_gated(admin)


def _administrators(role: str) -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": role, "namespace": BATCH},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": each.user} for each in (ANN, BOB)],
    }


async def wait_until_gated(admin: Client) -> None:
    """The API server learns of policies and labels within a moment; nothing tells when."""
    while True:
        answer = await admin.create(PODS, pod_json("probe"), {"dryRun": "All"})
        if answer["spec"].get("schedulingGates") == [GATE]:
            return
        await asyncio.sleep(0.05)


async def all_pods(client: Client) -> list[Json]:
    return list((await client.list_pages(PODS))["items"])


async def event_messages(client: Client, reason: str) -> list[str]:
    listing = await client.list_pages(f"/api/v1/namespaces/{BATCH}/events")
    return [event["message"] for event in listing["items"] if event["reason"] == reason]


async def event_reasons(client: Client) -> set[str]:
    listing = await client.list_pages(f"/api/v1/namespaces/{BATCH}/events")
    return {event["reason"] for event in listing["items"]}


def name_of(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def is_bound(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in pod["metadata"]


def borrows(pod: Json) -> bool:
    return bool((pod["metadata"].get("annotations") or {}).get("coda.scheduler/borrows") == "true")


async def wait_until_bound(client: Client, count: int, *, within_s: float = PATIENCE_S) -> list[Json]:
    """All pods, once `count` of them are bound and live."""
    async with asyncio.timeout(within_s):
        while sum(map(is_bound, pods := await all_pods(client))) < count:
            await asyncio.sleep(0.1)
    return pods


async def wait_until_some_wait(client: Client) -> set[str]:
    """The names of the gated pods, once there are any."""
    async with asyncio.timeout(PATIENCE_S):
        while not (waiting := [pod for pod in await all_pods(client) if pod["spec"].get("schedulingGates")]):
            await asyncio.sleep(0.1)
    return set(map(name_of, waiting))


async def wait_until_empty(client: Client) -> None:
    """Until the namespace has no pods."""
    async with asyncio.timeout(PATIENCE_S):
        while await all_pods(client):
            await asyncio.sleep(0.1)
