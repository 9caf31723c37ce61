"""While a device plugin starts again, its node counts with what it had, and nobody gets what it does not offer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import NOTHING, Resources, WaitCode
from coda.policy import ArraysConfig, PolicyConfig
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GATE
from coda_kube.state.short_nodes import SHORT_S
from tests.extender.objects import job_json, node_json, placement, pod_json, rank_json

CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=4.0))
NOW_S = 1_800_000_000.0


class Seen:
    """A cluster, its time, and what the planner decides about it."""

    def __init__(self, count: int) -> None:
        self.now_s = 0.0
        self.state = ClusterState(lambda: self.now_s)
        self.cache = CycleCache()
        for number in range(count):
            self.offer(f"n{number}", 8)

    def offer(self, name: str, gpus: int, **allocatable: Any) -> None:
        item = node_json(name, gpus=gpus)
        item["status"]["allocatable"] |= allocatable
        self.state.on_node(None, item)

    def job(self, name: str, *nodes: str, replicas: int = 1, namespace: str = "default", **status: Any) -> None:
        """A job of 8 GPUs per rank; it runs on the nodes, or waits."""
        more: dict[str, Any] = {"placement": placement(*nodes)} if nodes else {}
        item = job_json(name, replicas=replicas, phase="Running" if nodes else "Queued", **more, **status)
        item["metadata"] |= {"namespace": namespace, "resourceVersion": "1"}
        self.state.on_job(None, item)
        for rank, node in enumerate(nodes):
            pod = rank_json(name, rank, node, node=node, gpus=8)
            pod["metadata"] |= {"namespace": namespace, "resourceVersion": "1"}
            self.state.on_pod(None, pod)

    def decide(self) -> CycleResult:
        self.state.end_short_nodes()
        world = self.state.snapshot(self.state.short_nodes.missing_by_name)
        snapshot = CycleSnapshot(world=world, epoch=1, now_s=NOW_S + self.now_s)
        return run_cycle(snapshot, CODA, self.cache)


STEPS = st.lists(st.tuples(st.sampled_from(["n0", "n1"]), st.integers(0, 8), st.floats(0, 90)), max_size=20)


@given(steps=STEPS)
def test_less_what_is_held_back_a_node_has_what_it_offers_and_soon_counts_so(
    steps: list[tuple[str, int, float]],
) -> None:
    seen, offered, whole_s = Seen(2), {"n0": 8, "n1": 8}, {"n0": 0.0, "n1": 0.0}
    for name, gpus, pause_s in steps:
        seen.offer(name, gpus)
        seen.state.end_short_nodes()
        offered[name] = gpus
        for each, amount in offered.items():
            node, missing = seen.state.node(each), seen.state.short_nodes.missing_by_name.get(each, NOTHING)
            assert node is not None
            assert node.allocatable.gpus - missing.gpus == amount
            if missing is NOTHING:
                whole_s[each] = seen.now_s
            assert seen.now_s < whole_s[each] + SHORT_S + 90
        seen.now_s += pause_s
    seen.now_s += SHORT_S
    seen.state.end_short_nodes()
    assert seen.state.short_nodes.missing_by_name == {}
    assert seen.state.short_nodes.next_over_in_s() is None
    for each, amount in offered.items():
        node = seen.state.node(each)
        assert node is not None
        assert node.allocatable.gpus == amount


TENANTS = {"firm": 8, "red": 8}


@settings(max_examples=40)
@given(borrowers=st.integers(1, 5), idle=st.integers(1, 3), down=st.sets(st.integers(0, 7)), comes_back=st.booleans())
def test_nobody_stops_for_who_starts_once_the_plugins_are_back(
    borrowers: int, idle: int, down: set[int], *, comes_back: bool
) -> None:
    """Nodes of borrowers may be short as well: what their pods have is nobody's."""
    count = borrowers + idle
    seen = Seen(count)
    for name, gpus in TENANTS.items():
        spec = {"namespaces": [name], "quota": {"gpus": gpus}}
        seen.state.on_virtual_cluster(None, {"metadata": {"name": name, "generation": 1}, "spec": spec})
    for number in range(borrowers):
        seen.job(f"f{number}", f"n{number}", namespace="firm")
    for number in down | {*range(borrowers, count)}:
        if number < count:
            seen.offer(f"n{number}", 0)
    seen.job("owner", namespace="red")
    for seen.now_s in (0.0, 30.0, SHORT_S - 1):
        result = seen.decide()
        assert (result.decision.stops, result.decision.starts) == ((), ())
        assert [*result.jobs_by_code] != [WaitCode.NEVER_FITS]
    if comes_back:
        for number in range(count):
            seen.offer(f"n{number}", 8)
        assert [start.job for start in seen.decide().decision.starts] == ["red/owner"]
    elif not down & {*range(borrowers)}:  # then the rules of a full pool count
        seen.now_s = SHORT_S
        assert bool(seen.decide().decision.stops) == (borrowers > 1)


