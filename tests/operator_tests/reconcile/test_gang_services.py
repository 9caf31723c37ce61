"""The Service under which the ranks of a gang find each other."""

from __future__ import annotations

import asyncio

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import NODES, SERVICES, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import RestOfCluster, rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches, runs


def never(attempt: int, rank: int) -> None:
    return None


def lose(api: FakeCluster, rest: RestOfCluster, node: str) -> None:
    """Its kubelet says nothing any more: a pod there is never gone."""
    rest.lost_nodes.add(node)
    away = {"type": "Ready", "status": "Unknown", "lastTransitionTime": time_from_seconds(clock())}
    api.change(f"{NODES}/{node}", lambda item: item["status"].update(conditions=[away]))


def creations(api: FakeCluster) -> list[Json]:
    """The Services that were asked for."""
    return [call.body for call in api.calls if call.verb == "create" and call.path == SERVICES]


async def stuck_job(api: FakeCluster, rest: RestOfCluster) -> str:
    """A job of one rank that was suspended while its pod is stuck on a lost node."""
    job = await runs(api, replicas=1)
    lose(api, rest, "n0")
    await asyncio.sleep(30)
    api.edit(job, suspend=True)
    await asyncio.sleep(100)
    rest.first_node = 4
    return job


async def test_a_pod_that_is_stuck_on_a_lost_node_keeps_no_gang_from_its_service() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=12, exit_code=never) as rest, operator(api):
        job = await stuck_job(api, rest)
        api.edit(job, replicas=3, suspend=False)
        await reaches(api, job, "Running", attempt=2)
    assert "job-1-0" in api.pods()
    assert api.item(f"{SERVICES}/job")["spec"]["selector"]["coda.scheduler/rank"] == "0"


async def test_a_pod_that_is_stuck_on_a_lost_node_starts_no_gang_by_halves() -> None:
    """A scoped quota has not enough for the whole gang, and the API server would admit two of four ranks."""
    api = FakeCluster()
    quota = {"metadata": {"name": "night"}, "spec": {"hard": {"pods": "3"}, "scopes": ["NotTerminating"]}, "status": {}}
    async with rest_of_cluster(api, nodes=12, exit_code=never) as rest, operator(api):
        job = await stuck_job(api, rest)
        api.set("/api/v1/namespaces/default/resourcequotas", quota)
        api.edit(job, replicas=4, suspend=False)
        waits = await reaches(api, job, "Queued", attempt=4)
        assert waits["reason"] == "QuotaExceeded"
    assert {pod["metadata"]["name"] for _, pod in api.history("pods")} == {"job-1-0"}


async def test_a_gang_that_is_created_in_rounds_asks_for_its_service_once_an_attempt() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=60, exit_code=never, moves_pods=False) as rest, operator(api):
        api.submit(replicas=60, gpusPerReplica=1)
        await api.until(lambda: len(api.pods()) == 32, timeout_s=60)
        rest.moves_pods = True
        rest.act()
        await api.until(lambda: len(api.pods()) == 60, timeout_s=60)
    assert len(creations(api)) == 1


@pytest.mark.parametrize(("before", "after"), [("RankZero", "AllRanks"), ("AllRanks", "RankZero")])
async def test_an_edit_of_which_ranks_have_names_counts_from_the_next_attempt(before: str, after: str) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api, dnsNames=before)
        old = api.item(f"{SERVICES}/job")
        await suspended_and_resumed(api, job, dnsNames=after)
        await reaches(api, job, "Running", attempt=2)
    new = api.item(f"{SERVICES}/job")
    assert "coda.scheduler/rank" in (old if before == "RankZero" else new)["spec"]["selector"]
    assert "coda.scheduler/rank" not in (new if before == "RankZero" else old)["spec"]["selector"]
    assert new["metadata"]["uid"] != old["metadata"]["uid"]


async def test_a_service_that_is_as_wanted_stays_for_the_next_attempt() -> None:
    api = FakeCluster()
    fails_once = lambda attempt, rank: 1 if (attempt, rank) == (1, 1) else None  # noqa: E731 - reads as a value
    async with rest_of_cluster(api, exit_code=fails_once), operator(api):
        job = await runs(api)
        old = api.item(f"{SERVICES}/job")
        await reaches(api, job, "Running", attempt=2)
    assert api.item(f"{SERVICES}/job") == old


@pytest.mark.parametrize("code", [pytest.param(0, id="succeeded"), pytest.param(1, id="failed")])
async def test_a_finished_gang_keeps_no_service(code: int) -> None:
    """A quota of its namespace may count Services, and the job stays for a week."""
    api = FakeCluster()
    async with (
        rest_of_cluster(api, exit_code=lambda attempt, rank: code, run_s=lambda attempt, rank: 30.0),
        operator(api),
    ):
        job = await runs(api, retries=0)
        assert api.exists(f"{SERVICES}/job")
        await reaches(api, job, "Failed" if code else "Succeeded")
        await api.until(lambda: not api.exists(f"{SERVICES}/job"), timeout_s=60)
        assert api.exists(job)


async def test_a_suspended_gang_keeps_its_service_until_its_ranks_have_ended() -> None:
    """They may look for rank 0 while they save. When the job is resumed, it gets another one."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never, stop_s=20.0), operator(api):
        job = await runs(api)
        old = api.item(f"{SERVICES}/job")
        api.edit(job, suspend=True)
        await reaches(api, job, "Suspended")
        await asyncio.sleep(10)
        assert api.pods()
        assert api.exists(f"{SERVICES}/job")
        await api.until(lambda: not api.exists(f"{SERVICES}/job"), timeout_s=60)
        assert not api.pods()
        api.edit(job, suspend=False)
        await reaches(api, job, "Running", attempt=2)
    assert api.item(f"{SERVICES}/job")["metadata"]["uid"] != old["metadata"]["uid"]


async def test_another_owners_service_of_that_name_stays() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        api.change(f"{SERVICES}/job", lambda item: item["metadata"].update(ownerReferences=[]))
        api.edit(job, suspend=True)
        await reaches(api, job, "Suspended")
        await asyncio.sleep(60)
    assert api.exists(f"{SERVICES}/job")


async def test_a_service_that_nobody_may_delete_keeps_no_finished_job() -> None:
    api = FakeCluster()

    def refuse(call: Call) -> None:
        if call.verb == "delete" and call.path.startswith(SERVICES):
            raise Rejected(403, "Forbidden", "admission webhook denied the request")

    api.before = refuse
    async with rest_of_cluster(api), operator(api):
        job = api.submit(ttlSecondsAfterFinished=60)
        await reaches(api, job, "Succeeded")
        await api.until(lambda: not api.exists(job), timeout_s=120)


async def suspended_and_resumed(api: FakeCluster, job: str, **spec: str) -> None:
    api.edit(job, suspend=True)
    await reaches(api, job, "Suspended")
    await asyncio.sleep(5)
    api.edit(job, suspend=False, **spec)
