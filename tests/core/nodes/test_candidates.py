from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.history.queue_estimates import ExpectedRuns
from coda.history.run_times import RunTimes
from coda.model import Job, Node, World
from coda.policy import Level, PolicyConfig
from tests.builders import RACK_LABEL, job, node, rack, resources, running, start, world
from tests.strategies import worlds

ZONED = PolicyConfig(levels=(Level("zone", "zone"), Level("rack", RACK_LABEL), Level("node", "kubernetes.io/hostname")))
FLAT = PolicyConfig(levels=())


def taken(name: str, on: str, gpus: int, *, cores: float = 1) -> Job:
    return running(job(name, gpus=gpus, cores=cores), on)


@pytest.mark.parametrize(
    ("nodes", "others", "gang", "expected"),
    [
        pytest.param(
            [node("n1"), node("n2")], [taken("x", "n1", 2)], job(), ["n1"], id="one GPU is packed on the fullest node"
        ),
        pytest.param(
            [node("n1"), node("n2")],
            [taken("x", "n1", 8), taken("y", "n2", 7)],
            job(),
            ["n2"],
            id="one GPU goes to the fullest node that fits, not to a full one",
        ),
        pytest.param(
            [node("n1"), node("n2")],
            [taken("x", "n1", 2)],
            job(gpus=2),
            ["n1"],
            id="a gang of one rank goes to the fullest node, however many GPUs it asks for",
        ),
        pytest.param(
            [node("n1"), node("n2")],
            [taken("x", "n1", 2)],
            job(replicas=2, gpus=2),
            ["n1", "n1"],
            id="so does a gang of several ranks that one node holds",
        ),
        pytest.param(
            [node("n1"), node("n2")],
            [taken("x", "n1", 2)],
            job(replicas=3, gpus=2),
            ["n1", "n1", "n1"],
            id="even if it fills that node",
        ),
        pytest.param(
            [node("n1"), node("n2")],
            [taken("x", "n1", 2)],
            job(replicas=4, gpus=2),
            ["n2", "n2", "n2", "n2"],
            id="an emptier node if only that one holds the gang",
        ),
        pytest.param(
            [node("n1"), node("n2"), node("n3")],
            [taken("x", "n1", 1), taken("y", "n2", 2)],
            job(gpus=3),
            ["n2"],
            id="among servers that hold as many ranks, the one with least left over",
        ),
        pytest.param([node("n2"), node("n1")], [], job(gpus=8), ["n1"], id="equal servers by name"),
        pytest.param(
            [node("n1"), node("n2"), node("n3")],
            [taken("x", "n1", 6), taken("y", "n2", 4)],
            job(replicas=6, gpus=2),
            ["n3", "n3", "n3", "n3", "n2", "n2"],
            id="the fewest nodes",
        ),
        pytest.param(
            [*rack("r1", 2), *rack("r2", 2)],
            [taken("x", "r1-0", 1)],
            job(replicas=2, gpus=8),
            ["r2-0", "r2-1"],
            id="one rack where possible",
        ),
        pytest.param(
            [*rack("r1", 3), *rack("r2", 4)],
            [],
            job(replicas=2, gpus=8),
            ["r2-0", "r2-1"],
            id="the rack with most free first",
        ),
        pytest.param(
            [*rack("r1", 4, gpus=4), *rack("r2", 2)],
            [taken("x", "r2-0", 1)],
            job(replicas=3, gpus=4),
            ["r2-1", "r2-1", "r2-0"],
            id="the rack that needs fewest nodes before the one with most free",
        ),
        pytest.param(
            [*rack("r1", 2), *rack("r2", 3)],
            [],
            job(replicas=4, gpus=8),
            ["r2-0", "r2-1", "r2-2", "r1-0"],
            id="across racks, the roomiest rack is filled first and ranks of a rack are neighbours",
        ),
        pytest.param(
            [*rack("r1", 1), node("r1-small", gpus=4, rack="r1"), *rack("r2", 1)],
            [],
            job(replicas=5, gpus=4),
            ["r1-0", "r1-0", "r1-small", "r2-0", "r2-0"],
            id="ranks of a rack are neighbours even where its nodes differ",
        ),
        pytest.param(
            [*rack("r1", 1), node("big", gpus=16), *rack("r2", 1)],
            [],
            job(replicas=4, gpus=8),
            ["big", "big", "r1-0", "r2-0"],
            id="nodes without a rack serve gangs that need none",
        ),
        pytest.param(
            [node("n1", cores=8), node("n2", cores=48)],
            [],
            job(gpus=4, cores=10),
            ["n2"],
            id="room is counted in every resource",
        ),
        pytest.param(
            [node("n1"), node("n2", other={"rdma": 1})],
            [],
            job(other={"rdma": 1}),
            ["n2"],
            id="further resources count",
        ),
    ],
)
def test_places_the_gang(nodes: list[Node], others: list[Job], gang: Job, expected: list[str]) -> None:
    plan = decide(world(nodes, [*others, gang]), PolicyConfig(), now_s=0)
    assert plan.starts == (start(gang, *expected),)


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        pytest.param(job(replicas=2, gpus=8, within="rack"), ["b-0", "b-1"], id="rack"),
        pytest.param(job(replicas=4, gpus=2, within="node"), ["a-0", "a-0", "a-0", "a-0"], id="node"),
        pytest.param(job(replicas=16, gpus=1), ["b-0"] * 8 + ["b-1"] * 8, id="preferred without asking"),
        pytest.param(job(replicas=5, gpus=4, within="rack"), None, id="no rack holds it"),
        pytest.param(job(replicas=5, gpus=2, within="node"), None, id="no node holds it"),
    ],
)
def test_keeps_a_required_level(gang: Job, expected: list[str] | None) -> None:
    nodes = [*rack("a", 1), *rack("b", 2), node("loose"), node("stray")]
    plan = decide(world(nodes, [gang]), PolicyConfig(), now_s=0)
    assert plan.starts == (() if expected is None else (start(gang, *expected),))


