"""GPU-seconds are summed as they pass: at the size of each attempt, until its last pod has ended, and never twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from coda.history import FinishedJob
from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.history.records import StoreInMemory
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_stop_notice import NEVER_ENDS, order

HOUR_S, GPU_HOUR_S = 3600.0, 3600
WRITES = 20  # of the story below, when nobody is killed


def edited(**spec: Any) -> Callable[[Json], None]:
    def change(item: Json) -> None:
        item["spec"].update(spec)
        item["metadata"]["generation"] += 1

    return change


async def reaches(api: FakeCluster, job: str, phase: str) -> None:
    await api.until(lambda: api.status(job).get("phase") == phase, timeout_s=6000)


async def is_gone(api: FakeCluster, job: str) -> None:
    await api.until(lambda: not api.exists(job), timeout_s=20_000)


def only(store: StoreInMemory) -> FinishedJob:
    (kept,) = store.records.values()
    return kept


@pytest.mark.parametrize("last_write", [None, *range(1, WRITES + 1)])
async def test_an_edit_of_the_size_changes_no_past_whoever_is_killed(last_write: int | None) -> None:
    """An hour on 2 x 8 GPUs, then one on 1 x 1. A killed operator is replaced after 20 s."""
    api, store = FakeCluster(), StoreInMemory()

    async def story() -> None:
        job = api.submit(replicas=2)
        await reaches(api, job, "Running")
        await asyncio.sleep(HOUR_S)
        api.change(job, edited(suspend=True))
        await api.until(lambda: api.status(job).get("phase") == "Suspended" and not api.pods(), timeout_s=600)
        api.change(job, edited(replicas=1, gpusPerReplica=1))
        await asyncio.sleep(HOUR_S)
        api.change(job, edited(suspend=False))
        await reaches(api, job, "Running")
        await asyncio.sleep(HOUR_S)
        api.end(job)
        await is_gone(api, job)

    async with rest_of_cluster(api, exit_code=NEVER_ENDS):
        told = asyncio.ensure_future(story())
        if last_write is not None:
            wire = Wire(api, last_write=last_write)
            async with operator(api, wire=wire, store=store):
                dies = asyncio.ensure_future(wire.dead.wait())
                await asyncio.wait([told, dies], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(20)
        async with operator(api, store=store):
            await told
    kept = only(store)
    assert (kept.replicas, kept.gpus_per_replica) == (1, 1)
    assert kept.held_s == pytest.approx(2 * HOUR_S, abs=150)
    assert kept.held_gpu_s == pytest.approx(17 * GPU_HOUR_S, abs=16 * 75)


async def test_lost_gpu_seconds_are_those_of_each_stop() -> None:
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS) as rest, operator(api, store=store) as process:
        job = api.submit(replicas=2)
        await reaches(api, job, "Running")
        await asyncio.sleep(HOUR_S)
        rest.plans = False
        order(api, job, 0)
        await reaches(api, job, "Queued")
        lost = api.status(job)["lostGPUSeconds"]
        assert lost == pytest.approx(16 * GPU_HOUR_S, abs=64)
        api.change(job, edited(replicas=1, gpusPerReplica=1))
        await asyncio.sleep(60)
        assert api.status(job)["gpus"] == 1
        assert api.status(job)["lostGPUSeconds"] == lost
        assert process.count("coda_operator_lost_gpu_seconds_total", cause="Migrate") == lost
        api.end(job)
        await is_gone(api, job)
    assert only(store).lost_gpu_s == lost


@pytest.mark.parametrize("dies", [False, True])
async def test_gpus_are_charged_until_the_pods_of_a_stopped_attempt_have_ended(dies: bool) -> None:
    """Pods take 3000 s of their 3600 to end. Deadlines and served time count none of it (decision 0140)."""
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS, stop_s=3000.0), contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        await first.enter_async_context(operator(api, store=store))
        job = api.submit(replicas=2)
        api.change(job, lambda item: item["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=3600))
        await reaches(api, job, "Running")
        await asyncio.sleep(600)
        api.change(job, edited(suspend=True))
        await reaches(api, job, "Suspended")
        api.change(job, edited(replicas=1, gpusPerReplica=1))
        if dies:
            await asyncio.sleep(1000)
            await first.aclose()
            first = contextlib.AsyncExitStack()
            await first.enter_async_context(operator(api, store=store))
        await stack.enter_async_context(first)
        await api.until(lambda: not api.pods(), timeout_s=6000)
        await asyncio.sleep(6000)
        status = api.status(job)
        assert status["servedSeconds"] == pytest.approx(600, abs=2)
        assert status["delays"]["heldSeconds"] == pytest.approx(600, abs=2)
        assert status["delays"]["heldGPUSeconds"] == pytest.approx(16 * 3600, abs=64)
        assert "ranksWithGPUs" not in status["delays"]
        api.end(job)
        await is_gone(api, job)
    assert only(store).held_gpu_s == pytest.approx(16 * 3600, abs=64)


@pytest.mark.parametrize("away", [False, True])
async def test_the_record_of_a_job_waits_for_the_pods_that_still_have_its_gpus(away: bool) -> None:
    """Rank 0 decides after 600 s; the other rank takes 1000 s more. Nobody looks for two days, and it costs no more
    than the 1800 s that the pod may take."""
    api, store = FakeCluster(), StoreInMemory()
    ends: Any = {"run_s": lambda a, rank: 600.0, "exit_code": lambda a, rank: 0 if rank == 0 else None}
    async with rest_of_cluster(api, stop_s=1000.0, **ends):
        async with operator(api, store=store):
            job = api.submit(replicas=2, successPolicy="RankZero")
            api.change(job, lambda item: item["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=1800))
            await reaches(api, job, "Succeeded")
            await asyncio.sleep(100)
            assert not store.records
            if not away:
                await asyncio.sleep(1000)
        if away:
            await asyncio.sleep(48 * HOUR_S)
            async with operator(api, store=store):
                await asyncio.sleep(100)
    kept = only(store)
    assert kept.held_s == pytest.approx(600, abs=3)
    assert kept.held_gpu_s == pytest.approx(16 * 600 + 8 * (1800 if away else 1000), abs=64)


async def test_the_account_of_an_earlier_version_had_always_the_size_of_now() -> None:
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS):
        async with operator(api, store=store):
            job = api.submit(replicas=2)
            await reaches(api, job, "Running")
            await asyncio.sleep(HOUR_S)
        for name in ("heldGPUSeconds", "gpusSince", "ranksWithGPUs", "gpusPerRank"):
            api.change(job, lambda item, name=name: item["status"]["delays"].pop(name))  # type: ignore[misc]
        async with operator(api, store=store):
            await asyncio.sleep(HOUR_S)
            api.end(job)
            await is_gone(api, job)
    kept = only(store)
    assert kept.held_gpu_s == pytest.approx(2 * 16 * GPU_HOUR_S, abs=64) == 16 * kept.held_s
