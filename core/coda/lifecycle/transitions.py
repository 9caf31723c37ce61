"""Changes that several phases share: each returns the new progress and the pods to delete; and the waiting clock, which
counts from the last moment at which the job began to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from coda.lifecycle.failures import nodes_to_avoid
from coda.lifecycle.state import Progress, Situation, Step, deletable
from coda.model.job import Phase, PlacementState

LAUNCHED = "Launched"
"""The reason of a gang whose pods all exist."""
STARTING = "Starting"
"""The reason of a gang whose pods are bound, if nothing keeps them from starting."""


def suspend(now: Situation) -> Step:
    """Stop the attempt, if there is one, and wait until `spec.suspend` is false. It does not count as a failure."""
    suspended = replace(
        now.progress,
        phase=Phase.SUSPENDED,
        generation=now.generation,
        launch_s=0.0,
        start_s=0.0,
        not_before_s=0.0,
        in_a_row=0,
        succeeded=frozenset(),
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
        succeeded=frozenset(),
        in_a_row=0,
        not_before_s=0.0,
        generation=now.generation,
        memory=None,
        reason="Edited",
        message="the edited spec is accepted; waits for a placement",
    )
    return Step(progress=taken, accept=True)


def enqueue(now: Situation, now_s: float, *, attempt: int, not_before_s: float, reason: str, message: str) -> Step:
    """Wait for a placement of `attempt`, from now on; the job keeps its place in the queue."""
    queued = replace(
        now.progress,
        phase=Phase.QUEUED,
        attempt=attempt,
        generation=now.generation,
        queued_s=now.progress.queued_s or now_s,
        waiting_s=now_s,
        not_before_s=not_before_s,
        launch_s=0.0,
        avoid=nodes_to_avoid(now, now_s),
        reason=reason,
        message=message,
        resize=None,
        succeeded=frozenset(),
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


def with_served(step: Step, now: Situation, now_s: float) -> Step:
    """Count how long the attempt held its GPUs, if this step ends it. Whole seconds: so it is written as it is."""
    if not now.progress.launch_s or step.progress.launch_s:
        return step
    served_s = now.progress.served_s + max(0, int(now_s - now.progress.launch_s))
    return replace(step, progress=replace(step.progress, served_s=served_s))


def finish(now: Situation, now_s: float, phase: Phase, why: tuple[str, str]) -> Step:
    """End the job with `why` (reason, message). Pods that have ended stay, for their logs."""
    reason, message = why
    done = replace(now.progress, phase=phase, completion_s=now_s, reason=reason, message=message)
    return Step(progress=done, delete=tuple(pod for pod in deletable(now.pods) if not pod.ended))


class GangSize(NamedTuple):
    """What a gang asks for. `amounts`: of one rank, by resource."""

    replicas: int
    amounts: Mapping[str, int]


def is_enlarged(before: GangSize, after: GangSize) -> bool:
    """True if a gang has more ranks than before, or its ranks ask for more of anything."""
    more = any(amount > before.amounts.get(name, 0) for name, amount in after.amounts.items())
    return more or after.replicas > before.replicas


def after_acceptance(
    before: Progress, after: Progress, size_before: GangSize | None, size: GangSize, now_s: float
) -> Progress:
    """Return `after`, the progress of a job that is accepted at this size.

    If an edit enlarged it, it waits from now on and goes to the end of the queue: else a small job that cannot start
    would keep a place for a large one."""
    edited = before.generation != after.generation and after.phase is Phase.QUEUED
    if not edited or size_before is None or not is_enlarged(size_before, size):
        return after
    return replace(after, queued_s=now_s, waiting_s=now_s)
