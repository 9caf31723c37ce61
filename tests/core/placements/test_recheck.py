from __future__ import annotations

from dataclasses import replace

import pytest

from coda.errors import InvalidInput
from coda.model import Job, JobId, Node, Phase, World
from coda.model.constraints import NodeConstraints, Taint
from coda.placements import PlacementDefect, placement_defects
from coda.placements.review import DefectKind
from tests.builders import job, node, planned, resources, running, world

GANG = planned(job(replicas=2, gpus=4, constraints=NodeConstraints(selector={"gpu": "a100"})), "n1", "n2")


def a100(name: str, *, schedulable: bool = True, taints: tuple[Taint, ...] = ()) -> Node:
    return node(name, labels={"gpu": "a100"}, schedulable=schedulable, taints=taints)


GOOD = (a100("n1"), a100("n2"))


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        pytest.param(world(GOOD, [GANG]), None, id="nothing changed"),
        pytest.param(
            world(GOOD[:1], [GANG]), PlacementDefect(kind=DefectKind.NODE_GONE, name="n2"), id="a node is gone"
        ),
        pytest.param(
            world([a100("n1", schedulable=False), GOOD[1]], [GANG]),
            PlacementDefect(kind=DefectKind.NODE_BLOCKED, name="n1"),
            id="a node was cordoned",
        ),
        pytest.param(
            world([a100("n1", taints=(Taint(key="lab"),)), GOOD[1]], [GANG]),
            PlacementDefect(kind=DefectKind.NODE_REFUSES, name="n1"),
            id="a node was tainted",
        ),
        pytest.param(
            world([node("n1"), GOOD[1]], [GANG]),
            PlacementDefect(kind=DefectKind.NODE_REFUSES, name="n1"),
            id="a label was lost",
        ),
        pytest.param(
            world(GOOD, [GANG], foreign={"n2": resources(gpus=5)}),
            PlacementDefect(kind=DefectKind.NO_CAPACITY, name="n2"),
            id="a foreign pod took the place",
        ),
        pytest.param(
            world(GOOD, [GANG], in_flight={"n2": resources(gpus=5)}),
            PlacementDefect(kind=DefectKind.NO_CAPACITY, name="n2"),
            id="a foreign pod may take the place",
        ),
        pytest.param(world(GOOD, [GANG], foreign={"n2": resources(gpus=4)}), None, id="just enough is left"),
        pytest.param(
            world(GOOD, [GANG], foreign={"n2": resources(rdma=9)}), None, id="what it does not ask for may be short"
        ),
        pytest.param(
            world(GOOD, [GANG, planned(job("rival", gpus=5), "n1")]),
            PlacementDefect(kind=DefectKind.NO_CAPACITY, name="n1"),
            id="two plans want the same room",
        ),
        pytest.param(
            world([replace(GOOD[0], schedulable=False), GOOD[1]], [replace(GANG, bound=frozenset({0}))]),
            None,
            id="ranks with a bound pod need no room",
        ),
        pytest.param(
            world(GOOD, [replace(GANG, attempt=2)]),
            PlacementDefect(kind=DefectKind.NO_LIVE_PLAN, name="team/job"),
            id="a plan of an older attempt",
        ),
        pytest.param(
            world(GOOD, [replace(GANG, phase=Phase.SUSPENDED)]),
            PlacementDefect(kind=DefectKind.NO_LIVE_PLAN, name="team/job"),
            id="a suspended job",
        ),
    ],
)
def test_tells_whether_a_plan_still_stands(snapshot: World, expected: PlacementDefect | None) -> None:
    assert placement_defects(snapshot, [GANG.id]) == {GANG.id: expected}


def test_a_running_gang_stands_whatever_became_of_its_nodes() -> None:
    gang: Job = running(job("gang", gpus=8), "n1")
    snapshot = world([a100("n1", schedulable=False)], [gang], foreign={"n1": resources(gpus=1)})
    assert placement_defects(snapshot, [gang.id]) == {gang.id: None}


def test_an_unknown_job_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="job team/nobody is not in this world"):
        placement_defects(world(GOOD), [JobId("team/nobody")])


def test_a_misfit_reads_as_a_sentence() -> None:
    assert str(PlacementDefect(kind=DefectKind.NO_CAPACITY, name="n2")) == "n2 no longer has the room"
