from __future__ import annotations

import random

from coda.model import Resources
from coda.model.resources import CPU, GPUS, MEMORY, amount_of
from coda.nodes import Bottlenecks, FreeCapacity, NodeSearch, RankClass
from coda.nodes.bottleneck import Limit, Side
from coda.policy import PolicyConfig
from tests.builders import GIB, job, node, resources

NODES = [node(f"n{number}") for number in range(6)]


def rank_class_of(*free: tuple[int, int, int], gpus: int = 1, cores: int = 1, memory_gib: int = 1) -> RankClass:
    """Nodes with this many GPUs, cores and GiB free, and gangs that ask for this on each."""
    capacity = FreeCapacity(NODES[: len(free)], ())
    for number, (free_gpus, free_cores, free_gib) in enumerate(free):
        capacity.set_free(number, resources(gpus=free_gpus, cores=free_cores, memory_gib=free_gib, pods=10))
    return NodeSearch(capacity, PolicyConfig()).rank_class(job(gpus=gpus, cores=cores, memory_gib=memory_gib))


def test_two_scarce_resources_are_all_that_is_said() -> None:
    found = rank_class_of((4, 30, 10), (2, 40, 300), gpus=8, cores=44, memory_gib=20)
    limits = (Limit(GPUS, 0, 4), Limit(CPU, 0, 40_000))
    assert Bottlenecks().shortages(found, 1) == (Side(None, limits),)


def test_one_scarce_resource_and_what_the_nodes_with_another_lack() -> None:
    found = rank_class_of((4, 44, 10), (2, 20, 300), gpus=8, cores=44, memory_gib=20)
    assert Bottlenecks().shortages(found, 1) == (
        Side(None, (Limit(GPUS, 0, 4),)),
        Side(CPU, (Limit(MEMORY, 0, 10 * GIB),)),
    )


def test_without_a_usable_node_nothing_is_short() -> None:
    assert Bottlenecks().shortages(rank_class_of(), 1) == ()


def test_what_was_kept_says_the_same_as_what_is_worked_out_again() -> None:
    rng = random.Random(1)
    found = rank_class_of(*[(8, 48, 384)] * len(NODES), gpus=8, cores=44, memory_gib=200)
    capacity, kept = found.groups.capacity, Bottlenecks()
    for _ in range(300):
        for number in rng.sample(range(len(NODES)), rng.randint(1, 2)):
            gpus, cores, memory_gib = rng.choice((2, 4, 8)), rng.choice((8, 40, 48)), rng.choice((10, 300))
            capacity.set_free(number, resources(gpus=gpus, cores=cores, memory_gib=memory_gib, pods=10))
        found.groups.refresh()
        sides = kept.shortages(found, 2)
        assert sides == Bottlenecks().shortages(found, 2)
        assert kept.alternatives(found, 2, GPUS) == Bottlenecks().alternatives(found, 2, GPUS)
        for side in sides:
            nodes = [capacity.free(number) for number in range(len(NODES))]
            enough = [free for free in nodes if side.enough_of is None or _holds(found, free, side.enough_of)]
            for limit in side.limits:
                assert limit.ranks or limit.most == max(amount_of(free, limit.name) for free in enough)
                assert limit.ranks == sum(_holds(found, free, limit.name) for free in enough)


def _holds(rank_class: RankClass, free: Resources, name: str) -> bool:
    return amount_of(free, name) >= amount_of(rank_class.request, name)
