"""What kube-scheduler says of the node that a released pod is pinned to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_UNSCHEDULABLE: Final = "Unschedulable"
"""The reason of a pod that no node takes. An error, of an extender perhaps, has another one."""

_OF_OTHER_NODES: Final = (
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
)
"""What it says of all nodes but the pinned one. Source: kube-scheduler 1.36, node_affinity.go and schedule_one.go."""

_OUR_OWN: Final = "coda: "
"""Begins each reason of the extender."""

_OF_ROOM: Final = ("Insufficient ", "Too many pods")

_MOST_CHARACTERS: Final = 200


class SchedulerRefusal(NamedTuple):
    """`is_of_room`: it lacks only what the planner counts too, so others took it in between."""

    said: str
    is_of_room: bool = False


def refusal_from_json(item: Mapping[str, Any]) -> SchedulerRefusal | None:
    """Return why kube-scheduler refuses this pod on its node; None if it does not, or only because Coda does."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    scheduled: Mapping[str, Any] = next((one for one in conditions if one["type"] == "PodScheduled"), {})
    if scheduled.get("status") != "False" or scheduled.get("reason") != _UNSCHEDULABLE:
        return None
    text = " ".join(str(scheduled.get("message") or "").split())
    of_nodes = text.partition(" preemption: ")[0].partition("available: ")[2].rstrip(".")
    clauses = [clause.lstrip("0123456789 ") for clause in of_nodes.split(", ")]
    said = [clause for clause in clauses if clause and not clause.startswith(_OF_OTHER_NODES)]
    if any(clause.startswith(_OUR_OWN) for clause in said):
        return None
    is_of_room = bool(said) and all(clause.startswith(_OF_ROOM) for clause in said)
    return SchedulerRefusal((", ".join(said) or text)[:_MOST_CHARACTERS], is_of_room)
