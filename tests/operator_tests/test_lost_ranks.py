"""Ranks whose pods somebody takes away: a rank that succeeded stays so, and none is started a second time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.rest_of_cluster import RestOfCluster, finish, rest_of_cluster


async def reaches(api: FakeCluster, job: str, phase: str, **fields: Any) -> Json:
    wanted = {"phase": phase, **fields}
    await api.until(lambda: wanted.items() <= api.status(job).items(), timeout_s=600.0)
    return api.status(job)


def succeeds(api: FakeCluster, name: str) -> None:
    api.change(f"{PODS}/{name}", lambda pod: finish(pod, 0))


def take_away(api: FakeCluster, rest: RestOfCluster, name: str) -> None:
    """Delete a pod as `kubectl drain`, an autoscaler or the collector of ended pods does."""
    api.end(f"{PODS}/{name}")
    rest.act()


def has_stopped(api: FakeCluster, name: str) -> bool:
    pod = api.pods().get(name)
    return pod is None or "stopped" in pod["metadata"]


async def runs(api: FakeCluster, **spec: Any) -> str:
    job = api.submit(**spec)
    await reaches(api, job, "Running")
    return job


async def test_a_rank_that_succeeded_may_lose_its_pod() -> None:
    """A drain waits until the pod is gone: it is let go as soon as its success is written."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api):
        job = await runs(api)
        succeeds(api, "job-1-1")
        take_away(api, rest, "job-1-1")
        await api.until(lambda: "job-1-1" not in api.pods(), timeout_s=60)
        succeeds(api, "job-1-0")
        assert (await reaches(api, job, "Succeeded"))["attempt"] == 1


@pytest.mark.parametrize("ranks", [(1,), (0, 1), (0, 1, 2)])
async def test_ranks_that_succeeded_and_lost_their_pods_while_no_operator_ran_stay_succeeded(
    ranks: tuple[int, ...],
) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest:
        async with operator(api):
            job = await runs(api, replicas=3)
        for rank in range(3):
            succeeds(api, f"job-1-{rank}")
        await asyncio.sleep(600)
        for rank in ranks:
            take_away(api, rest, f"job-1-{rank}")
        await api.until(lambda: all(has_stopped(api, f"job-1-{rank}") for rank in ranks))
        async with operator(api):
            assert (await reaches(api, job, "Succeeded"))["attempt"] == 1


async def test_the_next_operator_knows_what_the_last_one_saw_succeed() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest:
        async with operator(api):
            job = await runs(api)
            succeeds(api, "job-1-1")
            take_away(api, rest, "job-1-1")
            await api.until(lambda: "job-1-1" not in api.pods(), timeout_s=60)
        async with operator(api):
            succeeds(api, "job-1-0")
            assert (await reaches(api, job, "Succeeded"))["attempt"] == 1


async def test_a_rank_that_ran_and_was_evicted_between_two_operators_is_not_started_again() -> None:
    """The first operator dies in the middle of the launch. Its rank runs, is evicted, and a second operator goes on."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest:
        api.submit(replicas=3)
        wire = Wire(api, last_write=4)  # finalizer, Queued, Service, one pod
        async with operator(api, wire=wire):
            await wire.dead.wait()
        name = next(iter(api.pods()))
        await api.until(lambda: api.pods()[name]["status"]["phase"] == "Running")
        take_away(api, rest, name)
        await api.until(lambda: has_stopped(api, name))
        async with operator(api):
            await api.until(lambda: any(pod.startswith("job-2-") for pod in api.pods()), timeout_s=60)
        started = {pod["metadata"]["uid"] for _, pod in api.history("pods") if pod["metadata"]["name"] == name}
        assert len(started) == 1


async def test_pods_of_a_finished_job_are_held_by_nothing() -> None:
    """They stay for their logs; whoever deletes them waits for nobody."""
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        await reaches(api, job, "Succeeded")
        await api.until(lambda: not any(pod["metadata"].get("finalizers") for pod in api.pods().values()))
        assert len(api.pods()) == 2


async def test_a_finished_job_and_its_pods_go_without_an_operator() -> None:
    """A namespace can end after Coda was uninstalled."""
    api = FakeCluster()
    async with rest_of_cluster(api) as rest:
        async with operator(api):
            job = api.submit()
            await reaches(api, job, "Succeeded")
            await api.until(lambda: not api.item(job)["metadata"].get("finalizers"))
        api.end(job)
        rest.act()
        await api.until(lambda: not api.exists(job) and api.pods() == {}, timeout_s=60)


@pytest.mark.parametrize("late", [False, True], ids=["operator sees it", "the collector was first"])
async def test_the_pods_of_an_orphaned_job_run_on(late: bool) -> None:
    """`kubectl delete --cascade=orphan`: the garbage collector removes the owner, then its own finalizer."""
    api = FakeCluster()

    def orphan(item: Json) -> None:
        item["metadata"]["finalizers"] = [*item["metadata"]["finalizers"], *([] if late else ["orphan"])]
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api):
        job = await runs(api)
        api.change(job, orphan)
        if late:
            for name in api.pods():
                api.change(f"{PODS}/{name}", lambda pod: pod["metadata"].pop("ownerReferences"))
        await api.until(lambda: not api.exists(job) or api.item(job)["metadata"]["finalizers"] == ["orphan"])
        await asyncio.sleep(60)
        assert [pod["metadata"].get("deletionTimestamp") for pod in api.pods().values()] == [None, None]
        assert not any(pod["metadata"]["finalizers"] for pod in api.pods().values())


FORGERIES = {
    "of a rank beyond the gang": {"labels": {"coda.scheduler/rank": "7"}},
    "owned by nobody": {"ownerReferences": []},
    "with another name": {"name": "mine"},
    "of another placement": {"name": "job-1-9", "annotations": {"coda.scheduler/plan": "other"}},
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=list(FORGERIES))
async def test_a_pod_that_only_says_it_is_a_rank_is_deleted_and_harms_no_rank(forged: dict[str, Any]) -> None:
    """It is gated, asks for nothing and would withhold a node for ever."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None) as rest, operator(api):
        job = await runs(api)
        rest.binds = False
        pod = api.item(f"{PODS}/job-1-1")
        metadata = {name: pod["metadata"][name] for name in ("labels", "annotations", "ownerReferences")}
        metadata |= {"name": "forged"} | forged | {"labels": metadata["labels"] | forged.get("labels", {})}
        spec = {name: field for name, field in pod["spec"].items() if name != "nodeName"}
        spec["schedulingGates"] = [{"name": "example.com/wait"}]
        api.set(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        await api.until(lambda: metadata["name"] not in api.pods())
        await asyncio.sleep(5)
        assert sorted(api.pods()) == ["job-1-0", "job-1-1"]
        assert (api.status(job)["phase"], api.status(job)["attempt"]) == ("Running", 1)
