"""A taint `PreferNoSchedule` decides between nodes with as many GPUs and cores left over, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleSnapshot, decide, run_cycle
from coda.model import Job, Node, Resources, World
from coda.model.capacity import free_by_node
from coda.model.constraints import NodeConstraints, Taint, Toleration
from coda.model.decision import Start
from coda.policy import PolicyConfig
from tests.builders import job, node, rack, running, world
from tests.strategies import worlds

SOFT = Taint(key="upgrade", value="next", effect="PreferNoSchedule")


def disliked(nodes: Iterable[Node], *names: str) -> list[Node]:
    return [replace(one, taints=(SOFT,)) if one.name in names else one for one in nodes]


def tolerant(*, effect: str) -> NodeConstraints:
    return NodeConstraints(tolerations=(Toleration(key="upgrade", operator="Exists", effect=effect),))


TWO = [node("n1"), node("n2")]
RACKS = [*rack("r1", 2), *rack("r2", 2)]


@pytest.mark.parametrize(
    ("nodes", "others", "gang", "expected"),
    [
        pytest.param(disliked(TWO, "n1"), [], job(gpus=8), ["n2"], id="of equal nodes the other one"),
        pytest.param(disliked(TWO, "n1", "n2"), [], job(gpus=8), ["n1"], id="all alike"),
        pytest.param(
            disliked(TWO, "n1"), [running(job("x", gpus=2), "n1")], job(), ["n1"], id="a fuller node is no equal one"
        ),
        pytest.param(
            disliked(TWO, "n1"), [running(job("x", gpus=1), "n2")], job(gpus=8), ["n1"], id="it makes nobody wait"
        ),
        pytest.param(disliked(TWO, "n1"), [], job(replicas=3, gpus=2), ["n2"] * 3, id="several ranks on one node"),
        pytest.param(
            disliked([*TWO, node("n3")], "n1"), [], job(replicas=2, gpus=8), ["n2", "n3"], id="a gang of several nodes"
        ),
        pytest.param(disliked(RACKS, "r1-0"), [], job(replicas=2, gpus=8), ["r2-0", "r2-1"], id="the other rack"),
        pytest.param(
            disliked(RACKS, "r1-0"), [], job(replicas=3, gpus=8), ["r2-0", "r2-1", "r1-1"], id="and across racks"
        ),
        pytest.param(
            disliked([*RACKS, node("loose")], "r1-0", "r2-0"),
            [],
            job(replicas=2, gpus=8),
            ["r1-1", "r1-0"],
            id="one rack before all",
        ),
        pytest.param(
            disliked(TWO, "n1"),
            [],
            job(gpus=8, constraints=tolerant(effect="PreferNoSchedule")),
            ["n1"],
            id="who tolerates it",
        ),
        pytest.param(
            disliked(TWO, "n1"), [], job(gpus=8, constraints=tolerant(effect="")), ["n1"], id="or all effects of it"
        ),
        pytest.param(
            disliked(TWO, "n1"),
            [],
            job(gpus=8, constraints=tolerant(effect="NoSchedule")),
            ["n2"],
            id="who tolerates another effect",
        ),
    ],
)
def test_of_equal_nodes_those_without_the_taint_come_first(
    nodes: list[Node], others: list[Job], gang: Job, expected: list[str]
) -> None:
    starts = decide(world(nodes, [*others, gang]), PolicyConfig(), now_s=0).starts
    assert [list(start.nodes) for start in starts] == [expected]


PAGE = 4096
"""What nodes of one model report of their memory differs by a few of these."""


def less(nodes: Iterable[Node], pages: Mapping[str, int]) -> list[Node]:
    """The nodes, each with so many pages of memory less."""
    return [
        replace(one, allocatable=one.allocatable - Resources(memory_bytes=PAGE * pages.get(one.name, 0)))
        for one in nodes
    ]


FOUR = [*TWO, node("n3"), node("n4")]


@pytest.mark.parametrize("pages", [{"n1": 1, "n2": 2}, {"n1": 2, "n2": 1}, {"n3": 1, "n4": 2}], ids=str)
@pytest.mark.parametrize(
    ("gang", "policy", "nodes"),
    [
        pytest.param(job(gpus=8), "arrival", 1, id="one rank"),
        pytest.param(job(gpus=2), "coda", 1, id="one rank by a score"),
        pytest.param(job(gpus=0, cores=4), "arrival", 1, id="a CPU job"),
        pytest.param(job(gpus=0, cores=4), "coda", 1, id="a CPU job by a score"),
        pytest.param(job(replicas=3, gpus=2), "arrival", 1, id="several ranks on one node"),
        pytest.param(job(replicas=2, gpus=8), "arrival", 2, id="on two nodes"),
        pytest.param(job(replicas=3, gpus=8), "arrival", 3, id="on more than are left"),
    ],
)
def test_nodes_whose_memory_differs_by_little_are_alike(
    pages: dict[str, int], gang: Job, policy: str, nodes: int
) -> None:
    small = less(disliked(FOUR, "n1", "n2"), pages)
    (start,) = decide(world(small, [gang]), PolicyConfig(policy=policy), now_s=0).starts
    assert (len(set(start.nodes)), len(set(start.nodes) & {"n3", "n4"})) == (nodes, min(nodes, 2))


@pytest.mark.parametrize("nodes", [TWO, less(TWO, {"n1": 1})], ids=["alike", "less memory"])
def test_a_taint_counts_from_when_it_is_set_until_it_is_taken_away(nodes: list[Node]) -> None:
    cache = CycleCache()
    for names, expected in (((), "n1"), (("n1",), "n2"), (("n1", "n2"), "n1"), (("n2",), "n1"), (("n1",), "n2")):
        snapshot = CycleSnapshot(world=world(disliked(nodes, *names), [job(gpus=8)]), epoch=1, now_s=0.0)
        assert [start.nodes for start in run_cycle(snapshot, PolicyConfig(), cache).decision.starts] == [(expected,)]


def outcome(starts: Iterable[Start]) -> list[tuple[str, int]]:
    """Which jobs start, and on how many nodes each."""
    return [(one.job, len(set(one.nodes))) for one in starts]


@given(worlds(max_jobs=3), st.data())
def test_it_makes_no_job_wait_and_spreads_none_wider(snapshot: World, data: st.DataObject) -> None:
    """Of one job that waits: of several, the first one's nodes decide what is left for the next."""
    waiting = [one for one in snapshot.jobs if one.placement is None][:1]
    every = [one.name for one in snapshot.nodes]
    names = data.draw(st.sets(st.sampled_from(every)) if every else st.just(set()))
    pages = data.draw(st.fixed_dictionaries({name: st.integers(0, 2) for name in every}))
    plain = replace(
        snapshot,
        nodes=tuple(less(snapshot.nodes, pages)),
        jobs=tuple([one for one in snapshot.jobs if one.placement is not None] + waiting),
    )
    tainted = replace(
        plain,
        nodes=tuple(replace(one, taints=(*one.taints, SOFT)) if one.name in names else one for one in plain.nodes),
    )
    before, after = (decide(each, PolicyConfig(), now_s=0.0) for each in (plain, tainted))
    assert outcome(before.starts) == outcome(after.starts)


