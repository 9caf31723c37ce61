"""The life cycle of one job: from its pods and its status to the next step.

Nothing here sees a second job, knows Kubernetes' JSON or waits: deadlines come back as `wake_s`. Read `state` (the
values), `transitions` (changes that several phases share), `stops` and `retry`, then `steps` (one function per phase;
also how long a finished job is kept, and what it waits for). `failures` and `deadlines` answer questions for them.
`evidence` says what must be read before a step, `event_rules` what deserves an event.
"""

from __future__ import annotations

from coda.lifecycle.evidence import Evidence, evidence_needed
from coda.lifecycle.state import (
    TEMPLATE_REFUSED,
    LifecycleConfig,
    PodState,
    Progress,
    RankPod,
    Situation,
    Step,
    Terms,
)
from coda.lifecycle.steps import furthest_step, step_refused

__all__ = [
    "TEMPLATE_REFUSED",
    "Evidence",
    "LifecycleConfig",
    "PodState",
    "Progress",
    "RankPod",
    "Situation",
    "Step",
    "Terms",
    "evidence_needed",
    "furthest_step",
    "step_refused",
]
