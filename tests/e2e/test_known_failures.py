"""The ways in which other gang schedulers fail, each on the real control plane, under the invariant checker."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, GPU, KIND
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import (
    NAMESPACE,
    events_of,
    job_json,
    pods_of,
    submit,
    wait_for,
    wait_for_pending,
    wait_for_phase,
    wait_gone,
)
from tests.e2e.scheduling import leader_of, schedule_attempts

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="8x8x48", racks=2)
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def foreign_pod(name: str, *, gpus: int = 0, node: str | None = None, labels: dict[str, str] | None = None) -> Json:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    spec: Json = {
        "containers": [{"name": "main", "image": "other:1", "resources": resources}],
        "terminationGracePeriodSeconds": 0,
    }
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


async def test_two_gangs_that_each_need_every_node_do_not_block_each_other(user: Client) -> None:
    jobs = [await submit(user, job_json(f"whole-{number}", replicas=8, gpus=8, run_s=0.5)) for number in range(4)]
    done = [await wait_for_phase(user, job, "Succeeded", within_s=60) for job in jobs]
    assert all(job["status"]["attempt"] == 1 for job in done)


async def test_nine_waiting_jobs_do_not_starve_a_runnable_one(user: Client) -> None:
    keeper = await submit(user, job_json("keeper", replicas=7, gpus=8, run_s=None))
    await wait_for_phase(user, keeper, "Running")
    waiting = [await submit(user, job_json(f"waits-{number}", replicas=2, gpus=8, run_s=0.1)) for number in range(9)]
    for job in waiting:
        await wait_for_pending(user, job, "InsufficientGPUs")
    small = await submit(user, job_json("small", gpus=4, run_s=0.1))
    await wait_for_phase(user, small, "Succeeded")
    await wait_for(  # the small one is named while it runs
        user, job_path(waiting[0]), lambda job: job["status"]["pending"]["holders"] == [keeper]
    )


async def test_an_unschedulable_head_of_the_queue_blocks_nobody(user: Client, admin: Client) -> None:
    await admin.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        },
    )
    head = job_json("head", gpus=16)
    head["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    first = await submit(user, head)
    await wait_for_pending(user, first, "NeverFits")
    await wait_for_phase(user, await submit(user, job_json("behind", run_s=0.1)), "Succeeded")


async def test_no_rank_is_evicted_for_an_urgent_pod(user: Client, admin: Client) -> None:
    await admin.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "above"}, "value": 10**6},
    )
    keeper = await submit(user, job_json("keeper", replicas=7, gpus=8, run_s=None))
    await wait_for_phase(user, keeper, "Running")
    other = foreign_pod("other", gpus=8)
    other["spec"]["schedulerName"] = "default-scheduler"
    await user.create(PODS, other)
    await wait_for(user, f"{PODS}/other", lambda pod: pod["spec"].get("nodeName"))
    for number in (0, 1):
        urgent = foreign_pod(f"urgent-{number}", gpus=8)
        urgent["spec"] |= {"schedulerName": "default-scheduler", "priorityClassName": "above"}
        await user.create(PODS, urgent)
        if number == 0:  # the foreign pod makes place
            await wait_for(user, f"{PODS}/urgent-0", lambda pod: pod["spec"].get("nodeName"))
    await wait_for(user, f"{PODS}/urgent-1", _was_refused_a_preemption)
    job = await user.get(job_path(keeper))
    assert (job["status"]["phase"], job["status"]["attempt"]) == ("Running", 1)
    for number in (0, 1):
        await user.delete(f"{PODS}/urgent-{number}")


def _was_refused_a_preemption(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any("preemption" in condition.get("message", "") for condition in conditions)


async def test_a_gang_whose_last_pod_never_comes_holds_nothing(user: Client, admin: Client) -> None:
    """An admission policy refuses rank 3's pod, which no dry run of rank 0 can foresee."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-rank-3"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "validations": [
                {
                    "expression": "!has(object.metadata.labels) ||"
                    " object.metadata.labels[?'coda.scheduler/job'].orValue('') != 'incomplete' ||"
                    " object.metadata.labels[?'coda.scheduler/rank'].orValue('') != '3'",
                    "message": "rank 3 is not welcome",
                }
            ],
        },
    }
    policies = "/apis/admissionregistration.k8s.io/v1"
    await admin.create(f"{policies}/validatingadmissionpolicies", policy)
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-rank-3"},
        "spec": {"policyName": "no-rank-3", "validationActions": ["Deny"]},
    }
    await admin.create(f"{policies}/validatingadmissionpolicybindings", binding)
    await wait_until_enforced(admin)
    try:
        gang = await submit(user, job_json("incomplete", replicas=4, gpus=8, run_s=0.1))
        rolled_back = await wait_for(
            user, job_path(gang), lambda job: (job.get("status") or {}).get("reason") == "PodRefused"
        )
        assert "rank 3 is not welcome" in rolled_back["status"]["message"]
        others = [await submit(user, job_json(f"other-{number}", replicas=8, gpus=8, run_s=0.1)) for number in (1, 2)]
        for other in others:
            await wait_for_phase(user, other, "Succeeded")
    finally:
        await admin.delete(f"{policies}/validatingadmissionpolicybindings/no-rank-3")
        await admin.delete(f"{policies}/validatingadmissionpolicies/no-rank-3")
    done = await wait_for_phase(user, gang, "Succeeded", within_s=90)
    assert done["status"]["failures"] == 0


