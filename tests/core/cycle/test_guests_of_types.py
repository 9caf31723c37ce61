"""For whom guests move: a small job that waits for something else than what they leave is in nobody's way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Job, JobId
from coda.model.constraints import NodeConstraints
from coda.model.world import Quota, VirtualCluster
from tests.builders import node, world
from tests.core.cycle.test_preemption import CODA, NOW_S, gpu, ran

TYPE = "nvidia.com/gpu.product"
NODES = (
    *(node(name, gpus=4, cores=8, labels={TYPE: "H100"}) for name in "ab"),
    *(node(name, gpus=2, cores=4, labels={TYPE: "L4"}) for name in "cd"),
)
HELD = (
    ran(gpu("guest", 1, served_s=9999), "a", for_s=60),
    replace(ran(gpu("resident", 3), "b"), resumable=False),
    *(ran(gpu(f"l4-{name}", 2), name) for name in "cd"),
)


def typed(built: Job, product: str) -> Job:
    return replace(built, constraints=NodeConstraints(selector={TYPE: product}))


LARGE = typed(gpu("large", 4, served_s=9999), "H100")
SMALL = gpu("small", 1, cores=8)
GPUS = "requests.nvidia.com/gpu"


def moved(*jobs: Job, quotas: tuple[Quota, ...] = (), tenants: tuple[VirtualCluster, ...] = ()) -> dict[str, str]:
    """Who moves, and for whom."""
    plan = decide(world(NODES, jobs, quotas=quotas, virtual_clusters=tenants), CODA, NOW_S)
    return {stop.job.split("/")[1]: stop.by.split("/")[1] for stop in plan.stops}


@pytest.mark.parametrize(
    "small",
    [
        pytest.param(typed(gpu("small", 1), "L4"), id="its nodes are others"),
        pytest.param(replace(typed(gpu("small", 1), "H10O"), priority=1), id="no node has its label"),
        pytest.param(gpu("small", 1, cores=300), id="no node is so large"),
        pytest.param(gpu("small", 1, cores=9), id="the node of the guest is too small"),
        pytest.param(replace(SMALL, avoid=frozenset({"a"})), id="it failed there"),
        pytest.param(replace(SMALL, within="moon"), id="its level is unknown"),
    ],
)
def test_a_guest_moves_beside_a_small_job_that_could_not_use_what_it_leaves(small: Job) -> None:
    assert moved(*HELD, LARGE) == {"guest": "large"}
    assert moved(*HELD, LARGE, SMALL) == {}  # it would take it
    assert moved(*HELD, LARGE, small) == {"guest": "large"}


def quota(namespace: str, *, hard: int, used: int) -> Quota:
    return Quota(namespace=namespace, name="q", hard={GPUS: hard * 1000}, used={GPUS: used * 1000})


def test_a_guest_moves_beside_a_small_job_without_quota() -> None:
    """But not if it leaves quota as well: the small job would take both."""
    other = replace(SMALL, id=JobId("other/small"), quota={GPUS: 1000})
    own = replace(SMALL, quota={GPUS: 1000})
    assert moved(*HELD, LARGE, other, quotas=(quota("other", hard=3, used=2),)) == {}
    assert moved(*HELD, LARGE, other, quotas=(quota("other", hard=3, used=3),)) == {"guest": "large"}
    assert moved(*HELD, LARGE, own, quotas=(quota("team", hard=3, used=3),)) == {}
    assert moved(*HELD, LARGE, own, quotas=(quota("team", hard=0, used=0),)) == {"guest": "large"}


def test_a_guest_moves_beside_a_small_job_of_a_tenant_at_its_limit() -> None:
    """But not if it is a job of that tenant: it leaves some of the limit."""
    lab = VirtualCluster(name="lab", gpus=2, may_borrow=False)
    small, taken = (replace(one, virtual_cluster="lab") for one in (SMALL, HELD[2]))
    held = (*HELD[:2], taken, HELD[3])
    assert moved(*held, LARGE, SMALL, tenants=(lab,)) == {}
    assert moved(*held, LARGE, small, tenants=(lab,)) == {"guest": "large"}
    guest = replace(HELD[0], virtual_cluster="lab")
    assert moved(guest, *held[1:], LARGE, small, tenants=(replace(lab, gpus=3),)) == {}


def test_no_guest_moves_if_a_small_job_elsewhere_would_take_the_limit_that_it_leaves() -> None:
    """It could not go on then. A small job that fits no node takes nothing."""
    lab = VirtualCluster(name="lab", gpus=1, may_borrow=False)
    guest, elsewhere = (replace(one, virtual_cluster="lab") for one in (HELD[0], typed(gpu("small", 1), "L4")))
    held = (guest, HELD[1], ran(gpu("l4-c", 1), "c"), HELD[3])
    assert moved(*held, LARGE, elsewhere, tenants=(lab,)) == {}
    assert moved(*held, LARGE, replace(elsewhere, priority=1), tenants=(lab,)) == {}
    never = replace(typed(gpu("small", 1, cores=300), "L4"), virtual_cluster="lab")
    assert moved(*held, LARGE, never, tenants=(lab,)) == {"guest": "large"}
