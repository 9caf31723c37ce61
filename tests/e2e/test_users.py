"""Who asked for a job, as the API server stamps it, and what the planner makes of it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Account, Answer, Asker, asking
from tests.e2e.cpu_jobs import (
    ANN,
    BATCH,
    BOB,
    DEPLOYMENTS,
    JOBS,
    PODS,
    all_pods,
    batch_job,
    deployment,
    name_of,
    opt_in,
    pod_json,
    wait_until_bound,
    wait_until_empty,
)
from tests.e2e.jobs import PATIENCE_S, job_json, jobs_path, pods_of, wait_for, wait_for_phase, wait_gone
from tests.e2e.policy_cases import (
    BATCH_JOBS,
    CRON_JOBS,
    DAEMON_SETS,
    MASTER,
    REPLICA_SETS,
    WIDE_USER,
    owner,
)
from tests.e2e.policy_cases import DEPLOYMENTS as DEPLOYMENT_CONTROLLER
from tests.e2e.scheduling import QUICK_LEASE

pytestmark = pytest.mark.e2e

ARRAYS = {"CODA_SCHEDULING_POLICY": "coda"} | QUICK_LEASE
SPEC = ClusterSpec(nodes="2x8x48", racks=1, extenders=1, environ_by_part={"extender-0": ARRAYS})
APPS = f"/apis/apps/v1/namespaces/{BATCH}"
ELSEWHERE = "/apis/apps/v1/namespaces/default/deployments"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
CONTROLLERS_OF_ALL = Account(user="system:kube-controller-manager", groups=MASTER.groups)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace(cluster: LocalCluster) -> None:
    async with cluster.client("admin") as admin:
        await opt_in(admin)


@pytest.fixture
async def asker(cluster: LocalCluster, namespace: None, admin: Client) -> AsyncIterator[Asker]:
    """Asks in anybody's name; the namespace is empty afterwards."""
    async with asking(cluster) as one:
        yield one
    for path in (jobs_path(BATCH), DEPLOYMENTS, JOBS, PODS):
        for item in (await admin.list_pages(path))["items"]:
            await admin.delete(f"{path}/{name_of(item)}")
    await wait_until_empty(admin)
    for item in (await admin.list_pages(jobs_path(BATCH)))["items"]:  # the operator lets them go, in its time
        await wait_gone(admin, f"{jobs_path(BATCH)}/{name_of(item)}")


def cron_job() -> Json:
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": batch_job("x", pods=1, cpu="1")["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron"}, "spec": spec}


def replica_set(**more: Any) -> Json:
    item = deployment("set", pods=1, cpu="1")
    return item | {"kind": "ReplicaSet", "metadata": {"name": "set"} | more}


def stateful_set() -> Json:
    item = deployment("state", pods=1, cpu="1")
    return item | {"kind": "StatefulSet", "spec": item["spec"] | {"serviceName": "state"}}


def replication_controller() -> Json:
    item = deployment("old", pods=1, cpu="1")
    spec = {"replicas": 1, "selector": {"app": "old"}, "template": item["spec"]["template"]}
    return {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "old"}, "spec": spec}


def training_job() -> Json:
    return job_json("train", namespace=BATCH) | {"apiVersion": "coda.scheduler/v1alpha1", "kind": "TrainingJob"}


KINDS: dict[str, tuple[str, Json]] = {
    "Pod": (PODS, pod_json("bare")),
    "Job": (JOBS, batch_job("job", pods=1, cpu="1")),
    "CronJob": (f"/apis/batch/v1/namespaces/{BATCH}/cronjobs", cron_job()),
    "Deployment": (DEPLOYMENTS, deployment("web", pods=1, cpu="1")),
    "ReplicaSet": (f"{APPS}/replicasets", replica_set()),
    "StatefulSet": (f"{APPS}/statefulsets", stateful_set()),
    "ReplicationController": (f"/api/v1/namespaces/{BATCH}/replicationcontrollers", replication_controller()),
    "TrainingJob": (jobs_path(BATCH), training_job()),
}


def places(item: Json) -> list[Json]:
    """The metadata that carry the stamp: of the object, and of the templates in it."""
    found, spec = [item["metadata"]], item.get("spec") or {}
    for name in ("template", "jobTemplate"):
        if name in spec and item["kind"] != "TrainingJob":
            found += places({"kind": "", "metadata": spec[name].setdefault("metadata", {}), "spec": spec[name]["spec"]})
    return found


