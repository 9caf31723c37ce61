"""What a user does with nothing but kubectl-style calls; each change is shown in status and events within 2 s."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_cli.doctor.seen import look
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from tests.e2e.jobs import (
    events_of,
    job_json,
    pods_of,
    submit,
    wait_for,
    wait_for_pending,
    wait_for_phase,
    wait_gone,
)

pytestmark = pytest.mark.e2e


async def kubectl(cluster: LocalCluster, *words: str, stdin: str = "") -> str:
    """kubectl as the user; its output."""
    process = await asyncio.create_subprocess_exec(
        *cluster.kubectl,
        f"--kubeconfig={cluster.kubeconfig('user')}",
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate(stdin.encode())
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_submit_watch_and_read_with_kubectl(cluster: LocalCluster, user: Client) -> None:
    running, waiting = (job_json(name, replicas=n, gpus=8, run_s=None) for name, n in (("runs", 7), ("waits", 2)))
    assert "created" in await kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(running))
    await wait_for_phase(user, "default/runs", "Running")
    assert "created" in await kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(waiting))
    await wait_for_pending(user, "default/waits", "InsufficientGPUs")
    table = await kubectl(cluster, "get", "tj")
    assert table.splitlines()[0].split() == ["NAME", "PHASE", "ARRAY", "GPUS", "CORES", "PENDING", "AGE"]
    assert "InsufficientGPUs" in table
    described = await kubectl(cluster, "describe", "tj", "waits")
    assert "default/runs" in described
    logs = await kubectl(cluster, "logs", "runs-1-0")
    assert logs.strip()


async def test_doctor_finds_a_running_installation_well(admin: Client) -> None:
    found = {one.about: one.level for one in findings(await look(admin))}
    assert Level.BAD not in found.values()
    assert [found[about] for about in ("definitions", "planner", "operator", "policies", "GPU nodes")] == 5 * [
        Level.GOOD
    ]


async def test_deleting_a_running_and_a_waiting_job(user: Client) -> None:
    running = await submit(user, job_json("runs", replicas=8, gpus=8, run_s=None))
    await wait_for_phase(user, running, "Running")
    waiting = await submit(user, job_json("waits", replicas=8, gpus=8, run_s=None))
    await wait_for_pending(user, waiting, "InsufficientGPUs")
    await user.delete(job_path(waiting))
    await wait_gone(user, job_path(waiting))
    await user.delete(job_path(running))
    await wait_gone(user, job_path(running))  # its pods get their grace period
    assert await pods_of(user, running) == []


async def test_a_gang_waits_a_while_for_one_rack_and_then_starts_in_two(user: Client) -> None:
    in_one_rack = {"locality": {"required": "rack"}}
    for name in ("first", "second"):  # three of four nodes in each rack
        filler = await submit(user, job_json(name, replicas=3, gpus=8, run_s=None, spec=in_one_rack))
        await wait_for_phase(user, filler, "Running")
    prefers = {"locality": {"preferred": [{"level": "rack", "forSeconds": 8}]}}
    gang = await submit(user, job_json("gang", replicas=2, gpus=8, run_s=None, spec=prefers))
    pending = await wait_for_pending(user, gang, "WaitsForLocality")
    assert "it prefers one rack until" in pending["status"]["pending"]["message"]
    await wait_for_phase(user, gang, "Running")


async def test_editing_the_replicas_of_a_waiting_job(user: Client) -> None:
    await wait_for_phase(user, await submit(user, job_json("half", replicas=4, gpus=8, run_s=None)), "Running")
    job = await submit(user, job_json("shrinks", replicas=8, gpus=8, run_s=None))
    await wait_for_pending(user, job, "InsufficientGPUs")
    await user.patch(job_path(job), {"spec": {"replicas": 6}})
    await wait_for(
        user,
        job_path(job),
        lambda item: item["status"]["gpus"] == 48 and "6" in (item["status"].get("pending") or {}).get("message", ""),
    )
    await user.patch(job_path(job), {"spec": {"replicas": 4}})
    await wait_for_phase(user, job, "Running")
    assert len(await pods_of(user, job)) == 4


async def test_replicas_of_a_running_job_cannot_change(user: Client) -> None:
    job = await submit(user, job_json("fixed", run_s=None))
    await wait_for_phase(user, job, "Running")
    with pytest.raises(Exception, match=r"set spec\.suspend to true first"):
        await user.patch(job_path(job), {"spec": {"replicas": 2}})


async def test_a_running_job_takes_back_nothing_that_others_count_on(user: Client) -> None:
    """That it may be stopped, and when it ends at the latest. It may promise more of both."""
    job = await submit(user, job_json("fixed", run_s=None))
    await wait_for_phase(user, job, "Running")
    for more in ({"resumable": True}, {"activeDeadlineSeconds": 7200}, {"activeDeadlineSeconds": 3600}):
        await user.patch(job_path(job), {"spec": more})
    less: list[dict[str, Any]] = [
        {"resumable": False},
        {"resumable": None},
        {"activeDeadlineSeconds": 3601},
        {"activeDeadlineSeconds": None},
        {"activeDeadlineSeconds": 60, "resumable": False},
    ]
    for edit in less:
        with pytest.raises(Rejected, match=r"resumable is taken back.*set spec\.suspend to true first"):
            await user.patch(job_path(job), {"spec": edit})
    await user.patch(job_path(job), {"spec": {"suspend": True}})
    await wait_for_phase(user, job, "Suspended")
    await user.patch(job_path(job), {"spec": {"resumable": False, "activeDeadlineSeconds": None, "suspend": False}})
    spec = (await wait_for_phase(user, job, "Running"))["spec"]
    assert (spec["resumable"], spec.get("activeDeadlineSeconds")) == (False, None)


async def test_a_job_that_waits_may_still_change_what_others_will_count_on(user: Client) -> None:
    await wait_for_phase(user, await submit(user, job_json("full", replicas=8, gpus=8, run_s=None)), "Running")
    promises = {"resumable": True, "activeDeadlineSeconds": 60}
    job = await submit(user, job_json("waits", gpus=8, spec=promises))
    await wait_for_pending(user, job, "InsufficientGPUs")
    await user.patch(job_path(job), {"spec": {"resumable": False, "activeDeadlineSeconds": 3600}})


async def test_suspending_and_resuming(user: Client) -> None:
    job = await submit(user, job_json("pauses", replicas=2, gpus=8, run_s=None))
    await wait_for_phase(user, job, "Running")
    await user.patch(job_path(job), {"spec": {"suspend": True}})
    suspended = await wait_for_phase(user, job, "Suspended")
    assert (suspended["status"]["failures"], suspended["status"]["disruptions"]) == (0, 0)
    for pod in await pods_of(user, job):
        await wait_gone(user, f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
    await user.patch(job_path(job), {"spec": {"suspend": False}})
    await wait_for_phase(user, job, "Queued", "Launched", "Starting", "Running")
    resumed = await wait_for_phase(user, job, "Running")
    assert resumed["status"]["attempt"] == 2
    assert {"Suspended", "Resumed", "Running"} <= await events_of(user, job)


async def test_a_job_created_suspended_waits_without_a_plan_until_it_is_resumed(user: Client) -> None:
    job = await submit(user, job_json("later", run_s=0.1, spec={"suspend": True}))
    suspended = await wait_for_phase(user, job, "Suspended")
    assert "placement" not in suspended["status"]
    await user.patch(job_path(job), {"spec": {"suspend": False}})
    done = await wait_for_phase(user, job, "Succeeded")
    assert done["status"]["attempt"] == 1


async def test_a_failing_rank_is_retried_up_to_the_limit_and_the_job_then_fails(user: Client) -> None:
    job = await submit(
        user, job_json("fails", replicas=2, run_s=0.2, simulated={"exit-code.rank-1": "7"}, spec={"retries": 0})
    )
    failed = await wait_for_phase(user, job, "Failed")
    assert "rank 1" in failed["status"]["message"]
    assert "exit code 7" in failed["status"]["message"]


async def test_rank_zero_decides_and_the_others_are_stopped(user: Client) -> None:
    job = await submit(
        user,
        job_json(
            "servers",
            replicas=3,
            run_s=None,
            simulated={"run-seconds.rank-0": "0.5"},
            spec={"successPolicy": "RankZero"},
        ),
    )
    await wait_for_phase(user, job, "Succeeded")
    for rank in (1, 2):
        await wait_gone(user, f"/api/v1/namespaces/default/pods/servers-1-{rank}")


async def test_time_to_live_removes_the_job(user: Client) -> None:
    job = await submit(user, job_json("brief", run_s=0.1, spec={"ttlSecondsAfterFinished": 1}))
    await wait_for_phase(user, job, "Succeeded")
    await wait_gone(user, job_path(job))


async def test_the_active_deadline_ends_a_job(user: Client) -> None:
    job = await submit(user, job_json("endless", run_s=None, spec={"activeDeadlineSeconds": 1}))
    failed = await wait_for_phase(user, job, "Failed")
    assert failed["status"]["reason"] == "DeadlineExceeded"
