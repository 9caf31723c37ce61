"""The vocabulary: the values that every decision takes and returns.

No decision is made here, and nothing here knows JSON. Read `resources` and `constraints`, then `job` (with the
glossary), `world` and `decision`. `live_placement`, `capacity` and `consistency` answer questions about them.
The face has the most used names; import the rest from its module.
"""

from __future__ import annotations

from coda.model.decision import Decision, WaitCode
from coda.model.job import FINISHED, Job, JobId, Phase, Placement, PlacementState
from coda.model.resources import NOTHING, Resources
from coda.model.world import Node, World

__all__ = [
    "FINISHED",
    "NOTHING",
    "Decision",
    "Job",
    "JobId",
    "Node",
    "Phase",
    "Placement",
    "PlacementState",
    "Resources",
    "WaitCode",
    "World",
]
