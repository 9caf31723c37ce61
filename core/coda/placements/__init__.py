"""Placements that are written to jobs: the planner reviews them, the filter guards them. No job is placed here.

Read `review` (what becomes of a placement that is not in force), then `filter_rules` (what the filter lets pass) and
`lingering_use` (how long capacity counts as taken although it looks free).
"""

from coda.placements.filter_rules import InFlight, Rank, kept_for_gangs, planned_node
from coda.placements.review import (
    PlacementAction,
    PlacementDefect,
    PlacementReview,
    awaits_decision,
    placement_defects,
    placement_from_start,
    review_placements,
)

__all__ = [
    "InFlight",
    "PlacementAction",
    "PlacementDefect",
    "PlacementReview",
    "Rank",
    "awaits_decision",
    "kept_for_gangs",
    "placement_defects",
    "placement_from_start",
    "planned_node",
    "review_placements",
]
