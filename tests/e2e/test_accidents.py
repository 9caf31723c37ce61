"""Ordinary accidents on a real API server: none is the job's fault, and none does more harm than it must."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="4x8x48", racks=2)
PODS = "/api/v1/namespaces/default/pods"


async def test_a_rank_that_succeeded_stays_so_though_its_pod_is_drained_while_no_operator_runs(
    cluster: LocalCluster, user: Client
) -> None:
    """Rank 1 succeeds, and its pod is deleted before an operator is back. Rank 0 runs on."""
    simulated = {"run-seconds.rank-0": "8", "run-seconds.rank-1": "2"}
    job = await submit(user, job_json("drained", replicas=2, run_s=None, simulated=simulated))
    await wait_for_phase(user, job, "Running")
    await cluster.kill("operator-0")
    pod = f"{PODS}/drained-1-1"
    await wait_for(user, pod, lambda item: item["status"].get("phase") == "Succeeded")
    await user.delete(pod)
    await cluster.start("operator-0")
    await wait_gone(user, pod)
    done = await wait_for_phase(user, job, "Succeeded", within_s=60)
    assert done["status"]["attempt"] == 1
    await wait_for(user, job_path(job), lambda item: not item["metadata"].get("finalizers"))
    assert not any(item["metadata"].get("finalizers") for item in await pods_of(user, job))


def planner_processes(cluster: LocalCluster) -> list[int]:
    """The children of the extenders that decide: only the leader has one."""
    parents = {part.id.pid for name in ("extender-0", "extender-1") if (part := cluster.process(name)) is not None}
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if _parent_of(pid) in parents]


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


async def test_a_killed_planner_process_delays_the_next_job_by_moments(cluster: LocalCluster, user: Client) -> None:
    first = await submit(user, job_json("before", run_s=60))
    await wait_for_phase(user, first, "Running")
    lease = "/apis/coordination.k8s.io/v1/namespaces/coda-system/leases/coda-planner"
    async with cluster.client("admin") as admin:
        epoch = (await admin.get(lease))["spec"]["leaseTransitions"]
        (killed,) = planner_processes(cluster)
        os.kill(killed, signal.SIGKILL)
        second = await submit(user, job_json("after", run_s=1))
        await wait_for_phase(user, second, "Running", "Succeeded")
        assert (await admin.get(lease))["spec"]["leaseTransitions"] == epoch
    (replacement,) = planner_processes(cluster)
    assert replacement != killed


async def test_ranks_with_a_host_port_go_to_nodes_of_their_own(user: Client) -> None:
    """Only kube-scheduler would know that two of them never fit on one node."""
    main = {"name": "main", "image": "train:1", "ports": [{"containerPort": 29500, "hostPort": 29500}]}
    asked = job_json("ports", replicas=2, run_s=None)
    asked["spec"]["template"]["spec"]["containers"] = [main]
    job = await submit(user, asked)
    runs = await wait_for_phase(user, job, "Running")
    assert runs["status"]["attempt"] == 1
    assert len(set(runs["status"]["placement"]["nodes"])) == 2


async def test_an_administrator_may_delete_a_job_and_leave_its_pods_running(user: Client, admin: Client) -> None:
    """`kubectl delete --cascade=orphan`. A user would keep GPUs that are lent, and nobody could stop these ranks."""
    job = await submit(user, job_json("orphaned", run_s=None))
    running = await wait_for_phase(user, job, "Running")
    (pod,) = await pods_of(user, job)
    orphan = {"propagationPolicy": "Orphan"}
    with pytest.raises(Rejected, match="leave out --cascade=orphan"):
        await user._call("DELETE", job_path(job), None, orphan)
    with pytest.raises(Rejected, match="and the finalizer orphan"):
        await user.patch(job_path(job), {"metadata": {"finalizers": [*running["metadata"]["finalizers"], "orphan"]}})
    await admin._call("DELETE", job_path(job), None, orphan)
    await wait_gone(user, job_path(job))
    (left,) = await pods_of(user, job)
    assert left["metadata"]["uid"] == pod["metadata"]["uid"]
    assert not {"deletionTimestamp", "finalizers", "ownerReferences"} & left["metadata"].keys()
    await user.delete(f"{PODS}/orphaned-1-0")
    await wait_gone(user, f"{PODS}/orphaned-1-0")
