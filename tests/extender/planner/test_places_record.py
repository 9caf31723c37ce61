"""The record of the places that evicted CPU jobs left: who may write it, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from coda_extender.cpu_jobs import places_record
from coda_extender.cpu_jobs.places_record import COLLECTION, NAME, PATH, PlacesRecord
from coda_kube.api.client import Rejected
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.returned_places import KEPT_S, Place
from tests.extender.cpu_pods import OWNER, gated, is_released
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import NODES, PODS, node_json
from tests.extender.replicas import Replica, replica

NOW_S = float(int(time.time()))
UID = str(OWNER["uid"])


def recorded(api: FakeApi) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(api.item(PATH)["data"]["places"])
    return found


def begin_with(api: FakeApi, **places: list[list[float]]) -> None:
    api.set(COLLECTION, {"metadata": {"name": NAME}, "data": {"places": orjson.dumps(places).decode()}})


def leader(api: FakeApi, one: Replica, held: Callable[[], bool] = lambda: True) -> PlacesRecord:
    """As another process that takes over would have it."""
    return PlacesRecord(api, one.cluster, held)


async def test_a_place_that_was_used_up_is_not_handed_out_by_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_record, "SOON_S", 0.01)
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    begin_with(api, **{UID: [[NOW_S - 100, NOW_S - 1]]})
    created = time_from_seconds(NOW_S)
    api.set(PODS, gated("heir", cpu=4, creationTimestamp=created, ownerReferences=[OWNER]))
    async with replica(api):
        await api.until(lambda: is_released(api, "heir"))
        await api.until(lambda: recorded(api) == {})


async def test_a_leader_that_was_paused_does_not_overwrite_the_next_one() -> None:
    api = FakeApi()
    async with replica(api) as one, replica(api, "two") as two:
        is_held = True
        paused = leader(api, one, lambda: is_held)
        await paused.load()
        one.cluster.state.cpu_jobs.places.add("a", Place(1.0, NOW_S))
        assert await paused.store()
        following = leader(api, two)
        await following.load()
        two.cluster.state.cpu_jobs.places.add("b", Place(2.0, NOW_S))
        assert await following.store()
        is_held = False
        one.cluster.state.cpu_jobs.places.add("c", Place(3.0, NOW_S))
        assert not await paused.store()
        assert recorded(api) == {"a": [[1.0, NOW_S]], "b": [[2.0, NOW_S]]}


async def test_a_late_write_of_an_earlier_leader_is_merged() -> None:
    """It was on its way when the Lease was lost. Nothing of either is lost, nor comes back."""
    api = FakeApi()
    begin_with(api, used=[[1.0, NOW_S]])
    async with replica(api) as one:
        record, places = leader(api, one), one.cluster.state.cpu_jobs.places
        await record.load()
        assert places.taken_by("uid", "used", created_s=NOW_S) is not None
        places.leave("uid")
        begin_with(api, used=[[1.0, NOW_S]], late=[[2.0, NOW_S], [2.0, NOW_S]])
        places.add("own", Place(3.0, NOW_S))
        assert await record.store()
        assert recorded(api) == {"late": [[2.0, NOW_S], [2.0, NOW_S]], "own": [[3.0, NOW_S]]}


async def test_two_first_records_are_merged() -> None:
    api = FakeApi()
    async with replica(api) as one:
        record, places = leader(api, one), one.cluster.state.cpu_jobs.places
        await record.load()
        begin_with(api, late=[[2.0, NOW_S]])
        places.add("own", Place(3.0, NOW_S))
        assert await record.store()
        assert recorded(api) == {"late": [[2.0, NOW_S]], "own": [[3.0, NOW_S]]}


async def test_a_record_that_was_deleted_is_made_anew() -> None:
    api = FakeApi()
    async with replica(api) as one:
        record, places = leader(api, one), one.cluster.state.cpu_jobs.places
        places.add("own", Place(3.0, NOW_S))
        assert await record.store()
        api.remove(PATH)
        assert await record.store()
        assert recorded(api) == {"own": [[3.0, NOW_S]]}


async def test_a_record_that_cannot_be_written_is_no_promise() -> None:
    api = FakeApi()

    def refuse(call: Call) -> None:
        if call.path.startswith(COLLECTION):
            raise Rejected(403, "Forbidden", "no such rule")

    async with replica(api) as one:
        record = leader(api, one)
        api.before = refuse
        assert not await record.store()


async def test_places_that_nobody_took_in_time_are_forgotten_at_a_take_over() -> None:
    """But a pod that waits for longer than that keeps its place."""
    api = FakeApi()
    evicted_s = NOW_S - KEPT_S - 60
    begin_with(api, **{UID: [[1.0, evicted_s], [2.0, evicted_s]]})
    created = time_from_seconds(evicted_s + 1)
    api.set(PODS, gated("waits", cpu=400, creationTimestamp=created, ownerReferences=[OWNER]))
    async with replica(api) as one:
        await one.cluster.wait_until_synced()
        record = leader(api, one)
        await record.load()
        assert one.cluster.state.cpu_jobs.places.record() == {UID: [[1.0, evicted_s]]}