def stamps(item: Json) -> set[str | None]:
    return {(place.get("annotations") or {}).get(ANNOTATION_USER) for place in places(item)}


def stamped(item: Json, user: str) -> Json:
    """The object as if it had this stamp everywhere."""
    forged = copy.deepcopy(item)
    for place in places(forged):
        place["annotations"] = (place.get("annotations") or {}) | {ANNOTATION_USER: user}
    return forged


@pytest.mark.parametrize("kind", KINDS)
async def test_who_asks_is_stamped_on_the_object_and_into_its_template(asker: Asker, kind: str) -> None:
    path, item = KINDS[kind]
    for body in (item, stamped(item, "forged")):
        answer = await asker.ask(ANN, "POST", path, body)
        assert answer.status == 201, answer
        assert stamps(answer.item) == {ANN.user}


OF_DEPLOYMENT = owner("Deployment", "apps/v1")


@pytest.mark.parametrize(
    ("account", "kind", "metadata", "expected"),
    [
        pytest.param(DEPLOYMENT_CONTROLLER, "ReplicaSet", OF_DEPLOYMENT, BOB.user, id="of a deployment"),
        pytest.param(REPLICA_SETS, "Pod", owner("ReplicaSet", "apps/v1"), BOB.user, id="of a replica set"),
        pytest.param(CRON_JOBS, "Job", owner("CronJob", "batch/v1"), BOB.user, id="of a cron job"),
        pytest.param(BATCH_JOBS, "Pod", owner("Job", "batch/v1"), BOB.user, id="of a Job"),
        pytest.param(CONTROLLERS_OF_ALL, "Pod", owner("Job", "batch/v1"), BOB.user, id="controllers as one user"),
        pytest.param(MASTER, "Pod", {}, BOB.user, id="a restore"),
        pytest.param(REPLICA_SETS, "Pod", {}, REPLICA_SETS.user, id="of nobody"),
        pytest.param(WIDE_USER, "ReplicaSet", OF_DEPLOYMENT, WIDE_USER.user, id="as if of a deployment"),
        pytest.param(WIDE_USER, "Job", owner("CronJob", "batch/v1"), WIDE_USER.user, id="a cron job's by hand"),
        pytest.param(WIDE_USER, "Pod", owner("Job", "batch.volcano.sh/v1alpha1"), WIDE_USER.user, id="of Volcano"),
        pytest.param(
            WIDE_USER, "Pod", owner("StatefulSet", "apps.kruise.io/v1beta1"), WIDE_USER.user, id="of OpenKruise"
        ),
        pytest.param(
            BATCH_JOBS, "Pod", owner("Job", "batch.volcano.sh/v1alpha1"), BATCH_JOBS.user, id="a Job of another group"
        ),
        pytest.param(
            DEPLOYMENT_CONTROLLER, "Job", owner("CronJob", "batch/v1"), DEPLOYMENT_CONTROLLER.user, id="other"
        ),
    ],
)
async def test_a_controllers_object_keeps_the_stamp_of_its_template(
    asker: Asker, account: Account, kind: str, metadata: Json, expected: str
) -> None:
    path, item = KINDS[kind]
    body = stamped(item | {"metadata": item["metadata"] | metadata}, BOB.user)
    answer = await asker.ask(account, "POST", path, body)
    assert answer.status == 201, answer
    assert stamps(answer.item) == {expected}


async def test_a_uid_alone_makes_no_owner(asker: Asker) -> None:
    """A pod may say that another group's Job made it. It is not one of Kubernetes' Jobs, though the uid is the same.

    The garbage collector knows no such group, and so leaves the pod."""
    body = pod_json("waits", cpu="1000")
    body["metadata"] |= owner("Job", "batch.volcano.sh/v1alpha1")
    assert (await asker.ask(WIDE_USER, "POST", PODS, body, for_real=True)).status == 201
    answer = await asker.ask(WIDE_USER, "PATCH", f"{PODS}/waits", {"metadata": owner("Job", "batch/v1")})
    assert answer.refused_by_policy, answer
    assert "leave out" in answer.message


