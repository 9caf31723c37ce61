"""Reclaims have limits: who was evicted is spared for longer next time, and nobody is evicted in vain."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import orjson
import pytest

from coda.policy.config import ReclaimConfig
from coda_extender.cpu_jobs.places_record import COLLECTION, NAME
from coda_extender.cpu_jobs.reclaims import Reclaims
from coda_extender.write_slots import WriteSlots
from coda_kube.api.steady_clock import SteadyClock
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_PLANNED
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from tests.extender.cpu_pods import CODA, OWNER, bind, events, evictions, fill, gated, is_released, pod
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json
from tests.extender.replicas import replica, state_of

RUNTIME = replace(CODA, reclaim=ReclaimConfig(min_runtime_s=1.5))
ONE_A_MINUTE = replace(CODA, reclaim=ReclaimConfig(evictions_per_minute=1))


@pytest.fixture
async def api() -> FakeApi:
    """One node of 48 cores, 32 of them the GPU array's."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


def train(name: str, *, cores: int) -> Json:
    resources = {"nvidia.com/gpu": "1", "cpu": str(cores), "memory": "8Gi"}
    return job_json(name, request={"resources": resources, "cpusPerReplica": cores})


def pending(api: FakeApi, job: str) -> Json:
    return api.item(f"{JOBS}/{job}").get("status", {}).get("pending") or {}


def notes(api: FakeApi, name: str) -> Json:
    found: Json = pod(api, name)["metadata"]["annotations"]
    return found


async def test_a_training_job_waits_until_borrowers_have_run_for_their_minimum_and_says_so(api: FakeApi) -> None:
    async with replica(api, policy=RUNTIME):
        borrowers = await fill(api)
        api.set(JOBS, job_json("train"))
        await api.until(lambda: pending(api, "train").get("code") == "ReclaimDelayed")
        assert evictions(api) == []
        until_s = pending(api, "train")["numbers"]["not_before_s"]
        released_s = [seconds_from_time(notes(api, name)["coda.scheduler/planned-time"]) for name in borrowers]
        assert min(released_s) < until_s <= max(released_s) + 3
        await api.until(lambda: len(evictions(api)) == 1)
        assert time.time() >= min(released_s) + 1.5


async def test_a_pod_says_how_often_those_that_it_replaces_were_evicted(api: FakeApi) -> None:
    async with replica(api, policy=replace(CODA, reclaim=ReclaimConfig(min_runtime_s=0.01))):
        await fill(api)
        for turn in (1, 2):
            api.set(JOBS, train(f"train-{turn}", cores=32))
            await api.until(lambda: len(events(api)) >= 8 * turn)  # noqa: B023  awaited in this turn
            assert f"keeps such cores for {0.01 * 2**turn:g} s at least" in events(api)[-1]["message"]
            for name in evictions(api)[-8:]:
                api.remove(f"{PODS}/{name}")
            api.remove(f"{JOBS}/train-{turn}")
            heirs = [f"heir-{turn}-{number}" for number in range(8)]
            for name in heirs:
                now = time_from_seconds(time.time())
                api.set(PODS, gated(name, cpu=4, creationTimestamp=now, ownerReferences=[OWNER]))
            await api.until(lambda: all(is_released(api, name) for name in heirs))  # noqa: B023
            assert {notes(api, name).get("coda.scheduler/reclaimed") for name in heirs} == {str(turn)}
            for name in heirs:
                bind(api, name)


async def test_the_next_reclaim_waits_for_the_budget_of_evictions(api: FakeApi) -> None:
    async with replica(api, policy=ONE_A_MINUTE):
        await fill(api)
        api.set(JOBS, train("first", cores=4))
        await api.until(lambda: len(evictions(api)) == 1)
        api.remove(f"{PODS}/{evictions(api)[0]}")
        await api.until(lambda: state_of(api, "first") == "Released")
        api.set(JOBS, train("second", cores=4))
        await api.until(lambda: pending(api, "second").get("code") == "ReclaimDelayed")
        assert pending(api, "second")["message"].startswith(
            "the cores that it needs are lent to 1 CPU job, and the number"
        )
        assert 50 < pending(api, "second")["numbers"]["not_before_s"] - time.time() <= 61
        assert len(evictions(api)) == 1


async def test_a_borrower_that_a_leader_whose_clock_was_ahead_released_is_spared_for_no_longer(api: FakeApi) -> None:
    async with replica(api, policy=CODA):
        borrowers = await fill(api)
    ahead = time_from_seconds(time.time() + 1800)
    for name in borrowers:
        api.change(f"{PODS}/{name}", lambda item: item["metadata"]["annotations"].update({ANNOTATION_PLANNED: ahead}))
    async with replica(api, "two", policy=RUNTIME):
        began_s = time.time()
        api.set(JOBS, job_json("train"))
        await api.until(lambda: len(evictions(api)) == 1)
        assert time.time() >= began_s + 1.0


async def test_evictions_by_a_leader_whose_clock_was_ahead_count_for_a_minute(api: FakeApi) -> None:
    now_s = time.time()
    places = {"uid-web": [[now_s - 100, now_s + 1800]] * 600}
    api.set(COLLECTION, {"metadata": {"name": NAME}, "data": {"places": orjson.dumps(places).decode()}})
    async with replica(api) as one:
        slots = WriteSlots(1, one.cluster.changed.set)
        limits = ReclaimConfig(evictions_per_minute=600)
        reclaims = Reclaims(api, one.cluster, one.metrics, lambda: True, slots, lambda *_: None, limits)
        await reclaims.take_over()
        assert len(reclaims.recent_s()) == limits.evictions_per_minute == 600
        api.clock = SteadyClock(wall=lambda: time.time() + 61)
        assert not reclaims.recent_s()


async def test_nobody_is_evicted_for_a_job_that_is_gone_meanwhile(api: FakeApi) -> None:
    async with replica(api, policy=ONE_A_MINUTE) as one:
        await fill(api)

        def remove_job(call: Call) -> None:
            if call.path.endswith("/eviction") and not removed:
                removed.append(call)
                api.remove(f"{JOBS}/gone")

        removed: list[Call] = []

        api.before = remove_job
        api.set(JOBS, job_json("gone"))
        await api.until(lambda: bool(evictions(api, trials=True)))
        await api.until(lambda: one.cluster.state.job_json_by_id == {})
        await asyncio.sleep(0.2)  # nothing tells that something is not done
        assert evictions(api) == []
        api.set(JOBS, job_json("next"))  # nothing of the budget is used up
        await api.until(lambda: len(evictions(api)) == 1)