def test_a_node_without_the_label_is_in_no_domain() -> None:
    gang = job(gpus=8, within="rack")
    assert decide(world([node("loose")], [gang]), PolicyConfig(), now_s=0).starts == ()


def zone(name: str, *racks: tuple[Node, ...]) -> list[Node]:
    return [
        node(f"{name}-{one.name}", rack=f"{name}-{one.labels[RACK_LABEL]}", labels={"zone": name})
        for nodes in racks
        for one in nodes
    ]


def test_widens_level_by_level() -> None:
    nodes = [*zone("east", rack("r1", 1), rack("r2", 1)), *zone("west", rack("r1", 2), rack("r2", 1))]
    free = world(nodes)
    two, three, four = (job(replicas=replicas, gpus=8) for replicas in (2, 3, 4))
    placed = {gang.replicas: decide(world(free.nodes, [gang]), ZONED, now_s=0).starts for gang in (two, three, four)}
    assert placed == {
        2: (start(two, "west-r1-0", "west-r1-1"),),
        3: (start(three, "west-r1-0", "west-r1-1", "west-r2-0"),),
        4: (start(four, "west-r1-0", "west-r1-1", "west-r2-0", "east-r1-0"),),
    }


@pytest.mark.parametrize("within", ["zone", "rack"])
def test_racks_of_two_zones_are_two_racks_even_with_one_name(within: str) -> None:
    nodes = [node(f"{zone}{number}", rack="r1", labels={"zone": zone}) for zone in "ab" for number in range(2)]
    two, three = job(replicas=2, gpus=8, within=within), job(replicas=3, gpus=8, within=within)
    assert decide(world(nodes, [two]), ZONED, now_s=0).starts == (start(two, "a0", "a1"),)
    assert decide(world(nodes[1:3], [two]), ZONED, now_s=0).starts == ()
    assert decide(world(nodes, [three]), ZONED, now_s=0).starts == ()


def test_a_rack_without_a_row_lies_within_its_zone() -> None:
    levels = (Level("zone", "zone"), Level("row", "row"), Level("rack", RACK_LABEL))
    nodes = [node(zone, rack="r1", labels={"zone": zone}) for zone in "ab"]
    gang = job(replicas=2, gpus=8, within="zone")
    assert decide(world(nodes, [gang]), replace(ZONED, levels=levels), now_s=0).starts == ()


def test_without_levels_only_the_number_of_nodes_counts() -> None:
    gang = job(replicas=3, gpus=8)
    plan = decide(world([*rack("r1", 1), *rack("r2", 2), *rack("a", 1)], [gang]), FLAT, now_s=0)
    assert plan.starts == (start(gang, "a-0", "r1-0", "r2-0"),)


def test_later_gangs_see_what_earlier_ones_took() -> None:
    first, second, third = job("a", gpus=5), job("b", gpus=5), job("c", gpus=3)
    plan = decide(world([node("n1"), node("n2")], [first, second, third]), PolicyConfig(), now_s=0)
    assert plan.starts == (start(first, "n1"), start(second, "n2"), start(third, "n1"))


def test_a_node_may_come_to_have_what_another_has_lost() -> None:
    nodes = [node("n1", gpus=1, cores=47, memory_gib=383, pods=109), node("n2", gpus=2)]
    first, second, third = job("a"), job("b"), job("c")
    plan = decide(world(nodes, [first, second, third]), PolicyConfig(), now_s=0)
    assert plan.starts == (start(first, "n1"), start(second, "n2"), start(third, "n2"))


def test_capacity_that_foreign_pods_use_or_may_take_is_not_free() -> None:
    gang = job(gpus=8)
    nodes = [node("n1"), node("n2"), node("n3")]
    snapshot = world(nodes, [gang], foreign={"n1": resources(gpus=1)}, in_flight={"n2": resources(gpus=1)})
    assert decide(snapshot, PolicyConfig(), now_s=0).starts == (start(gang, "n3"),)


@given(worlds())
def test_says_whether_a_gang_fits_without_placing_it(snapshot: World) -> None:
    index = PlannerCache().index_for(snapshot, ZONED, ExpectedRuns(RunTimes()))
    for queued in index.queue.queued_jobs:
        gang = queued.job
        candidates = index.search.rank_class(gang).candidates
        within = index.search.rank_class(gang).within
        fits = candidates.fits(gang.replicas, within)
        assert fits is (candidates.place(gang.replicas, within) is not None)
