"""The tuning chain on a real API server: a test plays the agent, wishes in `status.tuning`, and sees what follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from coda.allocator import SearchOutcome, SearchResult, Tuning, TuningPhase
from coda.allocator.curve import CurvePoint
from coda.allocator.pauses import CpuPauses
from coda.errors import Conflict
from coda.model.job import Wish
from coda_kube.api.client import STRATEGIC_MERGE, Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT
from coda_kube.objects.tuning_status import tuning_json
from coda_kube.objects.write import job_path, status_patch
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import PATIENCE_S, job_json, pods_of, submit, wait_for, wait_for_pending, wait_for_phase
from tests.e2e.scheduling import QUICK_LEASE, leader_of

pytestmark = pytest.mark.e2e

DEADLINE_S = 10.0  # of growth; a kubelet of these takes 0.3 s, and on a busy machine some seconds
GRANTING = QUICK_LEASE | {"CODA_RESIZE_DEADLINE_S": str(DEADLINE_S)}
PROFILES = "/apis/coda.scheduler/v1alpha1/nodeprofiles"
SPEC = ClusterSpec(
    nodes="4x4x17",  # a core of each is left to daemons
    racks=2,
    environ_by_part=dict.fromkeys(("extender-0", "extender-1"), GRANTING)
    | {"operator-0": {"CODA_FAILURE_BACKOFF_S": "0.5"}},
)


def auto_job(name: str, **more: Any) -> Json:
    """4 cores per GPU to begin with; Guaranteed, so that a static CPU manager minds."""
    spec: Json = {"cpusPerReplica": "auto"} | more.pop("spec", {})
    job = job_json(name, run_s=None, spec=spec, **more)
    amounts = {"memory": "1Gi"}
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return job


async def run(user: Client, job: Json) -> str:
    """Submit the job; its id once it runs."""
    name = await submit(user, job)
    await wait_for_phase(user, name, "Running", within_s=60)
    return name


async def tell(cluster: LocalCluster, job: str, tuning: Tuning) -> None:
    """Write `status.tuning` as the agent on the node of rank 0 does."""
    async with cluster.client("agent") as reader:
        item = await reader.get(job_path(job))
    patch = status_patch(job, {"tuning": tuning_json(tuning)}, uid=item["metadata"]["uid"])
    async with cluster.agent_client(item["status"]["placement"]["nodes"][0]) as agent:
        await agent.apply(job_path(job, status=True), patch, manager=AGENT)


async def wish(cluster: LocalCluster, job: str, cores: int, *, sequence: int = 1, attempt: int = 1) -> None:
    now_s = time.time()
    wanted = Wish(sequence=sequence, cores=cores, since_s=now_s, deadline_s=now_s + 60)
    await tell(cluster, job, Tuning(attempt=attempt, phase=TuningPhase.WISHING, wish=wanted))


async def ended(user: Client, job: str, *, sequence: int = 1, within_s: float = PATIENCE_S) -> Json:
    """`status.resize` of that wish once it has ended."""

    def has_ended(item: Json) -> bool:
        resize = item["status"].get("resize") or {}
        return bool(resize.get("sequence") == sequence and resize["state"] in ("Done", "Refused"))

    item = await wait_for(user, job_path(job), has_ended, within_s=within_s)
    resize: Json = item["status"]["resize"]
    return resize


async def refused(user: Client, job: str, *, sequence: int = 1) -> Json:
    """The planner's answer to that wish, which is no."""

    def is_refused(item: Json) -> bool:
        grant = (item["status"].get("placement") or {}).get("grant") or {}
        return bool(grant.get("sequence") == sequence and grant["state"] == "Refused")

    item = await wait_for(user, job_path(job), is_refused)
    grant: Json = item["status"]["placement"]["grant"]
    return grant


async def cores_of(user: Client, job: str) -> set[tuple[str, str, str, int]]:
    """Of all ranks: cores by the spec's request and limit, by the runtime, and restarts."""
    found = set()
    for pod in await pods_of(user, job):
        spec, status = pod["spec"]["containers"][0]["resources"], pod["status"]["containerStatuses"][0]
        has = status["resources"]["limits"]["cpu"]
        found.add((spec["requests"]["cpu"], spec["limits"]["cpu"], has, status["restartCount"]))
    return found


async def annotate(admin: Client, node: str, **notes: str | None) -> None:
    """Tell a simulated kubelet how to treat resizes; None: as usual."""
    full = {f"sim.coda.scheduler/{name.replace('_', '-')}": text for name, text in notes.items()}
    await admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": full}})


async def node_of(user: Client, job: str, rank: int) -> str:
    return str((await pods_of(user, job))[rank]["spec"]["nodeName"])


