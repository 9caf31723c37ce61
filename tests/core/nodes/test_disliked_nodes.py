"""A taint `PreferNoSchedule` decides between nodes that fit equally well, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleSnapshot, decide, run_cycle
from coda.model import Job, Node, World
from coda.model.constraints import NodeConstraints, Taint, Toleration
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


def test_a_taint_counts_from_when_it_is_set_until_it_is_taken_away() -> None:
    cache = CycleCache()
    for names, expected in (((), "n1"), (("n1",), "n2"), (("n1", "n2"), "n1"), (("n2",), "n1"), (("n1",), "n2")):
        snapshot = CycleSnapshot(world=world(disliked(TWO, *names), [job(gpus=8)]), epoch=1, now_s=0.0)
        assert [start.nodes for start in run_cycle(snapshot, PolicyConfig(), cache).decision.starts] == [(expected,)]


@given(worlds(max_jobs=3), st.data())
def test_it_makes_no_job_wait_and_spreads_none_wider(snapshot: World, data: st.DataObject) -> None:
    """Of one job that waits: of several, the first one's nodes decide what is left for the next."""
    waiting = [one for one in snapshot.jobs if one.placement is None][:1]
    names = data.draw(
        st.sets(st.sampled_from([one.name for one in snapshot.nodes])) if snapshot.nodes else st.just(set())
    )
    plain = replace(snapshot, jobs=tuple([one for one in snapshot.jobs if one.placement is not None] + waiting))
    tainted = replace(
        plain,
        nodes=tuple(replace(one, taints=(*one.taints, SOFT)) if one.name in names else one for one in plain.nodes),
    )
    before, after = (decide(each, PolicyConfig(), now_s=0.0) for each in (plain, tainted))
    assert [(one.job, len(set(one.nodes))) for one in before.starts] == [
        (one.job, len(set(one.nodes))) for one in after.starts
    ]