async def test_a_template_without_a_stamp_gives_its_pods_none(asker: Asker) -> None:
    """It is older than the stamps: nobody knows who asked, so the namespace counts."""
    body = pod_json("old") | {"metadata": {"name": "old"} | owner("ReplicaSet", "apps/v1")}
    assert stamps((await asker.ask(REPLICA_SETS, "POST", PODS, body)).item) == {None}


@pytest.mark.parametrize(
    ("user", "stamp"),
    [("Zoë Ω <z@example.com>", "Zoë Ω <z@example.com>"), ("x" * 300, "x" * 256), ("a\u202eb", "a\u202eb")],
    ids=["unicode", "long", "right to left"],
)
async def test_any_name_is_stamped(asker: Asker, user: str, stamp: str) -> None:
    answer = await asker.ask(Account(user=user, groups=WIDE_USER.groups), "POST", PODS, pod_json("bare"))
    assert answer.status == 201, answer
    assert stamps(answer.item) == {stamp}


FORGED = {"annotations": {ANNOTATION_USER: "forged"}}
REMOVED = {"annotations": {ANNOTATION_USER: None}}


@pytest.mark.parametrize("metadata", [{"labels": {"a": "b"}}, FORGED, REMOVED], ids=["touched", "forged", "removed"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Pod"])
async def test_who_asked_first_stays(asker: Asker, admin: Client, kind: str, metadata: Json) -> None:
    path, item = KINDS[kind]
    assert (await asker.ask(ANN, "POST", path, item, for_real=True)).status == 201
    change: Json = {"metadata": metadata}
    if kind in ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"):
        change["spec"] = {"template": {"metadata": metadata}}
    if kind == "Job" and "annotations" in metadata:  # else its template cannot change
        change["spec"] = {"template": {"metadata": metadata}}
    if kind == "CronJob":
        change["spec"] = {"jobTemplate": {"metadata": metadata, "spec": {"template": {"metadata": metadata}}}}
    answer = await asker.ask(BOB, "PATCH", f"{path}/{name_of(item)}", change)
    await admin.delete(f"{path}/{name_of(item)}")
    assert answer.status == 200, answer
    assert stamps(answer.item) == {ANN.user}


async def test_what_is_older_than_the_stamps_gets_none_later(asker: Asker, admin: Client) -> None:
    """A Deployment's template that changes would restart its pods; and who changes it is not who asked."""
    namespace = f"/api/v1/namespaces/{BATCH}"
    label: Json = {"metadata": {"labels": {"coda.scheduler/opt-in": None}}}
    await admin.patch(namespace, label)
    path, item = KINDS["Deployment"]
    await until_stamped(asker, path, item, None)
    await asker.ask(ANN, "POST", path, item, for_real=True)
    label["metadata"]["labels"]["coda.scheduler/opt-in"] = "true"
    await admin.patch(namespace, label)
    await until_stamped(asker, PODS, pod_json("probe"), ANN.user)
    answer = await asker.ask(BOB, "PATCH", f"{path}/web", {"spec": {"template": {"metadata": FORGED}}})
    assert stamps(answer.item) == {None}, answer


async def until_stamped(asker: Asker, path: str, item: Json, expected: str | None) -> None:
    """The API server learns of a label within a moment."""
    async with asyncio.timeout(PATIENCE_S):
        while stamps((await asker.ask(ANN, "POST", path, item)).item) != {expected}:
            await asyncio.sleep(0.05)  # only the next answer tells


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        pytest.param(stamped(deployment("web", pods=1, cpu="1"), "forged"), True, id="a forged one"),
        pytest.param(stamped(deployment("web", pods=1, cpu="1"), WIDE_USER.user), False, id="one's own"),
        pytest.param(deployment("web", pods=1, cpu="1"), False, id="none"),
    ],
)
async def test_a_stamp_cannot_be_prepared_where_nobody_opted_in(asker: Asker, body: Json, refused: bool) -> None:
    """The namespace may opt in later, and its controllers' pods keep the stamps of their templates."""
    metadata = body["metadata"] | {"namespace": "default"}
    answer = await asker.ask(WIDE_USER, "POST", ELSEWHERE, body | {"metadata": metadata})
    assert answer.refused_by_policy == refused, answer
    assert not refused or "leave it out" in answer.message
    if not refused:
        assert answer.status == 201


