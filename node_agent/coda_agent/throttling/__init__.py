"""Throttles on this node: made, kept in force, and undone. When to throttle is the core's decision (`coda.contention`).

Read `window` (sensed values to the core's), `eliminator` (the core over many rounds), `actuator` (carries out actions)
with its two means `bandwidth_limits` and `core_limits` (which limits to set: `core_split`), `told` (what is told of
them), then `undo` (one CPU limit) and `restore` (everything)."""

from coda_agent.throttling.actuator import Actuator
from coda_agent.throttling.eliminator import Eliminator
from coda_agent.throttling.restore import Restoration, ThrottleInForce, boot_id, in_force, restore_node
from coda_agent.throttling.told import ToldThrottles
from coda_agent.throttling.window import window_from

__all__ = [
    "Actuator",
    "Eliminator",
    "Restoration",
    "ThrottleInForce",
    "ToldThrottles",
    "boot_id",
    "in_force",
    "restore_node",
    "window_from",
]
