import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from coda.errors import Outage
from coda_kube.api.client import NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, LEASES, NODES, PODS, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import FAST, Wire, placement_of, replica, state_of, status


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


async def test_adopts_a_placement_that_still_fits_and_changes_nothing_but_its_epoch(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(NODES, node_json("n2"))
    before = placement("n2", "n1", epoch=0)
    api.set(JOBS, job_json("gang", replicas=2, placement=before))
    api.set(PODS, rank_json("gang", 0, "n2", node="n2"))
    async with replica(api):
        await api.until(lambda: placement_of(api, "gang")["epoch"] == 1)
    assert placement_of(api, "gang") == before | {"epoch": 1}


async def test_releases_what_an_earlier_leader_only_committed(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    before = placement("n1", epoch=0, state="Committed")
    api.set(JOBS, job_json("gang", placement=before))
    async with replica(api):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert placement_of(api, "gang") == before | {"epoch": 1, "state": "Released"}


async def test_drops_an_earlier_leaders_placement_whose_node_is_gone(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang", phase="Launched", placement=placement("gone", epoch=0)))
    async with replica(api) as one:
        await api.until(lambda: "placement" not in status(api, "gang"))
        assert one.count("coda_planner_dropped_plans_total", reason="NODE_GONE") == 1


async def test_of_two_placements_for_the_same_capacity_the_older_is_adopted(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    older = placement("n1", epoch=0, plan="older")
    younger = placement("n1", epoch=0, plan="younger") | {"committedTime": time_from_seconds(1_700_000_001)}
    api.set(JOBS, job_json("a", phase="Launched", placement=younger))
    api.set(JOBS, job_json("b", phase="Launched", placement=older))
    async with replica(api):
        await api.until(lambda: not placement_of(api, "a") and placement_of(api, "b").get("epoch") == 1)


async def test_a_late_write_of_a_stale_leader_is_adopted_or_dropped_too(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("fits"))
    async with replica(api):
        await api.until(lambda: state_of(api, "fits") == "Released")
        late = placement("n1", epoch=0, plan="late")
        api.set(JOBS, job_json("late", placement=late))
        await api.until(lambda: not placement_of(api, "late"))
    assert state_of(api, "fits") == "Released"


async def test_a_placement_committed_long_ago_is_dropped_and_decided_again(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gang", placement=placement("n1", epoch=0, state="Committed", plan="old", deadline_s=1.0)))
    async with replica(api) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert one.count("coda_planner_dropped_plans_total", reason="LATE") == 1
    assert placement_of(api, "gang")["planId"] != "old"


async def test_a_leader_that_cannot_renew_its_lease_writes_nothing_more_and_another_takes_over(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    wire = Wire(api)
    async with replica(api, wire=wire, lease=FAST) as one:
        await api.until(one.planner.leads)
        wire.is_cut = True
        deadline_s = time.monotonic() + 60
        while one.planner.leads():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        api.set(JOBS, job_json("gang"))
        await asyncio.sleep(0.2)
        assert api.writes() == []
        async with replica(api, "two", lease=FAST) as two:
            await api.until(lambda: state_of(api, "gang") == "Released")
            assert two.planner.leads()
            assert not one.planner.leads()
            await api.until(lambda: two.count("coda_planner_takeover_duration_seconds_count") == 1)
        assert one.count("coda_planner_takeover_duration_seconds_count") == 0
    assert placement_of(api, "gang")["epoch"] == 2


async def test_a_leader_that_stops_gives_the_lease_up_at_once(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    async with replica(api, "one") as one:
        await api.until(one.planner.leads)
    api.set(JOBS, job_json("gang"))
    async with replica(api, "two"):
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_the_leader_takes_the_label_from_the_others(api: FakeApi) -> None:
    pods = "/api/v1/namespaces/coda-system/pods"
    labels = {"app.kubernetes.io/component": "extender"}
    for name, mark in (("ext-a", {"coda.scheduler/leader": "true"}), ("ext-b", {})):
        api.set(pods, pod_json(name, metadata={"labels": labels | mark, "namespace": "coda-system"}))
    async with replica(api, pod="ext-b"):
        await api.until(lambda: "coda.scheduler/leader" in api.item(f"{pods}/ext-b")["metadata"]["labels"])
    assert api.item(f"{pods}/ext-b")["metadata"]["labels"]["coda.scheduler/leader"] == "true"
    assert "coda.scheduler/leader" not in api.item(f"{pods}/ext-a")["metadata"]["labels"]


class Forgotten(FakeApi):
    """A job is gone, and the watch does not tell."""

    async def apply(self, path: str, body: Json, *, manager: str, timeout_s: float | None = None) -> Json:
        await self._enter("apply", path, body)
        raise NotFound(404, "NotFound", f"{path} not found")


async def test_a_placement_of_a_job_that_is_gone_is_adopted_again_only_after_a_change() -> None:
    api = Forgotten()
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("gone", placement=placement("n1", epoch=0)))
    async with replica(api):
        await api.until(lambda: bool(api.writes()))
        await asyncio.sleep(0.2)
        assert len(api.writes()) == 1


class OutOfTouch(FakeApi):
    """The watch of nodes breaks once and cannot be started again; everything else works."""

    deaf = False

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        async with super().watch(path, query, idle_s=idle_s) as events:
            yield self._until_deaf(events) if path == NODES else events

    async def _until_deaf(self, events: AsyncIterator[Json]) -> AsyncIterator[Json]:
        if self.deaf:
            raise Outage("the watch does not start")
        async for event in events:
            yield event
            if self.deaf:
                raise Outage("the watch broke")


async def test_a_leader_that_does_not_go_on_says_so_and_gives_its_lease_up() -> None:
    """It renews its Lease for ever, and plans nothing."""
    api = OutOfTouch()
    api.set(NODES, node_json("n1"))
    async with replica(api, hangs_s=0.6) as one:
        await api.until(one.planner.leads)
        assert one.planner.is_alive()
        api.deaf = True
        api.set(NODES, node_json("n2"))
        async with asyncio.timeout(5):
            while one.planner.leads() or not one.count("coda_planner_errors_total"):  # counted once the Lease is gone
                await asyncio.sleep(0.01)
        assert one.count("coda_planner_errors_total") == 1
        assert api.item(f"{LEASES}/coda-planner")["spec"]["holderIdentity"] == ""
