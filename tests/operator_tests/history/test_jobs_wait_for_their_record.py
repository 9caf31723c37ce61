"""The finished TrainingJob is the outbox: it goes once its record is stored, and after a day without the store."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from coda.history import Ending
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import FINALIZER
from tests.operator_tests.fake_cluster import FakeCluster, clock
from tests.operator_tests.history.records import StoreInMemory
from tests.operator_tests.operators import Operator, Wire, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

HOUR_S, DAY_S = 3600.0, 86400.0
WRITES = 24  # of the story below, when nobody is killed


def is_held(api: FakeCluster, job: str) -> bool:
    return api.exists(job) and FINALIZER in (api.item(job)["metadata"].get("finalizers") or ())


def dropped(process: Operator) -> float:
    return process.count("coda_operator_history_dropped_total", reason="StoreAway")


async def finishes(api: FakeCluster, **spec: Any) -> str:
    job = api.submit(**spec)
    await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=600)
    return job


async def test_a_finished_job_is_recorded_once_and_let_go() -> None:
    api, store = FakeCluster(), StoreInMemory()
    async with rest_of_cluster(api), operator(api, store=store) as process:
        job = await finishes(api)
        await api.until(lambda: not is_held(api, job), timeout_s=60)
        assert process.count("coda_operator_history_stored_total") == 1
        await asyncio.sleep(HOUR_S)
    (kept,) = store.records.values()
    assert (kept.name, kept.ending, kept.attempt, kept.replicas, kept.gpus) == ("job", Ending.SUCCEEDED, 1, 2, 16)
    assert kept.wait_s + kept.held_s == pytest.approx(kept.ended_s - kept.queued_s)
    assert 0 < kept.run_s <= kept.held_s
    assert store.writes == 1


@pytest.mark.parametrize("away_s", [HOUR_S, 23 * HOUR_S])
async def test_a_store_that_is_away_keeps_jobs_past_their_time_and_loses_none(away_s: float) -> None:
    """Also those that a user deletes meanwhile."""
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api), operator(api, store=store) as process:
        jobs = [await finishes(api, name=f"job-{number}", ttlSecondsAfterFinished=60) for number in range(3)]
        api.end(jobs[2])
        await asyncio.sleep(away_s)
        assert all(is_held(api, job) for job in jobs)
        store.is_away = False
        await api.until(lambda: not any(api.exists(job) for job in jobs), timeout_s=600)
        assert dropped(process) == 0
    assert sorted(kept.name for kept in store.records.values()) == ["job-0", "job-1", "job-2"]


async def test_after_a_day_without_the_store_a_job_goes_without_its_record() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api), operator(api, store=store) as process:
        kept = await finishes(api, name="kept", ttlSecondsAfterFinished=0)
        deleted = await finishes(api, name="deleted")
        api.end(deleted)
        await asyncio.sleep(DAY_S - 10 * 60)
        assert is_held(api, kept)
        assert is_held(api, deleted)
        await api.until(lambda: not api.exists(kept) and not api.exists(deleted), timeout_s=HOUR_S)
        assert dropped(process) == 2
        store.is_away = False
        await asyncio.sleep(HOUR_S)
    assert store.records == {}


async def test_a_job_that_is_deleted_while_it_waits_waits_no_second_day() -> None:
    """Not even for the next operator, which has seen neither its end nor its deletion."""
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api):
        async with operator(api, store=store):
            job = await finishes(api)
            await asyncio.sleep(20 * HOUR_S)
            api.end(job)
        async with operator(api, store=store) as process:
            await asyncio.sleep(3 * HOUR_S)
            assert is_held(api, job)
            await api.until(lambda: not api.exists(job), timeout_s=2 * HOUR_S)
            assert dropped(process) == 1


async def test_the_day_is_over_for_the_next_operator_too() -> None:
    """It counts from the end of the job, not from the start of the process."""
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api):
        async with operator(api, store=store):
            job = await finishes(api)
            await asyncio.sleep(DAY_S - HOUR_S)
        await asyncio.sleep(2 * HOUR_S)
        async with operator(api, store=store) as process:
            await api.until(lambda: not is_held(api, job), timeout_s=600)
            assert dropped(process) == 1


async def test_an_operator_that_was_away_for_days_still_records() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api):
        async with operator(api, store=store):
            job = await finishes(api)
        await asyncio.sleep(3 * DAY_S)
        store.is_away = False
        async with operator(api, store=store) as process:
            await api.until(lambda: not is_held(api, job), timeout_s=600)
            assert dropped(process) == 0
    assert len(store.records) == 1


async def test_a_running_job_that_is_deleted_leaves_a_record_and_goes_after_it() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api, store=store):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        await asyncio.sleep(HOUR_S)
        api.end(job)
        await api.until(lambda: api.pods() == {}, timeout_s=600)
        await asyncio.sleep(HOUR_S)
        assert is_held(api, job)
        store.is_away = False
        await api.until(lambda: not api.exists(job), timeout_s=600)
    (kept,) = store.records.values()
    assert (kept.ending, kept.reason) == (Ending.DELETED, "Deleted")
    assert kept.run_s == pytest.approx(HOUR_S, abs=60)


async def test_a_job_that_was_never_accepted_leaves_no_record_and_waits_for_none() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)

    def refuse(_pod: Json) -> None:
        raise Rejected(422, "Invalid", "no such field")

    api.admit = refuse
    async with rest_of_cluster(api), operator(api, store=store):
        job = api.submit()
        await asyncio.sleep(120)
        api.end(job)
        await api.until(lambda: not api.exists(job), timeout_s=600)
    assert store.records == {}


async def test_more_jobs_than_the_queue_has_places_for_are_all_recorded() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api), operator(api, store=store, most_waiting=2):
        jobs = [await finishes(api, name=f"job-{number}") for number in range(7)]
        store.is_away = False
        await api.until(lambda: not any(is_held(api, job) for job in jobs), timeout_s=300)
    assert len(store.records) == 7


async def test_an_orphaned_job_waits_for_its_record_and_leaves_its_pods() -> None:
    api, store = FakeCluster(), StoreInMemory(is_away=True)
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None), operator(api, store=store):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        api.change(job, lambda item: item["metadata"]["finalizers"].append("orphan"))
        api.end(job)
        await asyncio.sleep(60)
        assert is_held(api, job)
        store.is_away = False
        await api.until(lambda: not is_held(api, job), timeout_s=60)
        assert len(api.pods()) == 2
    assert len(store.records) == 1


async def tell(api: FakeCluster, store: StoreInMemory, story: list[int]) -> None:
    """A gang that fails once, succeeds and goes after its time, by processes that live for so many writes each."""
    job = api.submit("job", ttlSecondsAfterFinished=300)
    done = asyncio.Event()

    async def gone() -> None:
        await api.until(lambda: not api.exists(job), timeout_s=2 * HOUR_S)
        done.set()

    async with rest_of_cluster(api, exit_code=lambda attempt, rank: int((attempt, rank) == (1, 1))):
        telling = asyncio.create_task(gone())
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(telling.cancel)
            for last_write in [*story, 10_000]:
                wire = Wire(api, last_write=last_write)
                async with operator(api, wire=wire, store=store):
                    ends = [asyncio.create_task(event.wait()) for event in (wire.dead, done)]
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    for task in ends:
                        task.cancel()
                if done.is_set():
                    break
            await telling


async def test_the_story_has_as_many_writes_as_the_next_test_kills_at() -> None:
    api = FakeCluster()
    await tell(api, StoreInMemory(), [])
    verbs = ("create", "patch", "apply", "delete")
    assert sum(call.verb in verbs and not call.path.endswith("/events") for call in api.calls) == WRITES


@pytest.mark.parametrize("last_write", range(1, WRITES + 1))
async def test_killed_after_one_write_the_job_is_recorded_once(last_write: int) -> None:
    store = StoreInMemory()
    began_s = clock()
    await tell(FakeCluster(), store, [last_write])
    (kept,) = store.records.values()
    assert (kept.attempt, kept.failures, kept.ending) == (2, 1, Ending.SUCCEEDED)
    assert kept.wait_s + kept.held_s == pytest.approx(kept.ended_s - kept.queued_s)
    assert began_s <= kept.queued_s <= kept.ended_s <= clock()
