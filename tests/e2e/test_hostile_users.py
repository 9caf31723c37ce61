"""What a plain user may store on a real API server harms nobody else: the others' jobs start, explain and end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import aiohttp
import pytest

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import (
    ANNOTATION_PLAN,
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    SCHEDULER,
)
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Asker, asking
from tests.e2e.jobs import (
    PATIENCE_S,
    job_json,
    jobs_path,
    submit,
    wait_for,
    wait_for_pending,
    wait_for_phase,
    wait_gone,
)
from tests.e2e.policy_cases import PODS, USER, entries, pod

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="4x8x48", racks=2, extenders=1)
OURS = {"labelSelector": "app.kubernetes.io/name=coda"}
LEVELS = 3000  # of `metadata.managedFields`, which the API server stores at any depth for anybody


@pytest.fixture
async def asker(cluster: LocalCluster) -> AsyncIterator[Asker]:
    async with asking(cluster) as one:
        yield one


def deep_owners(api_version: str) -> str:
    """`managedFields` of one manager, nested as text: no serializer here could write it."""
    fields = '{"f:a":' * LEVELS + "{}" + "}" * LEVELS
    entry = {"manager": "me", "operation": "Apply", "apiVersion": api_version, "time": "2026-01-01T00:00:00Z"}
    return f'"managedFields":[{json.dumps(entry)[:-1]},"fieldsType":"FieldsV1","fieldsV1":{fields}}}]'


async def create_text(client: Client, path: str, item: Mapping[str, object], owners: str) -> bool:
    """Create the object with these `managedFields`. False if it is too large for etcd."""
    text = json.dumps(item).replace('"metadata": {', '"metadata": {' + owners + ",", 1)
    session: aiohttp.ClientSession = await client.new_session()
    async with (
        session,
        session.post(client.server + path, data=text, headers={"Content-Type": "application/json"}) as answer,
    ):
        said = await answer.text()
        assert answer.status == 201 or "request is too large" in said, said[:500]
        return answer.status == 201


async def test_objects_nested_3000_levels_deep_blind_no_part_of_coda(cluster: LocalCluster, user: Client) -> None:
    """With a list at the start, and with events of the watches."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "deep"}, "spec": {"containers": [container]}}
    assert await create_text(user, PODS, pod, deep_owners("v1"))
    deep_job = {"apiVersion": API_VERSION, "kind": KIND} | job_json("deep-job", run_s=0.2)
    assert await create_text(user, jobs_path(), deep_job, deep_owners(API_VERSION))
    job = await submit(user, job_json("honest", replicas=2, run_s=0.2))
    await wait_for_phase(user, job, "Succeeded")
    await wait_for_phase(user, "default/deep-job", "Succeeded")  # it is read, too
    for part in ("extender-0", "operator-0"):
        await cluster.kill(part)
        await cluster.start(part)
    again = await submit(user, job_json("honest-again", replicas=2, run_s=0.2))
    await wait_for_phase(user, again, "Succeeded")
    await user.delete(f"{PODS}/deep")


async def test_a_job_that_nothing_has_admitted_is_not_planned(user: Client) -> None:
    """Its user picks a service account that does not exist, so no request of it was ever judged."""
    refused = job_json("no-account", run_s=0.2)
    refused["spec"]["template"]["spec"]["serviceAccountName"] = "missing"
    waiting = await submit(user, refused)
    told = await wait_for(
        user,
        job_path(waiting),
        lambda item: (item.get("status") or {}).get("reason") == "ServiceAccountMissing",
    )
    assert "request" not in told["status"]
    assert 'serviceaccount "missing" not found' in told["status"]["message"]
    job = await submit(user, job_json("honest-third", run_s=0.2))
    await wait_for_phase(user, job, "Succeeded")


