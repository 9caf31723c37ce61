"""The changes that several phases share: each returns what the job becomes, and which pods go.

What must not live here: whether a change is due; that is `lifecycle`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.lifecycle.failures import Failure
from coda.lifecycle.state import LifecycleConfig, Progress, Situation, Step, deletable
from coda.model.job import Phase, PlacementState, StopCause, StopOrder

LAUNCHED = "Launched"
"""The reason of a gang whose pods all exist."""
STARTING = "Starting"
"""The reason of a gang whose pods are bound and that nothing keeps from starting."""
_STOPPED: Final = {StopCause.RECLAIM: "Reclaimed", StopCause.MIGRATE: "Migrated", StopCause.PREEMPT: "Preempted"}


def suspend(now: Situation) -> Step:
    """Stop the attempt, if there is one, and wait for `spec.suspend` to become false. Counts as no failure."""
    suspended = replace(
        now.progress,
        phase=Phase.SUSPENDED,
        generation=now.generation,
        launch_s=0.0,
        start_s=0.0,
        not_before_s=0.0,
        reason="Suspended",
        message="spec.suspend is true",
    )
    return Step(progress=suspended, delete=deletable(now.pods))


def accept_again(now: Situation) -> Step:
    """Take an edit of a waiting job over.

    A released plan may have led to creates that nobody sees yet: a new attempt keeps them from the next plan."""
    plan = now.placement
    released = plan is not None and plan.attempt >= now.progress.attempt and plan.state is PlacementState.RELEASED
    taken = replace(
        now.progress,
        attempt=now.progress.attempt + (1 if released else 0),
        generation=now.generation,
        reason="Edited",
        message="the edited spec is accepted; waits for a placement",
    )
    return Step(progress=taken, accept=True)


def enqueue(now: Situation, now_s: float, *, attempt: int, not_before_s: float, reason: str, message: str) -> Step:
    """Wait for a placement of `attempt`; the age in the queue is kept."""
    queued = replace(
        now.progress,
        phase=Phase.QUEUED,
        attempt=attempt,
        generation=now.generation,
        queued_s=now.progress.queued_s or now_s,
        not_before_s=not_before_s,
        launch_s=0.0,
        avoid={node: until_s for node, until_s in now.progress.avoid.items() if until_s > now_s},
        reason=reason,
        message=message,
        resize=None,
    )
    return Step(progress=queued, accept=True)


def all_created(progress: Progress, replicas: int, launch_s: float) -> Progress:
    """Launched: from here on a missing pod fails the attempt."""
    message = f"all {replicas} pods of attempt {progress.attempt} are created"
    return replace(progress, phase=Phase.LAUNCHED, launch_s=launch_s, returned=False, reason=LAUNCHED, message=message)


def all_bound(now: Situation) -> Progress:
    """Starting: every rank has its node."""
    message = f"all {now.terms.replicas} pods are bound"
    return replace(now.progress, phase=Phase.STARTING, reason=STARTING, message=message)


def roll_back(now: Situation, fault: Failure, now_s: float, config: LifecycleConfig) -> Step:
    """Count the fault, then either the next attempt or the end."""
    failures = now.progress.failures + (1 if fault.own else 0)
    disruptions = now.progress.disruptions + (0 if fault.own else 1)
    counted = replace(now.progress, failures=failures, disruptions=disruptions)
    if fault.own and failures > now.terms.retries:
        message = f"{fault.message}; all {failures} allowed attempts have failed"
        return finish(replace(now, progress=counted), now_s, Phase.FAILED, (fault.reason, message))
    if fault.own:
        first_s, limit_s, doublings = config.failure_backoff_s, config.failure_backoff_limit_s, failures - 1
    else:
        first_s, limit_s, doublings = config.disruption_backoff_s, config.disruption_backoff_limit_s, disruptions - 1
    avoid = dict(counted.avoid)
    if fault.node is not None:
        avoid[fault.node] = now_s + config.avoid_node_s
    progress = replace(
        counted,
        phase=Phase.RESTARTING,
        not_before_s=now_s + min(limit_s, first_s * 2.0 ** min(doublings, 30)),
        avoid=avoid,
        reason=fault.reason,
        message=f"attempt {now.progress.attempt}: {fault.message}",
    )
    return Step(progress=progress, delete=deletable(now.pods))


def stop(now: Situation, order: StopOrder) -> Step:
    """End the attempt for another job; counts as no failure, and the next one waits for nothing but its turn."""
    stopped = replace(
        now.progress,
        phase=Phase.RESTARTING,
        returned=order.cause is not StopCause.PREEMPT,
        not_before_s=0.0,
        reason=_STOPPED[order.cause],
        message=f"attempt {now.progress.attempt}: stopped so that {order.by} gets its room",
    )
    return Step(progress=stopped, delete=deletable(now.pods))


def finish(now: Situation, now_s: float, phase: Phase, why: tuple[str, str]) -> Step:
    """End the job with (reason, message); pods that have ended stay for their logs."""
    reason, message = why
    done = replace(now.progress, phase=phase, completion_s=now_s, reason=reason, message=message)
    return Step(progress=done, delete=tuple(pod for pod in deletable(now.pods) if not pod.ended))
