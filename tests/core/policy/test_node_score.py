"""The scores of nodes on examples worked out by hand."""

from __future__ import annotations

from coda.cycle import decide
from coda.policy import PolicyConfig
from coda.policy.node_score import (
    Typical,
    balanced_allocation,
    fragmented_gpus,
    least_allocated,
    least_fragmenting,
    mix_of,
    spread_and_balanced,
)
from tests.builders import job, node, resources, running, world

MIX = (Typical(1, 2, 0.5), Typical(4, 8, 0.25), Typical(0, 4, 0.25))


def test_gpus_are_fragmented_for_those_who_cannot_use_them() -> None:
    # 3 GPUs, 8 cores: jobs of one GPU can use them (1/2); those of four (1/4) and those of none (1/4) cannot.
    assert fragmented_gpus(resources(gpus=3, cores=8), MIX) == 1.5
    # 4 GPUs but 7 cores: four-GPU jobs lack a core.
    assert fragmented_gpus(resources(gpus=4, cores=7), MIX) == 2.0
    assert fragmented_gpus(resources(gpus=4, cores=8), MIX) == 1.0
    assert fragmented_gpus(resources(gpus=4, cores=1), MIX) == 4.0
    assert fragmented_gpus(resources(gpus=0, cores=8), MIX) == 0.0


def test_the_gradient_is_what_a_start_adds() -> None:
    # From 4 GPUs and 8 cores (1.0 fragmented) to 3 and 6 (1.5): +0.5; from 2 and 4 (1.0) to 1 and 2 (0.5): -0.5.
    one = resources(gpus=1, cores=2)
    assert least_fragmenting(one, resources(gpus=4, cores=8), resources(), MIX) == (0.5,)
    assert least_fragmenting(one, resources(gpus=2, cores=4), resources(), MIX) == (-0.5,)


def test_fgd_breaks_no_whole_node_while_a_broken_one_has_room() -> None:
    nodes = [node("a", gpus=4, cores=8), node("b", gpus=4, cores=8)]
    jobs = [running(job("old", gpus=2, cores=4), "b"), job("new", gpus=1, cores=2)]
    plan = decide(world(nodes, jobs), PolicyConfig(policy="fgd", mix=MIX), 0.0)
    assert plan.starts[0].nodes == ("b",)


def test_kubernetes_counts_in_whole_hundredths_of_the_node() -> None:
    size = resources(cores=3, memory_gib=4)
    # cores: (3 - 1) / 3 = 66 of 100; memory: (2 - 1) / 4 = 25; averaged 45.
    assert least_allocated(resources(cores=1, memory_gib=1), resources(cores=3, memory_gib=2), size) == 45


def test_kubernetes_prefers_the_node_whose_cores_and_memory_come_closer() -> None:
    size = resources(cores=8, memory_gib=8)
    one = resources(cores=4, memory_gib=0)
    # Memory used: 4 of 8. Unused cores differ from it by 1/2 (75 of 100); with 4 cores used they are alike (100).
    assert balanced_allocation(one, resources(cores=8, memory_gib=4), size) == 50 + (50 + 100 - 75) // 2
    # An empty node is balanced (100) and then differs by 1/2 (75).
    assert balanced_allocation(one, size, size) == 50 + (50 + 75 - 100) // 2
    assert balanced_allocation(one, resources(cores=8), resources(cores=8)) == 75
    # Least allocated alone prefers the empty node, 75 against 50; balance adds 37 and 87.
    used, empty = (spread_and_balanced(one, free, size, ())[0] for free in (resources(cores=8, memory_gib=4), size))
    assert (used, empty) == (-(50 + 87), -(75 + 62))


def test_the_mix_of_a_workload_is_what_is_commonest_in_it() -> None:
    ranks = [(1, 4)] * 60 + [(0, 2)] * 30 + [(8, 40)] * 6 + [(2, 9)] * 4
    assert mix_of(ranks) == (Typical(1, 4, 60.0), Typical(0, 2, 30.0), Typical(8, 40, 6.0))
    assert mix_of([]) == ()