async def test_reset_managers_keep_no_reason(user: Client) -> None:
    fills = await submit(user, job_json("fills-2", replicas=4, gpus=8, run_s=None))
    await wait_for_phase(user, fills, "Running")
    job = await submit(user, job_json("reset"))
    await wait_for_pending(user, job, "InsufficientGPUs")
    await user.patch(job_path(job), {"metadata": {"managedFields": [{}]}})
    await user.delete(job_path(fills))
    await wait_for_phase(user, job, "Running", "Succeeded")
    await wait_for(user, job_path(job), lambda item: "pending" not in item["status"])


SIZED: dict[str, tuple[str, Json]] = {
    "Pod": (PODS, pod()),
    "TrainingJob": ("/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs", job_json("sized")),
    "Service": ("/api/v1/namespaces/default/services", {"spec": {"ports": [{"port": 1}]}}),
    "PersistentVolumeClaim": (
        "/api/v1/namespaces/default/persistentvolumeclaims",
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
    ),
}
MOST = {"labels": 128, "annotations": 256, "finalizers": 32, "ownerReferences": 32, "managedFields": 64}


@pytest.mark.parametrize("kind", ["Pod", "TrainingJob", "Service", "PersistentVolumeClaim"])
@pytest.mark.parametrize("what", MOST)
async def test_what_an_object_says_of_itself_has_a_limit(asker: Asker, kind: str, what: str) -> None:
    """Near etcd's limit nothing more can be written: no status, no deletion, no end."""
    path, item = SIZED[kind]
    ask = partial(asker.ask, USER, "POST", path)
    for count, refused in ((MOST[what] - 4, False), (MOST[what] + 1, True)):
        answer = await ask(item | {"metadata": {"name": "sized"} | entries(what, count, item.get("apiVersion", "v1"))})
        assert answer.refused_by_policy == refused, answer
        assert refused or answer.status == 201, answer
        assert not refused or f"at most {MOST[what]} entries in metadata.{what}" in answer.message


async def test_what_was_too_large_before_may_shrink_and_stay(asker: Asker, admin: Client) -> None:
    """An upgrade must not keep the pods of before from being changed."""
    large = pod(metadata={"name": "large"} | entries("labels", 200), schedulerName="nobody")
    path = f"{PODS}/large"
    async with policies_warn(admin, asker, large):
        await admin.create(PODS, large)
    try:
        for labels, refused in (({"x0": None}, False), ({"x0": "1"}, False), ({"more": "1"}, True)):
            answer = await asker.ask(USER, "PATCH", path, {"metadata": {"labels": labels}})
            assert answer.refused_by_policy == refused, answer
    finally:
        await admin.delete(path, grace_s=0)


@asynccontextmanager
async def policies_warn(admin: Client, asker: Asker, refused: Json) -> AsyncIterator[None]:
    """All of Coda's policies only warn in the block, as an installation beside running pods begins. `refused`: a pod
    that shows which is in force, because the API server takes changes of policies over after a while."""
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    names = [item["metadata"]["name"] for item in (await admin.list_pages(bindings, OURS))["items"]]
    assert len(names) == 11

    async def act(actions: list[str]) -> None:
        for name in names:
            await admin.patch(f"{bindings}/{name}", {"spec": {"validationActions": actions}})
        async with asyncio.timeout(PATIENCE_S):
            while (await asker.ask(USER, "POST", PODS, refused)).refused_by_policy != (actions == ["Deny"]):
                await asyncio.sleep(0.2)  # only the next answer tells

    await act(["Warn", "Audit"])
    try:
        yield
    finally:
        await act(["Deny"])


async def test_an_owners_name_has_a_limit(asker: Asker) -> None:
    """The API server checks only that there is one."""
    owner_of = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * 254, "uid": "1"}
    answer = await asker.ask(USER, "POST", PODS, pod(metadata={"ownerReferences": [owner_of]}))
    assert answer.refused_by_policy, answer


