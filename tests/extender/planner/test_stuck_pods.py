"""Released pods that cannot be bound where they are pinned lose their place, and no others do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coda.placements.lingering_use import GIVEN_UP_S, NODE_LOST_S
from coda_extender.cpu_jobs.stuck_pods import StuckPods
from coda_kube.objects.json_types import Json
from tests.extender.cpu_pods import OWNER, bind, events, evictions, gated, is_released, pod
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import NODES, PODS, given_up, node_json, pod_json
from tests.extender.replicas import replica


@pytest.fixture
async def api() -> FakeApi:
    """One node of 48 cores."""
    api = FakeApi()
    api.set(NODES, node_json("n1"))
    return api


UNSCHEDULABLE = given_up(message="0/1 nodes are available")


@pytest.mark.parametrize(("owners", "evicted"), [([OWNER], ["work"]), ([], [])], ids=["made anew", "left to its user"])
async def test_a_pod_that_kube_scheduler_gives_up_loses_its_place(
    api: FakeApi, owners: list[Json], evicted: list[str]
) -> None:
    now_s = 100.0
    async with replica(api) as one:
        stuck = StuckPods(api, one.cluster, one.metrics, lambda: True, lambda: now_s)
        api.set(PODS, gated("work", cpu=30, ownerReferences=owners))
        await api.until(lambda: is_released(api, "work"))
        await stuck.end_stuck()
        now_s += 3600  # a scheduler that is away makes no pod stuck
        await stuck.end_stuck()
        api.change(f"{PODS}/work", lambda item: item.update(status=UNSCHEDULABLE))
        await api.until(lambda: one.cluster.state.pod_by_id["default/work"].given_up)
        await stuck.end_stuck()
        assert evictions(api) == []
        now_s += GIVEN_UP_S
        await stuck.end_stuck()
        await api.until(lambda: one.cluster.state.pod_by_id["default/work"].terminating or not evicted)
        await stuck.end_stuck()
        assert evictions(api) == evicted
        assert [*one.ask(pod_json("foreign", cpu="20"), ["n1"]).passed] == ["n1"]
        await api.until(lambda: [event["reason"] for event in events(api)] == ["PlaceLost"])
        assert [*one.ask(pod(api, "work"), ["n1"]).passed] == []


async def test_a_pod_whose_node_is_lost_loses_its_place(api: FakeApi) -> None:
    now_s = 100.0
    async with replica(api) as one:
        stuck = StuckPods(api, one.cluster, one.metrics, lambda: True, lambda: now_s)
        api.set(PODS, gated("work", cpu=4, ownerReferences=[OWNER]))
        await api.until(lambda: is_released(api, "work"))
        api.remove(f"{NODES}/n1")
        await api.until(lambda: one.cluster.state.node("n1") is None)
        await stuck.end_stuck()
        now_s += NODE_LOST_S - 1
        await stuck.end_stuck()
        assert evictions(api) == []
        now_s += 1
        await stuck.end_stuck()
        assert evictions(api) == ["work"]


async def end_two(api: FakeApi, before: Callable[[Call], None], held: Callable[[], bool] = lambda: True) -> None:
    """Look when two pods, first and second, have been given up for long; `before` sees each eviction."""
    now_s = 100.0
    async with replica(api) as one:
        stuck = StuckPods(api, one.cluster, one.metrics, held, lambda: now_s)
        for name in ("first", "second"):
            api.set(PODS, gated(name, cpu=4, ownerReferences=[OWNER]))
            await api.until(lambda: is_released(api, name))  # noqa: B023
            api.change(f"{PODS}/{name}", lambda item: item.update(status=UNSCHEDULABLE))
        pods = one.cluster.state.pod_by_id
        await api.until(lambda: all(pods[f"default/{name}"].given_up for name in ("first", "second")))
        await stuck.end_stuck()
        now_s += 3600
        api.before = lambda call: before(call) if call.path.endswith("/eviction") else None
        await stuck.end_stuck()
        api.before = None


def is_kept(api: FakeApi, name: str) -> bool:
    return "deletionTimestamp" not in pod(api, name)["metadata"]


@pytest.mark.parametrize("bound", ["first", "second"], ids=["while it is evicted", "while another one is"])
async def test_a_pod_that_is_bound_meanwhile_is_kept(api: FakeApi, bound: str) -> None:
    def before(_: Call) -> None:
        if pod(api, bound)["spec"].get("nodeName") is None:
            bind(api, bound)

    await end_two(api, before)
    assert {name for name in ("first", "second") if is_kept(api, name)} == {bound}


async def test_who_leads_no_more_ends_no_more_pods(api: FakeApi) -> None:
    await end_two(api, lambda _: None, lambda: not evictions(api))
    assert evictions(api) == ["first"]
