"""The contention eliminator: which CPU pods are throttled for which training jobs, and until when.

Nothing here reads counters, writes limits or reads a clock. Read `measurements` (what may be acted on), `levels` (two
utilisations compared), `reference` (is a training job slowed?), `throttles` (one step down or up), `socket_state`,
`trial` (does it help?), `release` and `socket_decision` (when to do what), then `eliminator`: `observe` takes one
window of a node. A *socket* is any part of a node with memory controllers of its own, however many caches it has.
"""

from __future__ import annotations

from coda.contention.config import ContentionConfig
from coda.contention.eliminator import EliminatorState, Window, disturbed_at_s, observe
from coda.contention.reference import TrainingSample
from coda.contention.throttles import Action, Hardware, Means, PodSample, Protection, ThrottleReason

__all__ = [
    "Action",
    "ContentionConfig",
    "EliminatorState",
    "Hardware",
    "Means",
    "PodSample",
    "Protection",
    "ThrottleReason",
    "TrainingSample",
    "Window",
    "disturbed_at_s",
    "observe",
]
