"""A deleted job ends with its last pod: it is charged for no wait for its record, nor for an operator."""

from __future__ import annotations

import asyncio

import pytest

from coda.history import Ending
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.history.records import StoreInMemory
from tests.operator_tests.history.test_gpu_seconds import HOUR_S, is_gone, only, reaches
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_stop_notice import NEVER_ENDS


@pytest.mark.parametrize("restarts", [False, True])
async def test_while_the_store_is_away_it_has_ended(restarts: bool) -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api, exit_code=NEVER_ENDS):
        async with operator(api, store=store):
            job = api.submit()
            await reaches(api, job, "Running")
            await asyncio.sleep(HOUR_S)
            api.end(job)
            await api.until(lambda: not api.pods(), timeout_s=600)
            await asyncio.sleep(10)
            assert api.status(job)["delays"]["doing"] == "Ended"
            await asyncio.sleep(19 * HOUR_S)
            store.is_away = restarts
            if not restarts:
                await is_gone(api, job)
        store.is_away = False
        if restarts:
            async with operator(api, store=store):
                await is_gone(api, job)
    kept = only(store)
    assert kept.ending is Ending.DELETED
    assert kept.held_s == pytest.approx(HOUR_S, abs=5)
    assert kept.held_gpu_s == pytest.approx(16 * HOUR_S, abs=80)
    assert kept.wait_s + kept.held_s == pytest.approx(kept.ended_s - kept.queued_s)


async def test_a_record_that_is_turned_away_says_the_same_later() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api, store=store, most_waiting=1):
        jobs = [api.submit(name=name) for name in ("a", "b")]
        for job in jobs:
            await reaches(api, job, "Running")
        await asyncio.sleep(HOUR_S)
        for job in jobs:
            api.end(job)
        await api.until(lambda: not api.pods(), timeout_s=600)
        await asyncio.sleep(19 * HOUR_S)
        store.is_away = False
        for job in jobs:
            await is_gone(api, job)
    assert [kept.held_s for kept in store.records.values()] == pytest.approx([HOUR_S, HOUR_S], abs=10)


async def test_an_end_that_nobody_saw_is_when_its_pods_say() -> None:
    """It ends after two hours, is deleted an hour later, and an operator is there again after two days."""
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api, run_s=lambda attempt, rank: 2 * HOUR_S):
        async with operator(api, store=store):
            job = api.submit()
            await reaches(api, job, "Running")
            await asyncio.sleep(HOUR_S)
        await asyncio.sleep(2 * HOUR_S)
        api.end(job)
        await asyncio.sleep(45 * HOUR_S)
        async with operator(api, store=store):
            await is_gone(api, job)
    kept = only(store)
    assert kept.held_s == pytest.approx(2 * HOUR_S, abs=60)
    assert kept.held_gpu_s == pytest.approx(32 * HOUR_S, abs=16 * 60)
