"""A first write releases a placement only where a review of the committed placement would."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from coda.cycle import decide
from coda.model import World
from coda.model.capacity import free_by_node
from coda.placements import PlacementAction, placement_from_start, review_placements
from coda.placements.review import AT_ONCE_NODES, fits_at_once
from coda.policy import PolicyConfig
from tests.builders import job, node
from tests.strategies import NOW_S, worlds

CONFIG = PolicyConfig()


@given(worlds(), worlds())
def test_at_once_is_what_a_review_would_release(seen: World, other: World) -> None:
    """`seen` is what was decided on; meanwhile nodes, pods and pods in flight became those of `other`."""
    now = replace(seen, nodes=other.nodes, used=other.used, in_flight=other.in_flight, leaving={})
    for start in decide(seen, CONFIG, NOW_S).starts:
        found = next(entry for entry in seen.jobs if entry.id == start.job)
        placement = placement_from_start(start, plan_id="new", epoch=1, now_s=NOW_S, config=CONFIG)
        placed = [replace(entry, placement=placement) if entry is found else entry for entry in seen.jobs]
        reviews = review_placements(replace(now, jobs=tuple(placed)), epoch=1, now_s=NOW_S)
        actions = [review.action for review in reviews if review.job.id == start.job]
        at_once = fits_at_once(found, start.nodes, {one.name: one for one in now.nodes}, free_by_node(now))
        if at_once:
            assert actions == [PlacementAction.RELEASE]
        elif not found.unbound:  # what its earlier pods withhold counts twice beside the new placement
            assert actions != [PlacementAction.RELEASE]


def test_a_gang_on_many_nodes_is_committed_first() -> None:
    names = [f"n{number}" for number in range(AT_ONCE_NODES + 1)]
    nodes = {name: node(name) for name in names}
    free = {name: one.allocatable for name, one in nodes.items()}
    gang = job("gang", replicas=len(names))
    assert not fits_at_once(gang, names, nodes, free)
    assert fits_at_once(gang, names[1:], nodes, free)