@st.composite
def similar(draw: st.DrawFn) -> tuple[list[Node], list[Job], set[str]]:
    """Nodes of one model, as they are in a cluster; jobs that hold parts of them; and the names of some nodes."""
    names = [f"n{number}" for number in range(draw(st.integers(2, 6)))]
    pages = draw(st.fixed_dictionaries({name: st.integers(0, 2) for name in names}))
    held = st.tuples(st.sampled_from((0, 4, 6)), st.sampled_from((2, 3)))
    held_by_name = {name: draw(held) for name in names}
    others = [running(job(f"on-{name}", gpus=gpus, cores=cores), name) for name, (gpus, cores) in held_by_name.items()]
    return less([node(name) for name in names], pages), others, draw(st.sets(st.sampled_from(names)))


@settings(max_examples=150, deadline=None)
@given(similar(), st.sampled_from(((1, 1), (1, 2), (1, 8), (2, 1), (2, 2), (3, 2))))
def test_on_one_node_it_decides_after_gpus_and_cores_and_before_memory(
    seen: tuple[list[Node], list[Job], set[str]], shape: tuple[int, int]
) -> None:
    """Without the taint, and with it on all nodes, the node is the same: that of least memory left, then by name."""
    nodes, others, names = seen
    gang = job(replicas=shape[0], gpus=shape[1])
    free = free_by_node(world(nodes, others))

    def best(marked: set[str]) -> str | None:
        fitting = [name for name in free if gang.request.times_in(free[name]) >= gang.replicas]
        left = {name: (free[name].gpus, free[name].cpu_m, name in marked, free[name].memory_bytes) for name in fitting}
        return min(fitting, key=lambda name: (*left[name], name), default=None)

    every = {one.name for one in nodes}
    for marked, expected in ((names, best(names)), (set(), best(set())), (every, best(set()))):
        starts = decide(world(disliked(nodes, *marked), [*others, gang]), PolicyConfig(), now_s=0.0).starts
        if expected is None:
            assert all(len(set(start.nodes)) > 1 for start in starts)
        else:
            assert [set(start.nodes) for start in starts] == [{expected}]
