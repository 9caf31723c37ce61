"""Breaks by what stands between Coda and what it needs: webhooks, labels, definitions, a database, the network."""

from __future__ import annotations

import asyncio
import base64
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from coda_kube.api.client import Rejected
from coda_kube.certificates import DAY_S, LEAF_S, KeyPair, files_of, new_authority, new_leaf
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB, LABEL_LEADER, SYSTEM_NAMESPACE
from coda_lab import install
from coda_lab.host.paths import crds
from coda_lab.kubeconfigs import write_private
from coda_lab.spec import SCHEDULER
from coda_operator.certificates import AUTHORITY, SERVES_BY_SECRET
from tests.e2e.agents import training, wait_until
from tests.e2e.jobs import submit
from tests.monitoring.breaking import Scene, again_and_again, history_file

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
TENANTS = "/apis/coda.scheduler/v1alpha1/virtualclusters"
NOBODY = "https://127.0.0.1:9/answers"  # no program listens on this port


@asynccontextmanager
async def webhook_away(
    scene: Scene, group: str, *resources: str, account: str | None = None, selector: Json | None = None
) -> AsyncIterator[None]:
    """Somebody's webhook for writes of these resources does not answer, and the API server refuses them for it."""
    version = {"": "v1", "coda.scheduler": "v1alpha1"}[group]
    hook: dict[str, Any] = {
        "name": "away.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "clientConfig": {"url": NOBODY, "caBundle": ""},
        "rules": [
            {
                "apiGroups": [group],
                "apiVersions": [version],
                "operations": ["CREATE", "UPDATE"],
                "resources": list(resources),
            }
        ],
        "objectSelector": selector or {},
    }
    if account is not None:
        user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}"
        hook["matchConditions"] = [{"name": "account", "expression": f"request.userInfo.username == '{user}'"}]
    name = f"away-{next(scene.number)}"
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    await scene.admin.create(WEBHOOKS, kind | {"metadata": {"name": name}, "webhooks": [hook]})
    try:
        yield
    finally:
        await scene.admin.delete(f"{WEBHOOKS}/{name}")


@asynccontextmanager
async def pods_refused(scene: Scene) -> AsyncIterator[None]:
    ranks = {"matchExpressions": [{"key": LABEL_JOB, "operator": "Exists"}]}
    async with webhook_away(scene, "", "pods", selector=ranks):
        for _ in range(6):
            await scene.submit("no-pods", run_s=0.1)
        yield


@asynccontextmanager
async def planner_may_not_write(scene: Scene) -> AsyncIterator[None]:
    async with webhook_away(scene, "coda.scheduler", "trainingjobs/status", account="coda-extender"):
        await scene.submit("unwritten", run_s=0.1)
        yield


@asynccontextmanager
async def operator_may_not_write(scene: Scene) -> AsyncIterator[None]:
    """A new job stays as it is. For ten minutes: the threshold is a part of the expression."""
    async with webhook_away(scene, "coda.scheduler", "trainingjobs/status", account="coda-operator"):
        await scene.submit("not-accepted", run_s=0.1)
        yield


@asynccontextmanager
async def agents_may_not_write(scene: Scene) -> AsyncIterator[None]:
    for _ in range(3):
        tuned = training(f"tuned-{next(scene.number)}", cores_needed=4, node="node-0000")
        scene.submitted.append(await submit(scene.user, tuned))
    async with webhook_away(
        scene, "coda.scheduler", "nodeprofiles/status", "trainingjobs/status", account="coda-agent"
    ):
        yield


@asynccontextmanager
async def label_at_a_follower(scene: Scene) -> AsyncIterator[None]:
    """Somebody gives the leader's label to the other replica; each new leader takes it back once."""
    pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    found = (await scene.admin.get(pods, {"labelSelector": f"{LABEL_LEADER}=true"}))["items"]
    leader = found[0]["metadata"]["name"]
    follower = next(f"coda-{name}" for name in scene.extenders() if f"coda-{name}" != leader)

    async def label(pod: str, value: str | None) -> None:
        await scene.admin.patch(f"{pods}/{pod}", {"metadata": {"labels": {LABEL_LEADER: value}}})

    async def schedule() -> None:
        await scene.submit("not-bound", run_s=0.1)
        await asyncio.sleep(5)

    await label(leader, None)
    await label(follower, "true")
    try:
        async with again_and_again(schedule):
            yield
    finally:
        await label(follower, None)
        await label(leader, "true")


@asynccontextmanager
async def another_authority(scene: Scene) -> AsyncIterator[None]:
    """kube-scheduler trusts another authority than the one that signed the extender's certificate."""
    file = scene.cluster.layout.tls(SCHEDULER) / "ca.crt"
    known, other = file.read_text(), new_authority(time.time())

    async def trust(authority: str) -> None:
        await scene.cluster.kill(SCHEDULER)
        write_private(file, authority)
        await scene.cluster.start(SCHEDULER)

    async def schedule() -> None:
        await scene.submit("not-asked", run_s=0.1)
        await asyncio.sleep(2)

    await trust(files_of(other, other)["ca.crt"].decode())
    try:
        async with again_and_again(schedule):
            yield
    finally:
        await trust(known)


@asynccontextmanager
async def certificate_not_renewed(scene: Scene) -> AsyncIterator[None]:
    """The operator may not write Secrets any more, and the certificate in one has twelve days left."""
    name, path = "coda-extender-tls", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
    authority = (await scene.admin.get(f"{path}/{AUTHORITY}"))["data"]
    pair = KeyPair(*(base64.b64decode(authority[file]) for file in ("tls.crt", "tls.key")))
    made_s = time.time() + 12 * DAY_S - LEAF_S
    files = files_of(new_leaf(pair, serves=SERVES_BY_SECRET[name], now_s=made_s), pair)
    async with webhook_away(scene, "", "secrets", account="coda-operator"):
        encoded = {file: base64.b64encode(content).decode() for file, content in files.items()}
        await scene.admin.patch(f"{path}/{name}", {"data": encoded})
        yield


@asynccontextmanager
async def definition_loosened(scene: Scene) -> AsyncIterator[None]:
    """Somebody has changed a definition, and the API server now takes what no part can read."""
    definition = next(
        one for one in install.objects_in(crds()) if one["metadata"]["name"].startswith("virtualclusters")
    )
    loose = copy.deepcopy(definition)
    for version in loose["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        del schema["x-kubernetes-validations"]
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster"}
    name = f"odd-{next(scene.number)}"

    async def is_taken() -> bool:
        try:
            await scene.admin.create(TENANTS, kind | {"metadata": {"name": name}, "spec": {"namespaces": 7}})
        except Rejected:  # the API server takes a moment to know the new definition
            return False
        return True

    await install.apply_all(scene.admin, [loose])
    try:
        await wait_until(is_taken)
        yield
    finally:
        await scene.admin.delete(f"{TENANTS}/{name}")
        await install.apply_all(scene.admin, [definition])


@asynccontextmanager
async def history_locked(scene: Scene) -> AsyncIterator[None]:
    """Somebody keeps the database to themselves, as a backup of it does."""
    with history_file(scene) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        try:
            await scene.submit("unrecorded", run_s=0.1)
            yield
        finally:
            connection.execute("ROLLBACK")