@pytest.mark.parametrize(("stamp", "refused"), [(None, False), ("bob", False), ("forged", True)])
@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "Job", "Pod"])
async def test_whole_objects_are_written_again_after_the_namespace_opted_out(
    asker: Asker, admin: Client, kind: str, stamp: str | None, refused: bool
) -> None:
    """`kubectl replace` and controllers of the user's own send the object as their files have it, without the stamp."""
    path, item = KINDS[kind]
    path = path.replace(f"/namespaces/{BATCH}/", "/namespaces/default/")
    item = item | {"metadata": item["metadata"] | {"namespace": "default"}}
    made = await asker.ask(MASTER, "POST", path, stamped(item, BOB.user), for_real=True)
    assert made.status == 201, made
    change: Json = {"metadata": {"annotations": {ANNOTATION_USER: stamp}}}
    if kind not in ("Job", "Pod"):
        change["spec"] = {"template": {"metadata": change["metadata"]}}
    answer = await asker.ask(WIDE_USER, "PATCH", f"{path}/{name_of(item)}", change)
    await admin.delete(f"{path}/{name_of(item)}", grace_s=0)
    assert answer.refused_by_policy == refused, answer
    assert answer.status == 200 or "who asked first" in answer.message


async def test_a_training_job_is_written_again_without_its_stamp_where_nobody_is_stamped(
    asker: Asker, admin: Client
) -> None:
    """Where CPU jobs were switched off the mutating policies are gone, and nothing puts the stamp back."""
    path, item = KINDS["TrainingJob"]
    assert (await asker.ask(ANN, "POST", path, item, for_real=True)).status == 201
    binding = await admin.get(f"{MUTATING}/coda-training-job-users")
    await admin.delete(f"{MUTATING}/coda-training-job-users")
    await until_stamped(asker, path, item | {"metadata": {"name": "probe"}}, None)
    taken_off = await asker.ask(BOB, "PATCH", f"{path}/train", {"metadata": REMOVED})
    forged = await asker.ask(BOB, "PATCH", f"{path}/train", {"metadata": FORGED})
    del binding["metadata"]["resourceVersion"], binding["metadata"]["uid"]
    await admin.create(MUTATING, binding)
    await until_stamped(asker, path, item | {"metadata": {"name": "probe"}}, ANN.user)
    await admin.delete(f"{path}/train")
    assert taken_off.status == 200, taken_off
    assert stamps(taken_off.item) == {None}
    assert forged.refused_by_policy, forged


async def test_pods_keep_their_stamp_after_the_namespace_opted_out(asker: Asker) -> None:
    """The templates in it have stamps by then; their controllers must go on."""
    body = stamped(pod_json("p") | {"metadata": {"name": "p"} | owner("ReplicaSet", "apps/v1")}, ANN.user)
    path = "/api/v1/namespaces/default/pods"
    assert (await asker.ask(REPLICA_SETS, "POST", path, body)).status == 201
    assert (await asker.ask(DAEMON_SETS, "POST", path, body)).refused_by_policy


async def test_the_ranks_of_a_training_job_carry_its_user(cluster: LocalCluster, user: Client) -> None:
    job = await submit_as_user(user)
    found = await wait_for_phase(user, job, "Running")
    ranks = await pods_of(user, job)
    assert [stamps(item) for item in (found, *ranks)] == [{"local-user"}] * 3
    await user.delete(job_path(job))


async def submit_as_user(user: Client) -> str:
    await user.create(jobs_path(), job_json("stamped", replicas=2, run_s=None))
    return "default/stamped"


async def test_shares_are_fair_between_users_of_one_namespace(asker: Asker, admin: Client) -> None:
    """Ann's eight pods came first. Four of them run; as soon as one goes, it is Bob's turn."""
    for number in range(8):
        await create(asker, ANN, pod_json(f"ann-{number}", cpu="8"))
    running = [pod for pod in await wait_until_bound(admin, 4) if pod["spec"].get("nodeName")]
    await create(asker, BOB, pod_json("bob", cpu="8"))
    await admin.delete(f"{PODS}/{name_of(running[0])}")
    await wait_for(admin, f"{PODS}/bob", lambda pod: bool(pod["spec"].get("nodeName")))
    assert sum(bool(pod["spec"].get("nodeName")) for pod in await all_pods(admin)) <= 5


async def create(asker: Asker, account: Account, pod: Json) -> Answer:
    answer = await asker.ask(account, "POST", PODS, pod, for_real=True)
    assert answer.status == 201, answer
    return answer