async def wait_until_enforced(admin: Client) -> None:
    """Admission policies take a moment to be compiled everywhere: ask with dry runs until one is refused."""
    probe = foreign_pod("probe", labels={"coda.scheduler/job": "incomplete", "coda.scheduler/rank": "3"})
    for _ in range(100):
        try:
            await admin.create(PODS, probe, {"dryRun": "All"})
        except Exception as error:
            if "not welcome" in str(error):
                return
            raise
        await asyncio.sleep(0.1)
    raise AssertionError("the policy is not enforced")


async def test_a_refused_pod_is_not_retried_in_a_hot_loop(cluster: LocalCluster, user: Client, admin: Client) -> None:
    """A rank of a job that nobody planned is refused for a constant reason. No operator is there to delete it."""
    job = await submit(user, job_json("unplanned", gpus=16))
    uid = (await wait_for_pending(user, job, "NeverFits"))["metadata"]["uid"]
    await cluster.kill("operator-0")
    labels = {"coda.scheduler/job": "unplanned", "coda.scheduler/job-uid": uid, "coda.scheduler/attempt": "1"}
    pod = foreign_pod("unplanned-1-0", gpus=1, labels=labels | {"coda.scheduler/rank": "0"})
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": "unplanned", "uid": uid, "controller": True}
    pod["metadata"]["ownerReferences"] = [reference]
    pod["spec"]["schedulerName"] = "coda"
    path = f"{PODS}/unplanned-1-0"
    created = await admin.create(PODS, pod)
    try:
        await wait_for(
            admin,
            path,
            lambda item: any(c.get("reason") == "Unschedulable" for c in item["status"].get("conditions") or ()),
        )
        before = await schedule_attempts(cluster)
        await asyncio.sleep(5)  # a rate is measured over time
        assert await schedule_attempts(cluster) - before <= 5
    finally:
        await admin.delete(path, uid=created["metadata"]["uid"], grace_s=0)
        await wait_gone(admin, path)
        await cluster.start("operator-0")


async def test_a_pod_deleted_and_recreated_under_its_old_name_is_not_taken_for_the_rank(
    user: Client, admin: Client
) -> None:
    job = await submit(user, job_json("replaced", replicas=2, gpus=8, run_s=4.0))
    await wait_for_phase(user, job, "Running")
    await admin.delete(f"{PODS}/replaced-1-0", grace_s=0)
    await wait_gone(admin, f"{PODS}/replaced-1-0")
    await admin.create(PODS, foreign_pod("replaced-1-0", node="node-0000"))
    done = await wait_for_phase(user, job, "Succeeded", within_s=60)
    assert (done["status"]["attempt"], done["status"]["failures"]) == (2, 0)
    assert await admin.get(f"{PODS}/replaced-1-0")
    await admin.delete(f"{PODS}/replaced-1-0", grace_s=0)


async def launched_without_scheduler(cluster: LocalCluster, user: Client, job: Json) -> tuple[str, Json]:
    """A job whose pods exist and are pinned, while kube-scheduler is away."""
    await cluster.kill("kube-scheduler")
    name = await submit(user, job)
    return name, await wait_for_phase(user, name, "Launched")