async def test_a_wish_is_granted_resized_on_all_ranks_and_seen_as_done(cluster: LocalCluster, user: Client) -> None:
    job = await run(user, auto_job("grows", replicas=2, gpus=3))
    assert await cores_of(user, job) == {("12", "12", "12", 0)}
    await wish(cluster, job, 14)
    resize = await ended(user, job)
    assert (resize["state"], resize["coresPerReplica"]) == ("Done", 14)
    assert await cores_of(user, job) == {("14", "14", "14", 0)}
    await wish(cluster, job, 3, sequence=2)
    assert (await ended(user, job, sequence=2))["state"] == "Done"
    assert await cores_of(user, job) == {("3", "3", "3", 0)}
    item = await user.get(job_path(job))
    assert (item["status"]["phase"], item["status"]["attempt"], item["status"]["cores"]) == ("Running", 1, 6)


async def test_a_wish_beyond_the_node_is_refused_with_what_could_be_had(cluster: LocalCluster, user: Client) -> None:
    job = await run(user, auto_job("too-much", gpus=2))
    await wish(cluster, job, 18)
    grant = await refused(user, job)
    assert (grant["code"], grant["mostCores"]) == ("InsufficientCPU", 17)
    assert await cores_of(user, job) == {("8", "8", "8", 0)}


