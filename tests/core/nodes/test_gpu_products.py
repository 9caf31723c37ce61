"""A gang on several nodes prefers nodes of one GPU product, where these hold it on as few nodes and domains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from coda.cycle import decide
from coda.model import Job, Node, World
from coda.model.gpu_products import PRODUCT_LABEL
from coda.policy import PolicyConfig
from tests.builders import job, node, rack, running, world
from tests.strategies import worlds


def of(product: str, *nodes: Node) -> list[Node]:
    return [replace(one, labels={**one.labels, PRODUCT_LABEL: product}) for one in nodes]


GANG = job(replicas=2, gpus=8, cores=8)
V100 = of("V100", node("v100-0", cores=40))
L4 = of("L4", node("l4-0"), node("l4-1"), node("l4-2"))
MIXED_RACK = [*of("V100", *rack("r1", 1)), *of("L4", *rack("r1", 3)[1:2]), *of("H100", *rack("r1", 3)[2:])]
"""Three nodes of three products: more ranks than the other rack, and the first name."""


@pytest.mark.parametrize(
    ("nodes", "others", "gang", "expected"),
    [
        pytest.param([*L4[:2], *V100], [], GANG, ["l4-0", "l4-1"], id="before least left over"),
        pytest.param(
            [*L4[:2], *V100],
            [running(job("x", gpus=0, cores=16), "l4-1")],
            GANG,
            ["l4-1", "l4-0"],
            id="even if another node is as full as one of them",
        ),
        pytest.param([L4[0], *V100], [], GANG, ["v100-0", "l4-0"], id="no product holds it: nobody waits for that"),
        pytest.param(
            [*L4, *of("V100", node("v100-0", gpus=16))],
            [],
            job(replicas=3, gpus=8),
            ["v100-0", "v100-0", "l4-0"],
            id="the fewest nodes go first",
        ),
        pytest.param(
            [*L4[:2], *of("H100", node("h100-0", cores=40), node("h100-1", cores=40))],
            [],
            GANG,
            ["h100-0", "h100-1"],
            id="of two products the one with least left over",
        ),
        pytest.param(
            [*L4[:2], node("a", cores=40)], [], GANG, ["a", "l4-0"], id="one product and a node without label"
        ),
        pytest.param([*MIXED_RACK, *of("L4", *rack("r2", 2))], [], GANG, ["r2-0", "r2-1"], id="a rack of one product"),
        pytest.param(
            [*MIXED_RACK, *of("L4", node("l4-0"), node("l4-1"))], [], GANG, ["r1-0", "r1-1"], id="one rack goes first"
        ),
        pytest.param(
            [*of("L4", *rack("r1", 3)), *of("V100", *rack("r2", 2)), *of("L4", *rack("r3", 1))],
            [running(job("y", gpus=1, cores=1), "r3-0")],
            job(replicas=4, gpus=7, cores=1),
            ["r1-0", "r1-1", "r1-2", "r3-0"],
            id="as many racks",
        ),
        pytest.param(
            [*of("L4", *rack("r1", 3), *rack("r2", 1), *rack("r3", 1)), *of("V100", *rack("r2", 3)[1:])],
            [],
            job(replicas=5, gpus=8),
            ["r1-0", "r1-1", "r1-2", "r2-0", "r2-1"],
            id="fewer racks go first",
        ),
    ],
)
def test_a_gang_of_several_nodes(nodes: list[Node], others: list[Job], gang: Job, expected: list[str]) -> None:
    (start,) = decide(world(nodes, [*others, gang]), PolicyConfig(policy="arrival"), 0.0).starts
    assert list(start.nodes) == expected


def test_cpu_gangs_do_not_care() -> None:
    gang = job(replicas=2, gpus=0, cores=40)
    (start,) = decide(world([*L4[:2], *V100], [gang]), PolicyConfig(policy="arrival"), 0.0).starts
    assert start.nodes == ("v100-0", "l4-0")


@given(worlds())
def test_one_product_changes_nothing(seen: World) -> None:
    for labelled in (of("L4", *seen.nodes), [*of("L4", *seen.nodes[::2]), *seen.nodes[1::2]]):
        assert _starts(replace(seen, nodes=tuple(labelled))) == _starts(seen)


@given(worlds())
def test_products_change_no_number_of_nodes(seen: World) -> None:
    """Of the first start: later ones find other nodes free."""
    labelled = [*of("L4", *seen.nodes[::2]), *of("V100", *seen.nodes[1::2])]
    before, after = _starts(seen)[:1], _starts(replace(seen, nodes=tuple(labelled)))[:1]
    assert [(job, len(nodes), len(set(nodes))) for job, nodes in before] == [
        (job, len(nodes), len(set(nodes))) for job, nodes in after
    ]


def _starts(seen: World) -> list[tuple[str, tuple[str, ...]]]:
    return [(start.job, start.nodes) for start in decide(seen, PolicyConfig(policy="arrival"), 0.0).starts]