async def test_a_node_that_vanishes_between_plan_and_bind(cluster: LocalCluster, user: Client, admin: Client) -> None:
    job, launched = await launched_without_scheduler(
        cluster, user, job_json("vanishing", replicas=2, gpus=8, run_s=0.2)
    )
    victim = launched["status"]["placement"]["nodes"][0]
    node = await admin.get(f"/api/v1/nodes/{victim}")
    await admin.delete(f"/api/v1/nodes/{victim}")
    await cluster.start("kube-scheduler")
    try:
        done = await wait_for_phase(user, job, "Succeeded", within_s=60)
    finally:
        for field in ("resourceVersion", "uid", "creationTimestamp"):
            node["metadata"].pop(field, None)
        await admin.create("/api/v1/nodes", node)
    assert done["status"]["attempt"] == 2
    assert victim not in done["status"]["placement"]["nodes"]


async def test_a_foreign_pod_that_takes_the_planned_place_first(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job, launched = await launched_without_scheduler(
        cluster, user, job_json("displaced", replicas=2, gpus=8, run_s=0.2)
    )
    taken = launched["status"]["placement"]["nodes"][1]
    await admin.create(PODS, foreign_pod("squatter", gpus=8, node=taken))
    await cluster.start("kube-scheduler")
    done = await wait_for_phase(user, job, "Succeeded", within_s=60)
    assert done["status"]["failures"] == 0
    assert taken not in done["status"]["placement"]["nodes"]
    await admin.delete(f"{PODS}/squatter", grace_s=0)
    await wait_gone(admin, f"{PODS}/squatter")


async def test_one_rank_that_can_never_pull_its_image(user: Client) -> None:
    job = await submit(
        user,
        job_json(
            "no-image",
            replicas=2,
            gpus=8,
            run_s=60,
            simulated={"image-pull.rank-1": "fail"},
            spec={"startDeadlineSeconds": 4, "retries": 0},
        ),
    )
    starting = await wait_for_phase(user, job, "Starting")
    told = await wait_for(user, job_path(job), lambda item: "rank 1" in item["status"].get("message", ""))
    assert "Image" in told["status"]["reason"] or "Image" in starting["status"]["reason"]
    failed = await wait_for_phase(user, job, "Failed")
    assert "rank 1" in failed["status"]["message"]
    assert "did not start within 4 s" in failed["status"]["message"]
    assert "Image" in failed["status"]["message"]
    await wait_for_phase(user, await submit(user, job_json("after", replicas=8, gpus=8, run_s=0.1)), "Succeeded")


async def test_a_quota_that_fits_one_pod_of_the_gang_but_not_all(user: Client, admin: Client) -> None:
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    quota: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {f"requests.{GPU}": "8"}},
    }
    await admin.create(quotas, quota)
    try:
        await wait_for(admin, f"{quotas}/tight", lambda item: bool((item.get("status") or {}).get("used")))
        job = await submit(user, job_json("over-quota", replicas=2, gpus=8, run_s=0.1))
        told = await wait_for_pending(user, job, "QuotaExceeded")
        assert "tight" in told["status"]["pending"]["message"]
        assert await pods_of(user, job) == []
        await admin.patch(f"{quotas}/tight", {"spec": {"hard": {f"requests.{GPU}": "16"}}})
        done = await wait_for_phase(user, job, "Succeeded")
        assert done["status"]["attempt"] == 1
    finally:
        await admin.delete(f"{quotas}/tight")


async def test_a_leader_paused_past_its_lease_and_resumed_does_no_harm(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    old = await leader_of(admin)
    await cluster.kill(old, signal.SIGSTOP)
    try:
        paused = [
            await submit(user, job_json(f"paused-{number}", replicas=4, gpus=8, run_s=0.5)) for number in range(4)
        ]
        for job in paused:
            await wait_for_phase(user, job, "Succeeded", within_s=60)
        assert await leader_of(admin) != old
    finally:
        await cluster.kill(old, signal.SIGCONT)
    resumed = [await submit(user, job_json(f"resumed-{number}", replicas=4, gpus=8, run_s=0.5)) for number in range(4)]
    for job in resumed:
        await wait_for_phase(user, job, "Succeeded", within_s=60)


async def test_a_rank_evicted_by_hand_restarts_the_gang_and_is_not_the_jobs_fault(user: Client, admin: Client) -> None:
    job = await submit(user, job_json("evicted", replicas=2, gpus=8, run_s=3.0))
    await wait_for_phase(user, job, "Running")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted-1-1"}}
    await admin.create(f"{PODS}/evicted-1-1/eviction", eviction)
    done = await wait_for_phase(user, job, "Succeeded", within_s=60)
    assert (done["status"]["attempt"], done["status"]["failures"], done["status"]["disruptions"]) == (2, 0, 1)
    assert "PodDeleted" in await events_of(user, job)
