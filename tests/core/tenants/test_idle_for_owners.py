"""Which idle GPUs keep an owner of lent ones waiting: those that it could use. And when its reason says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Job, Resources
from coda.model.world import VirtualCluster
from coda.promises import PromiseBook
from tests.builders import node, rack, resources, world
from tests.core.tenants.test_lent_gpus import CODA, NOW_S, decided, of, runs, stopped, world_of


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"avoid": frozenset({"a-0", "b-0"})}, id="it failed there, or they are suspect"),
        pytest.param({"within": "rack"}, id="they are in no rack, and it wants one"),
    ],
)
def test_nodes_that_the_job_may_not_use_do_not_count(change: dict[str, object]) -> None:
    """Half of the cluster is idle, and the owner's pods may run there."""
    held = [runs(of("firm", f"f{number}"), f"c-{number}", since_s=float(number)) for number in range(2)]
    idle = tuple(node(f"{name}-0", gpus=8, cores=64) for name in "ab")
    tenants = (VirtualCluster(name="org", gpus=8), VirtualCluster(name="firm", gpus=8))
    now = world((*rack("c", 2), *idle), [*held, of("org", "owner")], virtual_clusters=tenants)
    assert [start.job for start in decided(now).starts] == ["org/owner"]
    picky = replace(of("org", "owner"), **change)  # type: ignore[arg-type]
    plan = decided(replace(now, jobs=(*held, picky)))
    assert (stopped(plan), plan.starts) == (["firm/f1"], ())


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(resources(gpus=4, cores=8, memory_gib=200, pods=1), id="they have too little memory"),
        pytest.param(resources(gpus=4, cores=24, pods=1), id="they have too few cores"),
        pytest.param(replace(resources(gpus=4, cores=8, pods=1), other={"rdma/ib": 1}), id="they have no such card"),
        pytest.param(resources(gpus=8, cores=8, pods=1), id="they have too few GPUs"),
    ],
)
def test_nodes_that_are_too_small_for_a_rank_do_not_count(asked: Resources) -> None:
    """Of 48 GPUs 32 are idle, all on nodes of another type. The owner's pods may run there."""
    held = [runs(of("firm", f"f{number}"), f"h100-{number}", since_s=float(number)) for number in range(2)]
    large = [node(f"h100-{number}", cores=64, memory_gib=1000, other={"rdma/ib": 8}) for number in range(2)]
    small = [node(f"l4-{number}", gpus=4, cores=16, memory_gib=100) for number in range(8)]
    tenants = (VirtualCluster(name="org", gpus=8), VirtualCluster(name="firm", gpus=8))
    fits = replace(of("org", "owner"), request=resources(gpus=4, cores=8, pods=1))
    now = world((*large, *small), [*held, fits], virtual_clusters=tenants)
    assert [start.job for start in decided(now).starts] == ["org/owner"]
    plan = decided(replace(now, jobs=(*held, replace(fits, request=asked))))
    assert (stopped(plan), plan.starts) == (["firm/f1"], ())


def test_each_owner_is_judged_by_the_nodes_that_hold_its_own_ranks() -> None:
    """Two in one cycle, of 8 GPUs per rank. Enough is idle for the first one; the other one needs other nodes."""
    held = [runs(of("firm", f"f{number}"), f"h100-{number}", since_s=float(number)) for number in range(2)]
    large = [node(f"h100-{number}", cores=64) for number in range(2)]
    small = [node(f"l4-{number}", cores=16) for number in range(8)]
    gang, picky = of("all", "gang", replicas=9), of("org", "picky", cores=24, queued_s=2.0)
    tenants = tuple(VirtualCluster(name=name, gpus=gpus) for name, gpus in (("all", 72), ("org", 8), ("firm", 8)))
    plan = decided(world((*large, *small), [*held, gang, picky], virtual_clusters=tenants))
    assert ([(stop.job, stop.by) for stop in plan.stops], plan.starts) == ([("firm/f1", "org/picky")], ())
    assert "lent: gangs give it back once" in {one.job: one.message for one in plan.refusals}[gang.id]


def test_idle_gpus_that_are_kept_for_a_promise_are_for_no_owner_but_the_promised_one() -> None:
    """One node is idle, and kept for a gang of two ranks that gets the second node soon."""
    late_s = NOW_S + 100 * 3600
    held = [runs(of("firm", f"f{number}"), f"n{number}", since_s=late_s - 5000 + number) for number in range(3)]
    held[2] = replace(held[2], run_limit_s=5100.0)
    promised, owner = of("", "promised", replicas=2), of("red", "owner", queued_s=late_s - 60)
    plan = decide(world_of([*held, promised, owner], 4), CODA, late_s, book=PromiseBook())
    assert ([(stop.job, stop.by) for stop in plan.stops], plan.starts) == ([("firm/f1", "red/owner")], ())
    own = of("org", "promised", replicas=2)
    tenants = (VirtualCluster(name="org", gpus=16), VirtualCluster(name="firm", gpus=8))
    assert decide(world_of([*held, own], 4, tenants), CODA, late_s, book=PromiseBook()).stops == ()


MEMORY = replace(runs(of("red", "r1", 1), "n0"), request=resources(gpus=1, cores=1, memory_gib=300, pods=1))


@pytest.mark.parametrize(
    ("held", "is_said"),
    [
        pytest.param([MEMORY], False, id="nothing is lent: its own tenant holds the memory that it lacks"),
        pytest.param([MEMORY, runs(of("blue", "b1", 1), "n0")], False, id="nor does another hold more than its own"),
        pytest.param([MEMORY, runs(of("", "other", 1), "n0")], False, id="a gang that borrows, and has too little"),
        pytest.param([replace(MEMORY, virtual_cluster="")], True, id="a gang that borrows, and has enough"),
    ],
)
def test_an_owner_is_told_of_lent_gpus_if_it_would_fit_without_those_who_hold_them(
    held: list[Job], is_said: bool
) -> None:
    """Most GPUs are idle. It needs more memory than is free."""
    owner = replace(of("red", "owner", 1), request=resources(gpus=1, cores=1, memory_gib=100, pods=1))
    plan = decided(world_of([*held, owner], 1))
    (refusal,) = plan.refusals
    assert ("lent" in refusal.message, plan.stops) == (is_said, ())
