from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings

from coda.errors import InconsistentWorld
from coda.model import Job, Phase, PlacementState, Resources, World
from coda.model.capacity import free_by_node, withheld
from coda.model.consistency import check
from coda.model.live_placement import is_waiting, live_placement
from coda.model.world import Quota
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, resources, running, start, with_starts, world
from tests.strategies import worlds

GANG = job(replicas=2, gpus=2)
PLANNED = planned(GANG, "n1", "n2")
ONE = GANG.request


def state(phase: Phase, *, bound: tuple[int, ...] = (), unbound: Mapping[int, str] | None = None) -> Job:
    return replace(PLANNED, phase=phase, bound=frozenset(bound), unbound=unbound or {})


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(GANG, {}, id="a waiting job withholds nothing"),
        pytest.param(PLANNED, {"n1": ONE, "n2": ONE}, id="a committed plan withholds all ranks"),
        pytest.param(planned(GANG, "n1", "n1"), {"n1": ONE * 2}, id="ranks on one node add up"),
        pytest.param(state(Phase.QUEUED, bound=(0,), unbound={1: "n2"}), {"n2": ONE}, id="bound ranks are in `used`"),
        pytest.param(state(Phase.LAUNCHED, bound=(0,)), {"n2": ONE}, id="launched, and a pod not seen yet"),
        pytest.param(state(Phase.LAUNCHED, unbound={0: "n9"}), {"n9": ONE, "n2": ONE}, id="a pod counts at its pin"),
        pytest.param(state(Phase.STARTING, bound=(0, 1)), {}, id="all bound"),
        pytest.param(state(Phase.RUNNING, bound=(0, 1)), {}, id="running"),
        pytest.param(state(Phase.STARTING, bound=(0,)), {"n2": ONE}, id="starting, and a pod not seen yet"),
        pytest.param(state(Phase.RUNNING, bound=()), {"n1": ONE, "n2": ONE}, id="running, and no pod seen yet"),
        pytest.param(state(Phase.RESTARTING, bound=(0,), unbound={1: "n2"}), {"n2": ONE}, id="rolling back"),
        pytest.param(state(Phase.SUSPENDED, unbound={1: "n2"}), {"n2": ONE}, id="suspended with a pod still unbound"),
        pytest.param(state(Phase.FAILED, unbound={1: "n2"}), {"n2": ONE}, id="failed with a pod still unbound"),
        pytest.param(state(Phase.SUCCEEDED), {}, id="finished"),
        pytest.param(replace(PLANNED, attempt=2), {}, id="a plan of an older attempt"),
        pytest.param(replace(PLANNED, generation=2), {}, id="a plan of an older spec"),
        pytest.param(replace(PLANNED, generation=2, unbound={0: "n1"}), {"n1": ONE}, id="its pods still count"),
    ],
)
def test_withholds_what_no_bound_pod_uses_yet(one: Job, expected: dict[str, Resources]) -> None:
    assert withheld(world([node("n1"), node("n2")], [one])) == expected


def test_an_edit_after_the_launch_does_not_void_the_plan() -> None:
    launched = replace(PLANNED, phase=Phase.LAUNCHED, generation=2)
    assert live_placement(launched) == PLANNED.placement
    assert not is_waiting(launched)


def test_free_is_allocatable_less_used_in_flight_and_withheld() -> None:
    snapshot = world(
        [node("n1", gpus=8, cores=48, memory_gib=384, pods=110), node("n2", gpus=1)],
        [running(job("x", gpus=3), "n1"), planned(job("y", gpus=2), "n1"), planned(job("z", gpus=2), "n2")],
        in_flight={"n1": resources(cores=4, pods=1), "gone": resources(pods=1)},
    )
    free = free_by_node(snapshot)
    assert free["n1"] == resources(gpus=3, cores=42, memory_gib=382, pods=107)
    assert free["n2"].gpus == -1
    assert list(free) == ["n1", "n2"]


def test_committing_starts_makes_plans() -> None:
    config = PolicyConfig(bind_deadline_s=30)
    after = with_starts(world([node("n1")], [GANG, job("other")]), [start(GANG, "n1", "n1")], config, now_s=50)
    placement = after.jobs[0].placement
    assert placement is not None
    assert (placement.nodes, placement.state) == (("n1", "n1"), PlacementState.COMMITTED)
    assert (placement.committed_s, placement.bind_deadline_s) == (50, 80.1)  # two ranks have a tenth of a second more
    assert after.jobs[1] == job("other")