async def test_growth_deferred_by_one_node_ends_by_its_deadline_and_is_never_applied_later(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await run(user, auto_job("deferred", replicas=2, gpus=3))
    node = await node_of(user, job, 1)
    await annotate(admin, node, resize="defer")
    await wish(cluster, job, 14)
    await wait_for(
        user,
        job_path(job),
        lambda item: (item["status"].get("resize") or {}).get("state") == "Deferred",
    )
    resize = await ended(user, job, within_s=DEADLINE_S + PATIENCE_S)
    assert (resize["state"], resize["reason"], resize["coresPerReplica"]) == ("Refused", "DeadlineExceeded", 12)
    await annotate(admin, node, resize=None)
    await asyncio.sleep(3)  # a kubelet would have done it by now: nothing is to happen, so nothing can be awaited
    assert await cores_of(user, job) == {("12", "12", "12", 0)}
    await wish(cluster, job, 13, sequence=2)
    assert (await ended(user, job, sequence=2))["state"] == "Done"


async def test_a_static_cpu_manager_refuses_and_training_goes_on(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await run(user, auto_job("static", gpus=2))
    node = await node_of(user, job, 0)
    await annotate(admin, node, cpu_manager="static")
    await wish(cluster, job, 4)
    resize = await ended(user, job)
    await annotate(admin, node, cpu_manager=None)
    assert (resize["state"], resize["reason"]) == ("Refused", "StaticCPUManager")
    assert await cores_of(user, job) == {("8", "8", "8", 0)}
    await wait_for_phase(user, job, "Running")


async def test_what_a_shrink_frees_starts_a_job_that_waits_for_it(cluster: LocalCluster, user: Client) -> None:
    holders = [await run(user, auto_job(f"holds-{number}", gpus=3)) for number in range(4)]
    waiting = await submit(user, job_json("waits", gpus=1, run_s=0.2, spec={"cpusPerReplica": 8}))
    await wait_for_pending(user, waiting, "InsufficientCPU")
    await wish(cluster, holders[0], 6)
    assert (await ended(user, holders[0]))["state"] == "Done"
    done = await wait_for_phase(user, waiting, "Succeeded")
    assert done["status"]["failures"] == 0


async def test_a_planner_killed_between_wish_and_answer_loses_nothing(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await run(user, auto_job("outlives", replicas=2, gpus=3))
    for sequence, cores in enumerate((10, 13, 9), 1):
        leader = await leader_of(admin)
        await wish(cluster, job, cores, sequence=sequence)
        await cluster.kill(leader)
        assert (await ended(user, job, sequence=sequence, within_s=60))["coresPerReplica"] == cores
        await cluster.start(leader)
    assert await cores_of(user, job) == {("9", "9", "9", 0)}


async def test_an_operator_killed_while_ranks_are_resized_finishes_when_it_is_back(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await run(user, auto_job("half-done", replicas=4, gpus=3))
    for node in {await node_of(user, job, rank) for rank in range(4)}:
        await annotate(admin, node, resize_seconds="1")
    await wish(cluster, job, 14)
    await wait_for(user, job_path(job), lambda item: "resize" in item["status"])
    await cluster.kill("operator-0")
    await cluster.start("operator-0")
    assert (await ended(user, job))["state"] == "Done"
    assert await cores_of(user, job) == {("14", "14", "14", 0)}
    for node in {await node_of(user, job, rank) for rank in range(4)}:
        await annotate(admin, node, resize_seconds=None)


async def test_the_next_attempt_and_the_owners_next_job_start_with_what_was_found(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    found = SearchResult(cores=5, outcome=SearchOutcome.FOUND, curve=(CurvePoint(cores=5, share=0.9, windows=1),))
    job = await run(user, auto_job("teaches", gpus=2, spec={"category": "Speech"}))
    await tell(cluster, job, Tuning(attempt=1, phase=TuningPhase.TUNED, found=found))
    (pod,) = await pods_of(user, job)
    await admin.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")

    def runs_again(item: Json) -> bool:
        return bool(item["status"]["attempt"] == 2 and item["status"]["phase"] == "Running")

    await wait_for(user, job_path(job), runs_again)
    assert await cores_of(user, job) == {("5", "5", "5", 0)}
    short = auto_job("short", gpus=2, spec={"category": "Speech"})
    short["spec"]["template"]["metadata"]["annotations"]["sim.coda.scheduler/run-seconds"] = "3"
    second = await run(user, short)
    pauses = CpuPauses(cores=8, since_s=time.time() - 5 * 3600)  # tuned for so long that it showed its pauses
    await tell(cluster, second, Tuning(attempt=1, phase=TuningPhase.TUNED, found=found, pauses=pauses))
    await wait_for_phase(user, second, "Succeeded")
    third = await run(user, auto_job("learns", gpus=1, spec={"category": "Speech"}))
    assert await cores_of(user, third) == {("3", "3", "3", 0)}  # 5 for 2 GPUs


async def test_a_job_on_a_node_without_an_agent_says_so_until_one_begins(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    job = await run(user, auto_job("unsought", gpus=2))

    def tunable(said: str) -> Callable[[Json], bool]:
        return lambda item: (said, "Tunable") in {(one["status"], one["type"]) for one in item["status"]["conditions"]}

    told = (await wait_for(user, job_path(job), tunable("False"), within_s=90))["status"]
    assert told["reason"] == "NoAgent"
    assert "has no agent that looks for its cores" in told["message"]
    node: Json = {"metadata": {"name": (await user.get(job_path(job)))["status"]["placement"]["nodes"][0]}}
    await admin.create(PROFILES, {"apiVersion": "coda.scheduler/v1alpha1", "kind": "NodeProfile"} | node)
    await tell(cluster, job, Tuning(attempt=1, phase=TuningPhase.MEASURING))
    assert (await wait_for(user, job_path(job), tunable("True")))["status"]["reason"] == "Running"


async def test_what_cannot_be_a_tuning_is_refused_by_the_api_server(cluster: LocalCluster, user: Client) -> None:
    job = await run(user, auto_job("nonsense"))
    item = await user.get(job_path(job))
    for tuning, why in (
        ({"attempt": 1, "phase": "Dancing"}, "Unsupported value"),
        ({"attempt": 1, "phase": "Wishing", "wish": {"sequence": 1}}, "Required value"),
        ({"attempt": 1, "phase": "Tuned", "steps": [{"coresPerReplica": 1, "gpuUtilization": 1.5}]}, "less than"),
    ):
        patch = status_patch(job, {"tuning": tuning}, uid=item["metadata"]["uid"])
        async with cluster.agent_client(item["status"]["placement"]["nodes"][0]) as agent:
            with pytest.raises(Rejected, match=why):
                await agent.apply(job_path(job, status=True), patch, manager=AGENT)


@pytest.mark.parametrize(
    ("resources", "status", "why"),
    [
        pytest.param({"limits": {"cpu": "15"}}, 422, "QOS Class may not change", id="limit alone"),
        pytest.param({"requests": {"cpu": "15"}}, 422, "must be less than or equal to", id="request above the limit"),
        pytest.param({"limits": {"nvidia.com/gpu": "2"}}, 422, "only cpu and memory", id="another resource"),
        pytest.param(
            {"requests": {"cpu": "18"}, "limits": {"cpu": "18"}}, 403, "enough allocatable", id="more than the node has"
        ),
    ],
)
async def test_what_the_api_server_refuses_never_comes_to_a_kubelet(
    user: Client, admin: Client, resources: Json, status: int, why: str
) -> None:
    """The part of the resize rules that simulated kubelets leave to it."""
    job = await run(user, auto_job("direct"))
    (pod,) = await pods_of(user, job)
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/resize"
    patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    with pytest.raises(Rejected, match=why) as refusal:
        await admin.patch(path, patch, STRATEGIC_MERGE)
    assert refusal.value.status == status


async def test_only_the_very_pod_that_was_seen_is_resized(user: Client, admin: Client) -> None:
    job = await run(user, auto_job("successor"))
    (pod,) = await pods_of(user, job)
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/resize"
    with pytest.raises(Conflict):
        await admin.patch(path, {"metadata": {"resourceVersion": "1"}, "spec": {}}, STRATEGIC_MERGE)
    with pytest.raises(Rejected, match=r"metadata\.uid: Invalid value.*field is immutable"):
        await admin.patch(path, {"metadata": {"uid": "another"}, "spec": {}}, STRATEGIC_MERGE)


async def test_a_node_that_does_not_support_it_is_told_apart(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    for number in range(4):
        await annotate(admin, f"node-{number:04}", resize="unsupported")
    job = await run(user, auto_job("old-nodes"))
    await wish(cluster, job, 2)
    resize = await ended(user, job)
    for number in range(4):
        await annotate(admin, f"node-{number:04}", resize=None)
    assert (resize["state"], resize["reason"]) == ("Refused", "ResizeUnsupported")
