"""Every retry class on a real API server: kubelets serve logs and reasons, the operator reads them and decides.

no, once, yes, other-node, memory that grows, and jobs of one user that fail alike.
"""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, submit, wait_for_phase
from tests.e2e.scheduling import QUICK_LEASE
from tests.e2e.test_operator_crashes import leading_operator

pytestmark = pytest.mark.e2e

OPERATORS = ("operator-0", "operator-1")
QUICK = {"CODA_FAILURE_BACKOFF_S": "0.2"} | QUICK_LEASE
SPEC = ClusterSpec(nodes="4x8x48", racks=1, extenders=1, operators=2, environ_by_part=dict.fromkeys(OPERATORS, QUICK))


async def run(user: Client, name: str, log: str, *, until: str, code: int = 1, attempts: str = "") -> Json:
    """Rank 1 prints `log` and fails, in the named attempts or in all; the status when the phase is reached."""
    simulated = {f"exit-code.{attempts or 'rank-1'}": str(code), f"log.{attempts or 'rank-1'}": log}
    job = await submit(user, job_json(name, replicas=2, run_s=0.2, simulated=simulated))
    return (await wait_for_phase(user, job, until))["status"]  # type: ignore[no-any-return]


async def test_what_would_fail_again_stops_at_once_and_says_why(user: Client) -> None:
    status = await run(user, "imports", "ModuleNotFoundError: No module named 'apex'", until="Failed")
    failure = status["failure"]
    assert (status["attempt"], failure["reason"], failure["rank"], failure["retry"]) == (1, "Import error", 1, "no")
    assert failure["evidence"] == "ModuleNotFoundError: No module named 'apex'"
    assert "unread" not in failure
    assert "Import error" in status["message"]


async def test_a_broken_gpu_leads_elsewhere_and_does_not_count(user: Client) -> None:
    log = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    status = await run(user, "ecc", log, until="Succeeded", attempts="attempt-1")
    failure = status["failure"]
    assert (status["attempt"], status["failures"], failure["reason"]) == (2, 0, "GPU ECC error")
    assert failure["node"] not in status["placement"]["nodes"]


async def test_a_crash_is_tried_once_more(user: Client) -> None:
    status = await run(user, "crashes", "Segmentation fault (core dumped)", until="Failed", code=139)
    assert (status["attempt"], status["failures"], status["failure"]["repeats"]) == (2, 2, 2)


async def test_what_may_pass_is_tried_as_often_as_the_job_allows(user: Client) -> None:
    status = await run(user, "ports", "RuntimeError: Address already in use", until="Failed")
    assert (status["attempt"], status["failures"], status["failure"]["reason"]) == (4, 4, "MPI error")


async def test_a_rank_killed_for_memory_asks_for_more_until_it_suffices(user: Client) -> None:
    """10 GiB are needed: 6 and 9 GiB are too little, and the job allows 12."""
    job = job_json("grows", replicas=2, run_s=0.2, simulated={"needs-memory.rank-1": "10Gi"})
    main = job["spec"]["template"]["spec"]["containers"][0]
    main["resources"] = {"limits": {"memory": "6Gi"}, "requests": {"memory": "2Gi"}}
    job["spec"]["growMemoryTo"] = "12Gi"
    status = (await wait_for_phase(user, await submit(user, job), "Succeeded"))["status"]
    assert (status["attempt"], status["failures"]) == (3, 2)
    assert status["grownMemory"] == {"request": "4096Mi", "limit": "12288Mi"}
    assert status["failure"]["reason"] == "CPU out of memory"
    events = await user.list_pages("/api/v1/namespaces/default/events", {"fieldSelector": "involvedObject.name=grows"})
    said = [event["message"] for event in events["items"]]
    assert any("with 12 GiB of memory per rank instead of 9 GiB" in message for message in said), said


async def test_a_limit_range_bounds_the_growth(user: Client, admin: Client) -> None:
    ranges = "/api/v1/namespaces/default/limitranges"
    bound = {"type": "Container", "max": {"memory": "6Gi"}}
    limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most"}, "spec": {"limits": [bound]}}
    await admin.create(ranges, limit_range)
    try:
        job = job_json("bounded", replicas=2, run_s=0.2, simulated={"needs-memory.rank-1": "10Gi"})
        job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"memory": "6Gi"}}
        job["spec"]["growMemoryTo"] = "12Gi"
        status = (await wait_for_phase(user, await submit(user, job), "Failed"))["status"]
    finally:
        await admin.delete(f"{ranges}/most")
    assert (status["attempt"], "grownMemory" in status) == (2, False)
    assert "its memory cannot grow: " in status["failure"]["decision"]
    assert "maximum memory usage per Container is 6Gi" in status["failure"]["decision"]


async def test_what_grows_must_be_a_quantity(user: Client) -> None:
    for wrong in ("-1Gi", "0", "much"):
        job = job_json("wrong", run_s=0.2, spec={"growMemoryTo": wrong})
        with pytest.raises(Rejected, match=r"spec.growMemoryTo.*must be a quantity of memory above 0"):
            await submit(user, job)


async def test_three_stopped_jobs_of_a_user_stop_the_next_at_its_first_failure(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    """Also under another leader: the jobs themselves are the memory."""
    log = "Segmentation fault (core dumped)"
    for number in range(3):
        status = await run(user, f"alike-{number}", log, until="Failed", code=139)
        assert status["attempt"] == 2
    leader = await leading_operator(admin)
    await cluster.kill(leader)
    try:
        status = await run(user, "alike-3", log, until="Failed", code=139)
    finally:
        await cluster.start(leader)
    assert (status["attempt"], status["failure"]["cutShort"], status["failure"]["alike"]["jobs"]) == (1, True, 3)
    assert "3 other jobs of this user stopped so within a day" in status["message"]