SANE = world([node("n1"), node("n2")], [PLANNED])


@pytest.mark.parametrize(
    ("broken", "breaches"),
    [
        pytest.param(
            replace(SANE, nodes=SANE.nodes * 2), ("node n1 occurs 2 times", "node n2 occurs 2 times"), id="nodes"
        ),
        pytest.param(replace(SANE, jobs=(GANG, replace(GANG, uid="u"))), ("job team/job occurs 2 times",), id="jobs"),
        pytest.param(
            replace(SANE, nodes=(node("n1", gpus=-1),)), ("allocatable of node n1: gpus is negative",), id="allocatable"
        ),
        pytest.param(replace(SANE, used={"n": Resources(cpu_m=-1)}), ("used on node n: cpu is negative",), id="used"),
        pytest.param(
            replace(SANE, in_flight={"n": Resources(other={"rdma": -1})}),
            ("in flight on node n: rdma is negative",),
            id="in flight",
        ),
        pytest.param(
            replace(SANE, jobs=(replace(GANG, request=Resources(memory_bytes=-1, pods=1)),)),
            ("request of job team/job: memory is negative",),
            id="request",
        ),
        pytest.param(replace(SANE, jobs=(job(replicas=0),)), ("job team/job has 0 replicas",), id="replicas"),
        pytest.param(
            replace(SANE, jobs=(planned(GANG, "n1"),)),
            ("job team/job has 2 replicas but its plan places 1",),
            id="a plan of another size",
        ),
        pytest.param(
            replace(SANE, jobs=(planned(GANG, "n1", ""),)),
            ("the plan of job team/job names no node for a rank",),
            id="a rank without node",
        ),
        pytest.param(
            replace(SANE, jobs=(replace(PLANNED, unbound={2: "n1"}),)),
            ("job team/job has a pod of rank 2 but only 2 replicas",),
            id="an unknown rank",
        ),
        pytest.param(
            replace(SANE, jobs=(replace(PLANNED, bound=frozenset({0}), unbound={0: "n1"}),)),
            ("rank 0 of job team/job is both bound and unbound",),
            id="a rank twice",
        ),
        pytest.param(
            replace(
                SANE, jobs=(PLANNED, replace(planned(job("b", replicas=2), "n1", "n1"), placement=PLANNED.placement))
            ),
            ("live plan plan-uid-team-job-1 occurs 2 times",),
            id="one plan for two jobs",
        ),
        pytest.param(
            replace(SANE, quotas=(Quota(namespace="a", name="q", hard={"pods": -1}, used={}),) * 2),
            (
                "hard pods of quota a/q is negative",
                "hard pods of quota a/q is negative",
                "quota a/q occurs 2 times",
            ),
            id="quotas",
        ),
        pytest.param(
            replace(SANE, jobs=(job(quota={"pods": -1}),)), ("quota use pods of job team/job is negative",), id="use"
        ),
    ],
)
def test_check_names_every_breach(broken: World, breaches: tuple[str, ...]) -> None:
    with pytest.raises(InconsistentWorld) as caught:
        check(broken)
    assert caught.value.breaches == breaches


def test_check_lets_vanished_nodes_and_edited_jobs_pass() -> None:
    edited = replace(planned(job("edited", replicas=3), "n1", "n2", "gone"), replicas=1, generation=2)
    check(replace(SANE, used={"gone": resources(gpus=1)}, in_flight={"gone": resources(gpus=1)}, jobs=(edited,)))


@settings(max_examples=50, deadline=None)
@given(worlds())
def test_what_is_free_and_what_is_taken_add_up(snapshot: World) -> None:
    free, held = free_by_node(snapshot), withheld(snapshot)
    for one in snapshot.nodes:
        takers = (snapshot.used, snapshot.in_flight, held)
        total = sum((taker.get(one.name, Resources()) for taker in takers), free[one.name])
        assert {k: v for k, v in total.other.items() if v} == {k: v for k, v in one.allocatable.other.items() if v}
        assert replace(total, other={}) == replace(one.allocatable, other={})
