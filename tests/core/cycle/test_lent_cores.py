"""Who waits for cores is told that they are lent only if they are, to whom they are, and if that is the cause."""

from __future__ import annotations

import pytest

from coda.cycle import decide
from coda.model import WaitCode
from coda.model.world import VirtualCluster
from coda.policy import PolicyConfig
from tests.builders import job, node, running, world

CODA = PolicyConfig(policy="coda")
TENANTS = (
    VirtualCluster(name="red", cpu_m=40_000),
    VirtualCluster(name="blue", gpus=8, cpu_m=1000),
    VirtualCluster(name="firm", cpu_m=4000),
    VirtualCluster(name="a", cpu_m=0, parent="firm"),
    VirtualCluster(name="b", cpu_m=4000, parent="firm"),
)


def said(*asked: tuple[str, int], borrower: str, nodes: int = 1) -> list[bool]:
    """Whether waiting jobs of these tenants, with so many cores, are told of lent cores.

    Each node has 48 cores: a GPU gang holds 40 and 4 are free. A CPU job of the borrower holds 4 of the first."""
    names = [f"n{number}" for number in range(nodes)]
    held = [running(job(f"g{name}", gpus=8, cores=40, virtual_cluster="blue"), name) for name in names]
    held.append(running(job("busy", gpus=0, cores=4, virtual_cluster=borrower), names[0]))
    held += [running(job(f"x{name}", gpus=0, cores=4, virtual_cluster="red"), name) for name in names[1:]]
    wait = [job(f"w{tenant}", gpus=0, cores=cores, virtual_cluster=tenant) for tenant, cores in asked]
    plan = decide(world([node(name, cores=48) for name in names], [*held, *wait], virtual_clusters=TENANTS), CODA, 1e3)
    assert {refusal.code for refusal in plan.refusals} == {WaitCode.INSUFFICIENT_CPU}
    found = {str(refusal.job): "cores of its VirtualCluster are lent" in refusal.message for refusal in plan.refusals}
    return [found[str(one.id)] for one in wait]


@pytest.mark.parametrize(
    ("cores", "nodes", "expected"),
    [
        pytest.param(7, 1, True, id="3 are lent, and 4 free"),
        pytest.param(8, 1, False, id="one more"),
        pytest.param(30, 1, False, id="many more"),
        pytest.param(5, 2, False, id="8 are free in pieces, and less is lent than a rank asks for"),
    ],
)
def test_what_is_lent_and_what_is_free_must_be_enough(cores: int, nodes: int, expected: bool) -> None:
    assert said(("red", cores), borrower="blue", nodes=nodes) == [expected]


def test_only_what_is_lent_across_a_level_in_common_counts() -> None:
    """One part of firm has what is the other's own: that one waits for it, and red does not. Nobody else is told."""
    assert said(("red", 5), borrower="a") == [False]
    assert said(("b", 4 + 1), ("red", 4 + 1), borrower="") == [False, True]
