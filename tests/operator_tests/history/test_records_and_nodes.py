"""The record of a finished job comes soon, whatever becomes of the nodes of its pods, and is not lost by waiting.

Rank 0 decides after two hours; rank 1 is on a node that is away by then, or does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.history.records import StoreInMemory
from tests.operator_tests.history.test_gpu_seconds import edited, is_gone, only, reaches
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import RestOfCluster, rest_of_cluster
from tests.operator_tests.test_accidents import set_ready
from tests.operator_tests.test_stop_notice import NEVER_ENDS

HOUR_S, DAY_S = 3600.0, 86400.0
RUN_S = 2 * HOUR_S
ENDS: Any = {"run_s": lambda a, rank: RUN_S, "exit_code": lambda a, rank: 0 if rank == 0 else None}


@asynccontextmanager
async def lost_rank(
    api: FakeCluster, store: StoreInMemory, *, braked: bool = False, ready: str = "Unknown", **spec: Any
) -> AsyncIterator[str]:
    """A job of 2 x 8 GPUs whose rank 1 loses its node 30 s before rank 0 succeeds; `braked`: with all other nodes.

    `ready`: what the node says; "True": its kubelet ends no pods, and nobody knows."""
    async with rest_of_cluster(api, nodes=8, **ENDS) as rest, operator(api, store=store):
        job = api.submit(replicas=2, successPolicy="RankZero", **spec)
        await reaches(api, job, "Running")
        first, dead = api.status(job)["placement"]["nodes"]
        await asyncio.sleep(RUN_S - 30)
        away = (
            [dead] if not braked else [name for item in api.all("nodes") if (name := item["metadata"]["name"]) != first]
        )
        lose(api, rest, away, ready)
        await reaches(api, job, "Succeeded")
        yield job


def lose(api: FakeCluster, rest: RestOfCluster, nodes: list[str], ready: str = "Unknown") -> None:
    rest.lost_nodes.update(nodes)
    for name in nodes:
        set_ready(api, name, ready)


@pytest.mark.parametrize(("on_loss", "braked"), [("Restart", False), ("Wait", False), ("Restart", True)])
async def test_a_finished_job_is_recorded_and_goes_though_a_node_stays_away(on_loss: str, braked: bool) -> None:
    """It is charged for the dead node until that was lost, a minute after it stopped being Ready."""
    api, store = FakeCluster(), StoreInMemory()
    async with lost_rank(api, store, braked=braked, onNodeLoss=on_loss, ttlSecondsAfterFinished=3600) as job:
        await asyncio.sleep(300)
        kept = only(store)
        await asyncio.sleep(HOUR_S)
        assert not api.exists(job)
    assert kept.held_s == pytest.approx(RUN_S, abs=3)
    assert kept.held_gpu_s == pytest.approx(16 * RUN_S + 8 * 30, abs=64)


async def test_a_suspended_job_that_waits_for_its_node_is_not_charged_for_it() -> None:
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api, nodes=8, exit_code=NEVER_ENDS) as rest, operator(api, store=store):
        job = api.submit(replicas=2, onNodeLoss="Wait")
        await reaches(api, job, "Running")
        await asyncio.sleep(HOUR_S)
        lose(api, rest, [api.status(job)["placement"]["nodes"][1]])
        api.change(job, edited(suspend=True))
        await asyncio.sleep(DAY_S)
        assert api.status(job)["phase"] == "Suspended"
        api.end(job)
        await is_gone(api, job)
    assert only(store).held_gpu_s == pytest.approx(16 * HOUR_S + 8 * 60, abs=64)


async def test_a_finished_job_waits_an_hour_for_a_pod_that_does_not_end_on_a_ready_node() -> None:
    """Its process hangs in a driver, say."""
    api, store = FakeCluster(), StoreInMemory()
    async with lost_rank(api, store, ready="True", ttlSecondsAfterFinished=60) as job:
        await asyncio.sleep(HOUR_S - 60)
        assert not store.records
        await asyncio.sleep(300)
        kept = only(store)
        assert not api.exists(job)
    assert kept.held_gpu_s == pytest.approx(16 * RUN_S + 8 * (HOUR_S + 30), abs=64)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_record_that_waited_for_pods_for_days_waits_a_whole_day_for_its_store(is_deleted: bool) -> None:
    """The pod of rank 1 has 30 hours to end, and takes them. The store is away as it ends."""
    api, store = FakeCluster(), StoreInMemory()
    ends = {**ENDS, "exit_code": NEVER_ENDS} if is_deleted else ENDS
    async with rest_of_cluster(api, stop_s=30 * HOUR_S, **ends), operator(api, store=store) as process:
        job = api.submit(replicas=2, successPolicy="RankZero")
        grace_s = 30 * 3600
        api.change(job, lambda item: item["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=grace_s))
        await reaches(api, job, "Running")
        await asyncio.sleep(RUN_S + 60)
        if is_deleted:
            api.end(job)
        await asyncio.sleep(29 * HOUR_S)
        assert not store.records
        store.is_away = True
        await asyncio.sleep(10 * HOUR_S)
        assert process.count("coda_operator_history_dropped_total", reason="StoreAway") == 0
        store.is_away = False
        await asyncio.sleep(HOUR_S)
    assert only(store).held_gpu_s > 8 * 30 * HOUR_S


async def test_the_account_of_a_deleted_job_stays_closed_when_its_nodes_come_back() -> None:
    """Its pod hangs there: it says what the job waits for, and no more time of it is counted."""
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api, nodes=8, exit_code=NEVER_ENDS) as rest:
        async with operator(api, store=store):
            job = api.submit(replicas=2)
            await reaches(api, job, "Running")
            await asyncio.sleep(HOUR_S)
            away = [name for item in api.all("nodes") if (name := item["metadata"]["name"]) != "n0"]
            lose(api, rest, away)
            api.end(job)
            await asyncio.sleep(75)
            for name in away:
                set_ready(api, name, "True")
            await asyncio.sleep(4 * HOUR_S)
            first = api.status(job)["delays"]
        async with operator(api, store=store):
            await asyncio.sleep(1500)
            last = api.status(job)["delays"]
    assert first["doing"] == "Ended"
    assert first == last
    assert only(store).waits == ()
