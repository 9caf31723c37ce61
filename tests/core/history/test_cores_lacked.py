"""Which waits of CPU jobs are for cores: as the planner says it in small worlds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.history.cpu_jobs import LACKS_CORES
from coda.model import Job
from coda.model.constraints import NodeConstraints
from coda.model.world import VirtualCluster
from coda.policy import PolicyConfig
from tests.builders import job, node, resources, running, world


def cpu_job(name: str, *, cores: int = 1, memory_gib: float = 1) -> Job:
    return job(name, gpus=0, cores=cores, memory_gib=memory_gib)


def on_each(cores: int, memory_gib: float = 1) -> list[Job]:
    """A CPU job on each of the two nodes, of 64 cores and 384 GiB."""
    return [running(cpu_job(f"c{number}", cores=cores, memory_gib=memory_gib), f"n{number}") for number in range(2)]


@pytest.mark.parametrize(
    ("held", "change", "lacks_cores"),
    [
        pytest.param(on_each(64), {}, True, id="all cores are taken"),
        pytest.param(on_each(30), {"may_borrow": False}, True, id="the array is full, and it does not borrow"),
        pytest.param([], {"virtual_cluster": "team"}, False, id="the limit of its own tenant"),
        pytest.param([], {"constraints": NodeConstraints(selector={"no": "node"})}, False, id="labels of no node"),
        pytest.param([], {"request": resources(cores=4, memory_gib=400)}, False, id="more memory than a node has"),
        pytest.param(on_each(4, 300), {"request": resources(cores=4, memory_gib=200)}, False, id="memory is taken"),
    ],
)
def test_what_the_planner_says_of_cores_counts_and_nothing_else(
    held: list[Job], change: dict[str, object], lacks_cores: bool
) -> None:
    waits = replace(cpu_job("waits", cores=4), **change)  # type: ignore[arg-type]
    tenants = (VirtualCluster(name="team", cpu_m=1000, may_borrow=False),)
    nodes = [node(f"n{number}", cores=64) for number in range(2)]
    plan = decide(world(nodes, [*held, waits], virtual_clusters=tenants), PolicyConfig(policy="coda"), 1000.0)
    (refusal,) = plan.refusals
    assert (refusal.code.value in LACKS_CORES) is lacks_cores, refusal
