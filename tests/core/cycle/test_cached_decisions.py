"""A decision with a cache of earlier worlds equals one without. What random worlds had found different."""

from __future__ import annotations

import pytest

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.policy import Component, PolicyConfig
from coda.promises import PromiseBook
from tests.builders import job, node, resources, running, world

CODA = PolicyConfig(policy="coda", without=frozenset({Component.ARRAYS}))


@pytest.mark.parametrize("names", ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op"])
def test_of_nodes_of_two_sizes_with_the_same_left_over_a_gang_takes_the_first_by_name(names: str) -> None:
    """Whichever had this much left over before the other, and whatever the names' hashes are in this process."""
    first, other = names[0], names[1]
    nodes, cache = (node(first, gpus=0, cores=32), node(other, gpus=8, cores=32)), PlannerCache()
    used = {first: resources(cores=20, pods=5), other: resources(cores=20, gpus=8, pods=5)}
    decide(world(nodes, foreign={other: used[other]}), CODA, 1000.0, cache)
    now = world(nodes, [job("gang", gpus=0, cores=2, replicas=2)], foreign=used)
    cached, fresh = decide(now, CODA, 1000.0, cache), decide(now, CODA, 1000.0)
    assert cached == fresh
    assert [start.nodes for start in cached.starts] == [(first, first)]


def test_the_next_cycle_is_due_at_the_same_time_for_a_gang_that_is_known_not_to_fit() -> None:
    """Four nodes hold six ranks of it, but no rack holds all four. The only gang that could stop has begun just now, so
    nobody was spared who may be stopped in ten minutes."""
    young = running(job("young", gpus=1, cores=1, resumable=True), "n0")
    gang = job("gang", gpus=4, cores=4, replicas=4, within="rack", resumable=True, user="other")
    nodes = [node(f"n{number}", gpus=8, cores=32, rack="ab"[number % 2]) for number in range(4)]
    now = world(nodes, [young, gang], foreign={"n1": resources(gpus=4)})
    cache, book = PlannerCache(), PromiseBook()
    decide(now, CODA, 100.0, cache, book=book)
    cached, fresh = decide(now, CODA, 100.0, cache, book=book), decide(now, CODA, 100.0, book=book)
    assert cached == fresh
    assert cached.wake_s == 3600.0, "once it has had a GPU-hour"