def test_a_job_that_fits_an_empty_node_never_fits_only_after_a_while() -> None:
    seen = Seen(1)
    seen.job("first", "n0")
    seen.job("second")
    codes = []
    for seen.now_s, gpus in ((0.0, 0), (60.0, 0), (SHORT_S, 0), (SHORT_S + 1, 8)):
        seen.offer("n0", gpus)
        codes.append([*seen.decide().jobs_by_code])
    assert codes == [*[[WaitCode.INSUFFICIENT_GPUS]] * 2, [WaitCode.NEVER_FITS], [WaitCode.INSUFFICIENT_GPUS]]


def gated(name: str, cpu: int) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "uid-o", "controller": True}
    metadata = {"resourceVersion": "1", "namespace": "default", "ownerReferences": [owner]}
    return pod_json(name, cpu=str(cpu), metadata=metadata, spec={"schedulingGates": [{"name": GATE}]})


@pytest.mark.parametrize("gpus", [8, 0], ids=["plugin runs", "plugin starts again"])
def test_the_cores_beside_the_gpus_stay_lent(gpus: int) -> None:
    """32 of 48 cores are the GPU array's: who takes more than the other 16 must be able to give them back."""
    seen = Seen(1)
    seen.offer("n0", gpus)
    seen.state.on_pod(None, gated("work", 17))
    assert [start.borrows for start in seen.decide().decision.starts] == [True]


def test_a_process_that_begins_counts_what_the_capacity_says() -> None:
    seen, item = Seen(0), node_json("n0", gpus=0)
    item["status"]["capacity"] = item["status"]["allocatable"] | {"nvidia.com/gpu": "8", "rdma/hca": "2"}
    seen.state.on_node(None, item)
    assert seen.state.short_nodes.missing_by_name == {"n0": Resources(gpus=8, other={"rdma/hca": 2})}
    seen.now_s = SHORT_S
    assert seen.state.end_short_nodes() == ["n0"]
    seen.state.on_node(item, item)
    assert seen.state.short_nodes.missing_by_name == {}


def test_only_devices_are_remembered_and_no_seats() -> None:
    seen = Seen(0)
    more = {"hugepages-2Mi": "1Gi", "coda.scheduler/gpu-0": "4", "example.com/nic": "1"}
    seen.offer("n0", 8, **more)
    seen.offer("n0", 8, cpu="4", memory="1Gi")
    assert seen.state.short_nodes.missing_by_name == {"n0": Resources(other={"example.com/nic": 1})}
    assert (node := seen.state.node("n0")) is not None
    assert (node.allocatable.cpu_m, node.allocatable.other) == (4000, {"example.com/nic": 1})


def test_a_node_that_comes_by_the_name_of_another_has_only_its_own() -> None:
    seen = Seen(1)
    seen.state.on_node(node_json("n0"), None)
    seen.offer("n0", 4)
    node = seen.state.node("n0")
    assert node is not None
    assert node.allocatable.gpus == 4
