"""Trials on a real API server: planner, operators, agent and simulated kubelets, and a user who interferes."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU, LABEL_ATTEMPT
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_pending, wait_for_phase, wait_gone
from tests.e2e.scheduling import QUICK_LEASE
from tests.e2e.test_operator_crashes import leading_operator

pytestmark = pytest.mark.e2e

OPERATORS = ("operator-0", "operator-1")
SPEC = ClusterSpec(
    nodes="1x8x48", racks=1, extenders=1, agents=1, operators=2, environ_by_part=dict.fromkeys(OPERATORS, QUICK_LEASE)
)
TENANTS = "/apis/coda.scheduler/v1alpha1/virtualclusters"


def gang(name: str, *, trial: Json | None = None, simulated: dict[str, str] | None = None, **spec: Any) -> Json:
    """Two ranks with two GPUs each. The trial runs until it is stopped, the gang for half a second."""
    asked = {"trial": {"runSeconds": 300} if trial is None else trial} if trial != {} else {}
    behaves = {"run-seconds.attempt-2": "0.5"} | (simulated or {})
    return job_json(name, replicas=2, gpus=2, run_s=None, simulated=behaves, spec=asked | spec)


async def trial_runs(user: Client, job: str) -> Json:
    """The job while its trial runs, which has one pod with one GPU."""
    status: Json = (await wait_for_phase(user, job, "Running"))["status"]
    (pod,) = await pods_of(user, job)
    assert pod["metadata"]["labels"][LABEL_ATTEMPT] == str(status["trial"]["attempt"])
    assert pod["spec"]["containers"][0]["resources"]["requests"][GPU] == "1"
    return status


async def test_a_trial_that_reports_its_first_step_is_followed_by_the_gang(user: Client) -> None:
    job = gang("steps")
    notes = {"progress.coda.scheduler/total-steps": "1000000", "progress.coda.scheduler/step-seconds": "0.01"}
    job["spec"]["template"]["metadata"]["annotations"] |= notes
    name = await submit(user, job)
    await trial_runs(user, name)
    status = (await wait_for_phase(user, name, "Succeeded", within_s=120))["status"]
    assert (status["attempt"], status["trial"]["outcome"], status["failures"]) == (2, "Passed", 0)
    assert status["trial"]["message"] == "it reported its first step; the gang is next"


async def test_a_deterministic_failure_ends_the_job_with_its_cause_before_the_gang(user: Client) -> None:
    log = {"exit-code": "1", "run-seconds": "0.2", "log": "ModuleNotFoundError: No module named 'apex'"}
    name = await submit(user, gang("imports", simulated=log))
    status = (await wait_for_phase(user, name, "Failed"))["status"]
    assert (status["attempt"], status["reason"], status["trial"]["outcome"]) == (1, "TrialFailed", "Failed")
    assert status["failure"]["evidence"] == "ModuleNotFoundError: No module named 'apex'"
    assert status["message"].endswith("no gang was started")
    assert len(await pods_of(user, name)) == 1


async def test_what_one_gpu_may_be_the_cause_of_is_left_to_the_gang(user: Client) -> None:
    log = {"exit-code.attempt-1": "1", "run-seconds.attempt-1": "0.2"}
    said = {"log.attempt-1": "torch.cuda.OutOfMemoryError: CUDA out of memory."}
    name = await submit(user, gang("sharded", simulated=log | said, retries=0))
    status = (await wait_for_phase(user, name, "Succeeded"))["status"]
    assert (status["attempt"], status["failures"], status["trial"]["outcome"]) == (2, 0, "Unclear")


async def test_a_trial_that_hangs_is_over_with_its_time_also_for_another_operator(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    name = await submit(user, gang("hangs", trial={"runSeconds": 5}))
    before = await trial_runs(user, name)
    (pod,) = await pods_of(user, name)
    leader = await leading_operator(admin)
    await cluster.kill(leader)
    try:
        status = (await wait_for_phase(user, name, "Succeeded", within_s=120))["status"]
    finally:
        await cluster.start(leader)
    assert (status["attempt"], status["trial"]["outcome"], status["failures"]) == (2, "TimeOver", 0)
    assert status["trial"]["seconds"] >= 5
    assert status["queuedTime"] == before["queuedTime"]
    assert pod["metadata"]["labels"][LABEL_ATTEMPT] == "1"


async def test_a_job_is_suspended_resumed_and_deleted_while_its_trial_runs(user: Client) -> None:
    name = await submit(user, gang("paused"))
    await trial_runs(user, name)
    await user.patch(job_path(name), {"spec": {"suspend": True}})
    await wait_for_phase(user, name, "Suspended")
    await user.patch(job_path(name), {"spec": {"suspend": False}})
    status = await trial_runs(user, name)
    assert (status["attempt"], status["trial"]["attempt"]) == (2, 2)
    await user.delete(job_path(name))
    await wait_gone(user, job_path(name))
    assert await pods_of(user, name) == []


async def test_without_a_gpu_for_its_trial_the_gang_waits_untried_and_says_so(user: Client) -> None:
    full = await submit(user, job_json("full", gpus=8, run_s=None))
    await wait_for_phase(user, full, "Running")
    name = await submit(user, gang("untried", trial={"waitSeconds": 2}))
    skipped = await wait_for(user, job_path(name), lambda job: (job.get("status") or {}).get("attempt") == 2)
    assert skipped["status"]["trial"]["outcome"] == "Skipped"
    assert "no GPU was free for it within 2 s; the gang waits untried" in skipped["status"]["message"]
    await wait_for_pending(user, name, "InsufficientGPUs")
    await user.delete(job_path(full))
    assert (await wait_for_phase(user, name, "Succeeded"))["status"]["attempt"] == 2


async def test_a_tenant_asks_for_trials_of_its_large_gangs(user: Client, admin: Client) -> None:
    spec = {"namespaces": ["default"], "trialsFromGPUs": 4}
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster", "metadata": {"name": "team"}}
    await admin.create(TENANTS, kind | {"spec": spec})
    try:
        for number in range(20):  # the operator hears of the tenant by a watch, some time soon
            name = await submit(user, gang(f"asked-{number}", trial={}))
            status = (await wait_for_phase(user, name, "Running", "Succeeded"))["status"]
            await user.delete(job_path(name))
            await wait_gone(user, job_path(name))
            if "trial" in status:
                break
        assert "trial" in status
        declined = gang("declined", trial={"runSeconds": 0}, simulated={"run-seconds": "0.5"})
        done = await wait_for_phase(user, await submit(user, declined), "Succeeded")
        assert "trial" not in done["status"]
        small = job_json("small", replicas=1, gpus=2, run_s=0.5)
        done = await wait_for_phase(user, await submit(user, small), "Succeeded")
        assert "trial" not in done["status"]
    finally:
        await admin.delete(f"{TENANTS}/team")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"replicas": 1, "gpusPerReplica": 1, "trial": {}},
            r"spec\.trial.*a trial is one rank on one GPU, and the whole job is no more than that",
            id="a job of one rank with one GPU",
        ),
        pytest.param(
            {"trial": {"runSeconds": -60}}, r"spec\.trial\.runSeconds.*greater than or equal to 0", id="negative"
        ),
        pytest.param(
            {"trial": {"runSeconds": 301}}, r"spec\.trial\.runSeconds.*less than or equal to 300", id="too long"
        ),
        pytest.param(
            {"trial": {"waitSeconds": -1}}, r"spec\.trial\.waitSeconds.*greater than or equal to 0", id="wait"
        ),
        pytest.param({"trial": {"runSeconds": "5m"}}, r"spec\.trial\.runSeconds.*must be of type integer", id="words"),
    ],
)
async def test_a_bad_trial_is_refused_in_one_sentence(user: Client, spec: Json, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        await submit(user, job_json("bad", replicas=2, gpus=2, spec=spec))
