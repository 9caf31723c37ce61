"""What a DaemonSet's pod leaves on its node is for the next one, and for nobody for long."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.model import NOTHING
from coda_extender.cluster.daemon_gaps import GAP_S, LONGEST_S, DaemonGaps
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from tests.extender.cpu_pods import bind, gated, is_released
from tests.extender.fake_api import FakeApi
from tests.extender.objects import NODES, PODS, node_json, pod_json
from tests.extender.replicas import Replica, replica
from tests.virtual_time import VirtualLoop

POOL_TAINT = {"key": "coda.scheduler/pool", "value": "true", "effect": "NoSchedule"}


def daemon(name: str, *, cpu: str = "1", node: str | None = None, owner: str = "log", **spec: object) -> Json:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    controller = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": owner,
        "uid": f"uid-{owner}",
        "controller": True,
    }
    more = {"affinity": {"nodeAffinity": required}} | spec
    metadata = {"ownerReferences": [controller]}
    return pod_json(name, cpu=cpu, node=node, scheduler="default-scheduler", metadata=metadata, spec=more)


def in_virtual_time(monkeypatch: pytest.MonkeyPatch, story: Callable[[FakeApi, Replica], Awaitable[None]]) -> None:
    """A full node: 46 cores of a foreign pod, one of a DaemonSet's, one free, which a CPU job of 2 cores waits for."""

    async def told() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        api = FakeApi()
        api.set(NODES, node_json("n1"))
        api.set(PODS, pod_json("foreign", cpu="46", node="n1"))
        api.set(PODS, daemon("log-1", node="n1"))
        async with replica(api, clock=loop.time) as one:
            api.set(PODS, gated("web", cpu=2))
            await api.until(lambda: "default/web" in one.cluster.state.pod_by_id)
            await asyncio.sleep(1.0)
            await story(api, one)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(told())


def test_the_room_is_kept_until_the_next_pod_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(api: FakeApi, _: Replica) -> None:
        api.remove(f"{PODS}/log-1")
        await asyncio.sleep(GAP_S - 1)
        assert not is_released(api, "web")
        api.set(PODS, daemon("log-2"))
        await asyncio.sleep(LONGEST_S / 2)
        assert not is_released(api, "web")
        bind(api, "log-2")
        await asyncio.sleep(LONGEST_S)
        assert not is_released(api, "web")
        api.remove(f"{PODS}/foreign")
        await api.until(lambda: is_released(api, "web"))

    in_virtual_time(monkeypatch, story)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_nobody_waits_for_long_for_a_pod_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, *, is_made_again: bool
) -> None:
    async def story(api: FakeApi, _: Replica) -> None:
        api.remove(f"{PODS}/log-1")
        if is_made_again:
            api.set(PODS, daemon("log-2"))
        wait_s = LONGEST_S if is_made_again else GAP_S
        await asyncio.sleep(wait_s - 1)
        assert not is_released(api, "web")
        await asyncio.sleep(3)
        assert is_released(api, "web")

    in_virtual_time(monkeypatch, story)


@pytest.mark.parametrize(
    ("pod", "taints", "held"),
    [
        pytest.param(daemon("log"), [], 1, id="a pod of a DaemonSet"),
        pytest.param(daemon("log", cpu="9"), [], 0, id="more than is free"),
        pytest.param(daemon("log", nodeSelector={"a": "b"}), [], 0, id="labels that the node lacks"),
        pytest.param(daemon("log"), [POOL_TAINT], 0, id="a taint that it does not tolerate"),
        pytest.param(daemon("log", tolerations=[{"operator": "Exists"}]), [POOL_TAINT], 1, id="one that it does"),
        pytest.param(daemon("log", schedulingGates=[{"name": "mine"}]), [], 0, id="a gate"),
        pytest.param(daemon("log", affinity={}), [], 0, id="no node"),
        pytest.param(pod_json("log", spec=daemon("log")["spec"]), [], 0, id="no owner"),
    ],
)
def test_only_what_could_be_bound_now_is_held_back(pod: Json, taints: list[Json], held: int) -> None:
    state = ClusterState()
    node = node_json("n1", cpu=8)
    node["spec"]["taints"] = taints
    state.on_node(None, node)
    gaps = DaemonGaps(state, lambda: 0.0)
    pod["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    state.on_pod(None, pod)
    gaps.observe(None, state.pod_by_id[f"default/{pod['metadata']['name']}"], None, pod)
    assert {name: amount.cpu_m for name, amount in gaps.held_by_node().items()} == ({"n1": 1000 * held} if held else {})


EVENTS = st.lists(
    st.tuples(st.sampled_from(["log", "csi", "x"]), st.sampled_from(["wait", "bind", "end"]), st.integers(1, 30)),
    max_size=25,
)


@given(events=EVENTS, cpu=st.sampled_from(["1", "3", "7"]))
@settings(max_examples=60)
def test_it_is_never_more_than_is_free_and_never_for_long(events: list[tuple[str, str, int]], cpu: str) -> None:
    """Whatever pods somebody makes, binds and deletes in the names of DaemonSets."""
    now_s, state = 0.0, ClusterState()
    state.on_node(None, node_json("n1", cpu=8))
    gaps, item_by_owner = DaemonGaps(state, lambda: now_s), dict[str, Json]()

    def tell(old: Json | None, new: Json | None) -> None:
        key = f"default/{(new or old or {})['metadata']['name']}"
        before = state.pod_by_id.get(key)
        state.on_pod(old, new)
        gaps.observe(before, state.pod_by_id.get(key), old, new)

    for number, (owner, event, pause_s) in enumerate(events):
        old = item_by_owner.pop(owner, None)
        new = daemon(owner, cpu=cpu, owner=owner, node="n1" if event == "bind" else None) if event != "end" else None
        if new is not None:
            new["metadata"] |= {"namespace": "default", "resourceVersion": str(number + 1)}
            item_by_owner[owner] = new
        if old is not None or new is not None:
            tell(old, new)
        held = gaps.held_by_node().get("n1", NOTHING)
        used = state.use.of("n1")
        assert held is NOTHING or held.cpu_m + used.cpu_m <= 8000
        now_s += pause_s
    gaps.held_by_node()
    for step_s in (GAP_S, LONGEST_S, LONGEST_S, LONGEST_S):
        now_s += step_s
        gaps.held_by_node()
    assert gaps.held_by_node() == {}
    assert gaps.next_expiry_in_s() is None


def test_a_replica_that_plans_nothing_forgets_gaps_all_the_same() -> None:
    """Every replica sees pods end, and only the planner asks what is held: here nobody does, for hours."""
    now_s, state = 0.0, ClusterState()
    gaps = DaemonGaps(state, lambda: now_s)
    state.on_node(None, node_json("n1"))
    sizes = []
    for number in range(300):
        now_s = number * 60.0
        item = daemon("log", node="n1", owner=f"set-{number}")
        item["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
        state.on_pod(None, item)
        before = state.pod_by_id["default/log"]
        state.on_pod(item, None)
        gaps.observe(before, None, item, None)
        sizes.append(len(pickle.dumps(gaps.__dict__ | {"_state": None, "_clock": None})))
    assert max(sizes) <= 2 * sizes[0]
