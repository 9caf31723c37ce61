"""Changes that several phases share: each returns the new progress and the pods to delete."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.lifecycle.failures import Failure
from coda.lifecycle.state import LifecycleConfig, Progress, Situation, Step, deletable
from coda.model.job import Phase, PlacementState, StopCause, StopOrder

LAUNCHED = "Launched"
"""The reason of a gang whose pods all exist."""
STARTING = "Starting"
"""The reason of a gang whose pods are bound, if nothing keeps them from starting."""
_STOPPED: Final = {StopCause.RECLAIM: "Reclaimed", StopCause.MIGRATE: "Migrated", StopCause.PREEMPT: "Preempted"}


def suspend(now: Situation) -> Step:
    """Stop the attempt, if there is one, and wait until `spec.suspend` is false. It does not count as a failure."""
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
    """Accept an edit of a waiting job.

    A released placement may have led to pods that are not seen yet: a new attempt separates them from the next one."""
    placement = now.placement
    is_current = placement is not None and placement.attempt >= now.progress.attempt
    released = placement is not None and is_current and placement.state is PlacementState.RELEASED
    taken = replace(
        now.progress,
        attempt=now.progress.attempt + (1 if released else 0),
        generation=now.generation,
        reason="Edited",
        message="the edited spec is accepted; waits for a placement",
    )
    return Step(progress=taken, accept=True)


def enqueue(now: Situation, now_s: float, *, attempt: int, not_before_s: float, reason: str, message: str) -> Step:
    """Wait for a placement of `attempt`; the job keeps its age in the queue."""
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
    """Return the progress in phase Launched: from now on, a missing pod fails the attempt."""
    message = f"all {replicas} pods of attempt {progress.attempt} are created"
    return replace(progress, phase=Phase.LAUNCHED, launch_s=launch_s, returned=False, reason=LAUNCHED, message=message)


def all_bound(now: Situation) -> Progress:
    """Return the progress in phase Starting: every rank has its node."""
    message = f"all {now.terms.replicas} pods are bound"
    return replace(now.progress, phase=Phase.STARTING, reason=STARTING, message=message)


def roll_back(now: Situation, failure: Failure, now_s: float, config: LifecycleConfig) -> Step:
    """Count the failure; then begin the next attempt, or fail the job."""
    failures = now.progress.failures + (1 if failure.own else 0)
    disruptions = now.progress.disruptions + (0 if failure.own else 1)
    counted = replace(now.progress, failures=failures, disruptions=disruptions)
    if failure.own and failures > now.terms.retries:
        message = f"{failure.message}; all {failures} allowed attempts have failed"
        return finish(replace(now, progress=counted), now_s, Phase.FAILED, (failure.reason, message))
    if failure.own:
        first_s, limit_s, doublings = config.failure_backoff_s, config.failure_backoff_limit_s, failures - 1
    else:
        first_s, limit_s, doublings = config.disruption_backoff_s, config.disruption_backoff_limit_s, disruptions - 1
    avoid = dict(counted.avoid)
    if failure.node is not None:
        avoid[failure.node] = now_s + config.avoid_node_s
    progress = replace(
        counted,
        phase=Phase.RESTARTING,
        not_before_s=now_s + min(limit_s, first_s * 2.0 ** min(doublings, 30)),
        avoid=avoid,
        reason=failure.reason,
        message=f"attempt {now.progress.attempt}: {failure.message}",
    )
    return Step(progress=progress, delete=deletable(now.pods))


def stop(now: Situation, order: StopOrder) -> Step:
    """End the attempt for another job. It does not count as a failure, and the next attempt has no back-off."""
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
    """End the job with `why` (reason, message). Pods that have ended stay, for their logs."""
    reason, message = why
    done = replace(now.progress, phase=phase, completion_s=now_s, reason=reason, message=message)
    return Step(progress=done, delete=tuple(pod for pod in deletable(now.pods) if not pod.ended))