def forged_rank(job: Json, node: str, *, rank: int, attempt: int = 1, **more: Any) -> Json:
    """A pod as the operator makes it for a rank, made by a user. It asks for nothing, so no quota is used."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    labels = {LABEL_JOB: name, LABEL_JOB_UID: uid, LABEL_ATTEMPT: str(attempt), LABEL_RANK: str(rank)}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    plan = (job["status"].get("placement") or {}).get("planId", "")
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid, "controller": True}
    metadata = {"name": f"{name}-{attempt}-{rank}", "ownerReferences": [owner]} | more.pop("metadata", {})
    spec: Json = {"schedulerName": SCHEDULER, "affinity": {"nodeAffinity": required}} | more
    return pod(labels=labels, notes={ANNOTATION_PLAN: plan}, metadata=metadata, **spec)


def forgeries(own: Json, foreign: Json) -> list[Json]:
    """Ranks of the user's own running job and of somebody else's, on every node, in the ways that finding C3 names."""
    gated: dict[str, Any] = {"schedulingGates": [{"name": "example.com/never"}]}
    found = []
    for number in range(4):
        node = f"node-{number:04d}"
        found += [
            forged_rank(own, node, rank=1 + number, **gated),  # a rank that the job does not have
            forged_rank(own, node, rank=0, attempt=2 + number, **gated),  # a rank of a later attempt
            forged_rank(own, node, rank=10 + number),  # kube-scheduler binds it
            forged_rank(own, node, rank=0, metadata={"name": f"any-{number}", "ownerReferences": []}, **gated),
            forged_rank(foreign, node, rank=1, metadata={"name": f"theirs-{number}"}, **gated),
            forged_rank(foreign, node, rank=0, metadata={"name": f"like-{number}", "ownerReferences": []}, **gated),
        ]
    return found


def told(job: Json) -> Json:
    """What a job says of itself, but for since when it has waited for the same reason."""
    status = {name: job["status"].get(name) for name in ("phase", "attempt", "placement", "reason", "message")}
    return status | {"pending": (job["status"].get("pending") or {}) | {"since": None}}


def says(said: Json, job: Json) -> bool:
    return told(job) == said


@pytest.mark.parametrize("action", ["Deny", "Warn"])
async def test_forged_ranks_change_no_plan_reason_or_launch(
    cluster: LocalCluster, user: Client, admin: Client, asker: Asker, action: str
) -> None:
    """Finding C3: one running job and three pods that asked for nothing withheld all nodes from everybody."""
    own = await submit(user, job_json(f"own-{action.lower()}", gpus=8, run_s=None))
    victim = await submit(user, job_json(f"runs-{action.lower()}", gpus=8, run_s=None))
    waits = await submit(user, job_json(f"waits-{action.lower()}", replicas=4, gpus=8))
    for job in (own, victim):
        await wait_for_phase(user, job, "Running")
    await wait_for_pending(user, waits, "InsufficientGPUs")
    before = {job: told(await user.get(job_path(job))) for job in (victim, waits)}
    pods = forgeries(await user.get(job_path(own)), await user.get(job_path(victim)))
    async with AsyncExitStack() as stack:
        if action == "Warn":
            await stack.enter_async_context(policies_warn(admin, asker, pods[0]))
        made: list[Json] = []
        for item in pods:
            with pytest.raises(Rejected, match="coda-") if action == "Deny" else nullcontext():
                made.append(await user.create(PODS, item))
        starts = await submit(user, job_json(f"starts-{action.lower()}", replicas=2, gpus=8, run_s=0.2))
        await wait_for_phase(user, starts, "Succeeded")
        assert (await user.get(job_path(starts)))["status"]["attempt"] == 1
        for job, said in before.items():
            await wait_for(user, job_path(job), partial(says, said))
        for item in made:
            if "own-" in item["metadata"]["labels"][LABEL_JOB]:  # whose next attempt may have pods of these names
                await wait_gone(user, f"{PODS}/{item['metadata']['name']}", uid=item["metadata"]["uid"])
    for item in pods:
        await user.delete(f"{PODS}/{item['metadata']['name']}", grace_s=0)
