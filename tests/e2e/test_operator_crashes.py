"""Operators killed over and over, paused past their Lease or without an API server, while gangs fail and finish."""

from __future__ import annotations

import asyncio
import signal

import pytest

from coda_kube.api.client import Client
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, submit, wait_for_phase
from tests.e2e.scheduling import QUICK_LEASE
from tests.lengths import LONG

pytestmark = pytest.mark.e2e

OPERATORS = ("operator-0", "operator-1")
QUICK = QUICK_LEASE | {"CODA_FAILURE_BACKOFF_S": "0.5"}
SPEC = ClusterSpec(nodes="8x8x48", racks=2, extenders=1, operators=2, environ_by_part=dict.fromkeys(OPERATORS, QUICK))

LEASE = "/apis/coordination.k8s.io/v1/namespaces/coda-system/leases/coda-operator"
OUTAGE_S = 15.0  # five times the Lease
KILLS, GANGS, FINISHED_WITHIN_S = (60, 400, 600) if LONG else (6, 40, 180)
BETWEEN_KILLS_S = 2.0  # less than a take-over and a launch take


async def submit_gangs(user: Client, count: int) -> list[str]:
    """Every third gang fails in its first attempt."""
    fails = {"exit-code.attempt-1": "1"}
    jobs = [
        job_json(f"gang-{number:02}", replicas=4, gpus=4, run_s=0.5, simulated=fails if number % 3 == 0 else None)
        for number in range(count)
    ]
    return [await submit(user, job) for job in jobs]


async def assert_all_finish(user: Client, jobs: list[str]) -> None:
    for number, job in enumerate(jobs):
        done = await wait_for_phase(user, job, "Succeeded", within_s=FINISHED_WITHIN_S)
        assert done["status"]["failures"] == (1 if number % 3 == 0 else 0), job


async def leading_operator(admin: Client) -> str:
    lease = await admin.get(LEASE)
    return str(lease["spec"]["holderIdentity"]).partition("_")[0].removeprefix("coda-")


async def test_an_operator_told_to_end_ends_well_and_hands_over_at_once(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    """Also while it leads, when kopf would like to have the signals for itself."""
    await wait_for_phase(user, await submit(user, job_json("before", run_s=0.1)), "Succeeded")
    leader = await leading_operator(admin)
    await cluster.kill(leader, signal.SIGTERM)
    process = cluster.process(leader)
    assert process is not None
    assert process.exit_code == 0
    assert "the Lease is lost" not in cluster.log_path(leader).read_text()
    await wait_for_phase(user, await submit(user, job_json("after", run_s=0.1)), "Succeeded")
    assert await leading_operator(admin) != leader
    await cluster.start(leader)


async def test_operators_killed_again_and_again_lose_nothing_and_do_nothing_twice(
    cluster: LocalCluster, user: Client
) -> None:
    jobs = await submit_gangs(user, GANGS)
    for number in range(KILLS):
        await asyncio.sleep(BETWEEN_KILLS_S)  # whatever it is doing by then
        await cluster.kill(OPERATORS[number % 2])
        await cluster.start(OPERATORS[number % 2])
    await assert_all_finish(user, jobs)


async def test_an_operator_paused_past_its_lease_and_resumed_stands_by_for_the_other(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    jobs = await submit_gangs(user, 20)
    await wait_for_phase(user, jobs[1], "Launched", "Starting", "Running", "Succeeded")
    leader = await leading_operator(admin)
    await cluster.kill(leader, signal.SIGSTOP)
    await assert_all_finish(user, jobs)  # by the other one
    other = await leading_operator(admin)
    await cluster.kill(leader, signal.SIGCONT)
    await cluster.kill(other)
    await wait_for_phase(user, await submit(user, job_json("after", run_s=0.1)), "Succeeded")
    assert await leading_operator(admin) == leader
    assert cluster.is_running(leader)
    await cluster.start(other)


async def test_a_restarted_operator_need_not_wait_for_the_lease_it_had(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    await cluster.kill("operator-1")
    await wait_for_phase(user, await submit(user, job_json("one", run_s=0.1)), "Succeeded")
    lease = await admin.get(LEASE)
    lease["spec"]["leaseDurationSeconds"] = 1000  # for ever, for anybody else
    await cluster.kill("operator-0", signal.SIGSTOP)  # it renews no more
    await admin.patch(LEASE, {"spec": lease["spec"]})
    await cluster.kill("operator-0")
    await cluster.start("operator-0")
    await wait_for_phase(user, await submit(user, job_json("two", run_s=0.1)), "Succeeded")
    await cluster.start("operator-1")


async def test_an_outage_longer_than_the_lease_costs_no_process_and_work_goes_on_at_its_end(
    cluster: LocalCluster, user: Client
) -> None:
    """Of both operators; whoever has it first goes on where the work was."""
    before = {name: cluster.process(name) for name in OPERATORS}
    jobs = await submit_gangs(user, 10)
    await wait_for_phase(user, jobs[1], "Launched", "Starting", "Running", "Succeeded")
    await cluster.kill("kube-apiserver", signal.SIGSTOP)
    await asyncio.sleep(OUTAGE_S)
    await cluster.kill("kube-apiserver", signal.SIGCONT)
    await assert_all_finish(user, jobs)
    assert {name: cluster.process(name) for name in OPERATORS} == before
    assert all(cluster.is_running(name) for name in OPERATORS)
