"""Nodes and leaders that are lost: the job goes on elsewhere, the plan goes on with the next leader."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_phase, wait_gone
from tests.e2e.scheduling import leader_of

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="4x8x48", racks=2, environ_by_part={"operator-0": {"CODA_NODE_LOSS_S": "5"}})

LOST = "sim.coda.scheduler/lost"


async def test_a_lost_node_fails_the_attempt_and_the_next_one_runs_elsewhere(user: Client, admin: Client) -> None:
    """The pod on the lost node stays Terminating, and its capacity counted, until its kubelet is back."""
    job = await submit(user, job_json("moves", replicas=2, gpus=8, run_s=None))
    running = await wait_for_phase(user, job, "Running")
    lost = running["status"]["placement"]["nodes"][1]
    await admin.patch(f"/api/v1/nodes/{lost}", {"metadata": {"annotations": {LOST: "true"}}})
    moved = await wait_for(
        user,
        job_path(job),
        lambda item: item["status"]["attempt"] == 2 and item["status"]["phase"] == "Running",
        within_s=90,
    )
    assert lost not in moved["status"]["placement"]["nodes"]
    assert (moved["status"]["failures"], moved["status"]["disruptions"]) == (0, 1)
    left = [pod["metadata"]["name"] for pod in await pods_of(user, job) if pod["spec"]["nodeName"] == lost]
    assert left == ["moves-1-1"]
    await admin.patch(f"/api/v1/nodes/{lost}", {"metadata": {"annotations": {LOST: None}}})
    await wait_gone(admin, "/api/v1/namespaces/default/pods/moves-1-1")


async def test_the_next_leader_takes_over_within_15_seconds(cluster: LocalCluster, user: Client, admin: Client) -> None:
    """From SIGKILL of the leader to the first pod bound under the new one; the queue is as it was.

    On a busy machine every second becomes several: as many as the start of a job takes there."""
    keeper = await submit(user, job_json("keeper", replicas=4, gpus=8, run_s=None))
    usual_s = start_s(await wait_for_phase(user, keeper, "Running"))
    old = await leader_of(admin)
    await cluster.kill(old)
    killed = await submit(user, job_json("marker", replicas=4, gpus=8, run_s=None))
    await user.delete(job_path(keeper))
    try:
        bound = await wait_for_phase(user, killed, "Starting", "Running")
        assert start_s(bound) <= 15 * max(1.0, usual_s)
    finally:
        await cluster.start(old)


def start_s(job: Json) -> float:
    """Seconds from its creation until its pods were bound, to the second."""
    (bound,) = [each for each in job["status"]["conditions"] if each["type"] == "Bound"]
    began_s = seconds_from_time(job["metadata"]["creationTimestamp"])
    return float(seconds_from_time(bound["lastTransitionTime"]) - began_s)


async def test_a_scheduler_and_an_operator_killed_in_mid_launch_finish_what_was_begun(
    cluster: LocalCluster, user: Client
) -> None:
    jobs = [await submit(user, job_json(f"begun-{number}", replicas=4, gpus=8, run_s=0.3)) for number in range(4)]
    await wait_for_phase(user, jobs[0], "Launched", "Starting", "Running", "Succeeded")
    await cluster.kill("operator-0")
    await cluster.kill("kube-scheduler")
    await cluster.start("kube-scheduler")
    await cluster.start("operator-0")
    for job in jobs:
        done = await wait_for_phase(user, job, "Succeeded", within_s=60)
        assert done["status"]["failures"] == 0
