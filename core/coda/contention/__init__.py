"""The contention eliminator: which CPU pods are throttled for which training jobs, and until when.

Nothing here reads counters, writes limits or reads a clock. Read `measurements` (what may be acted on), `reference` (is
a training job slowed?), `throttles` (one step down or up), `socket_state`, `release` and
`socket_decision` (when to take a step), then `eliminator`: `observe` takes one window of a node. A *socket* is any
part of a node with memory bandwidth of its own; on some processors that is a group of cores with one cache.
"""

from __future__ import annotations

from coda.contention.config import ContentionConfig
from coda.contention.eliminator import EliminatorState, Window, observe
from coda.contention.reference import TrainingSample
from coda.contention.throttles import Action, Hardware, Means, PodSample, Protection, ThrottleReason, percent_limits

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
    "observe",
    "percent_limits",
]
