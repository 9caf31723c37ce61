"""What one job needs next: `next_step(situation, now_s, config) -> Step`, called by the operator on every change.

Level-triggered: it looks only at what is (progress in the status, plan, pods, nodes), so any step may be repeated and
the operator may die between any two writes. Nothing here knows Kubernetes' JSON or waits; deadlines come back as
`wake_s`.

The rule of a gang: until all pods of an attempt were created (phase QUEUED with a released plan) missing ones are
created; from LAUNCHED on a missing pod fails the attempt. A failed attempt is rolled back whole: RESTARTING until its
pods are gone, then QUEUED with the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coda.faults import (
    Fault,
    active_deadline_over,
    attempt_fault,
    bind_deadline_missed,
    gang_fault,
    start_deadline_missed,
    with_trouble,
)
from coda.gang import LifecycleConfig, PodState, Progress, RankPod, Situation, Step, is_lost, of_attempt
from coda.model import FINISHED, Phase, Placement, PlacementState

NEXT: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED}),
    Phase.QUEUED: frozenset({Phase.LAUNCHED, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.LAUNCHED: frozenset({Phase.STARTING, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.RUNNING: frozenset({Phase.SUCCEEDED, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.RESTARTING: frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED}),
    Phase.SUSPENDED: frozenset({Phase.QUEUED, Phase.FAILED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset({Phase.QUEUED}),  # only when its template was refused and then edited
}
"""The legal changes of phase; a test drives `next_step` over random situations and holds it to them."""

TEMPLATE_REFUSED = "TemplateRefused"
ACCEPTED = "accepted; waits for a placement"


def next_step(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """Decide what the job needs next.

    Promise: repeating it without a change outside gives a step that does nothing new; a job that is not finished always
    has something to wait for (a plan, a pod, or `wake_s`). Cost: O(pods)."""
    if now.deleting:
        return _delete(now, now_s, config)
    if now.progress.phase not in FINISHED and (expired := active_deadline_over(now, now_s)) is not None:
        return _finish(now, now_s, Phase.FAILED, expired)
    if now.terms.suspend and now.progress.phase not in FINISHED | {Phase.SUSPENDED}:
        return _suspend(now)
    step = _BY_PHASE[now.progress.phase](now, now_s, config)
    return _with_wake(step, now, now_s, config)


def launch_refused(now: Situation, reason: str, message: str, now_s: float, config: LifecycleConfig) -> Step:
    """Roll the attempt back because the API server refused one of its pods (a quota, say)."""
    return _roll_back(now, Fault(own=False, reason=reason, message=message), now_s, config)


def template_refused(progress: Progress, generation: int, message: str, now_s: float) -> Progress:
    """The dry run failed for good: the job fails, until its template is edited."""
    return replace(
        progress,
        phase=Phase.FAILED,
        generation=generation,
        completion_s=now_s,
        reason=TEMPLATE_REFUSED,
        message=message,
    )


# --- one function per phase -------------------------------------------------------------------------------------------


def _new(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    return _enqueue(now, now_s, attempt=now.progress.attempt, not_before_s=0.0, reason="Queued", message=ACCEPTED)


def _queued(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    pods = of_attempt(now)
    if now.progress.generation != now.generation:
        if pods:
            fault = Fault(own=False, reason="SpecChanged", message="the spec was edited while its pods were created")
            return _roll_back(now, fault, now_s, config)
        return replace(_enqueue_again(now), accept=True)
    plan = _released_plan(now)
    if plan is None:
        if pods:
            fault = Fault(own=False, reason="PlanDropped", message="the plan was withdrawn before all its pods existed")
            return _roll_back(now, fault, now_s, config)
        return Step(progress=now.progress, delete=_strays(now))
    fault_found = attempt_fault(now, now_s, config)
    if fault_found is None and now_s > plan.bind_deadline_s:
        fault_found = bind_deadline_missed(pods, now.terms.replicas)
    if fault_found is not None:
        return _roll_back(now, fault_found, now_s, config)
    missing = tuple(rank for rank in range(now.terms.replicas) if rank not in {pod.rank for pod in pods})
    if missing:
        if now.epoch is not None and now.epoch != plan.epoch:
            return Step(
                progress=now.progress, delete=_strays(now)
            )  # a stale leader's plan: the new one adopts or drops
        return Step(progress=now.progress, create=missing, delete=_strays(now))
    message = f"all {now.terms.replicas} pods of attempt {now.progress.attempt} are created"
    launched = replace(now.progress, phase=Phase.LAUNCHED, launch_s=now_s, reason="Launched", message=message)
    return Step(progress=launched, delete=_strays(now))


def _launched(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    fault = gang_fault(now, now_s, config) or start_deadline_missed(now, now_s)
    if fault is not None:
        return _roll_back(now, fault, now_s, config)
    pods = of_attempt(now)
    if not all(pod.node for pod in pods):
        plan = now.placement
        if plan is None or plan.attempt != now.progress.attempt:
            gone = Fault(
                own=False, reason="PlanDropped", message="the plan was withdrawn before all its pods were bound"
            )
            return _roll_back(now, gone, now_s, config)
        if now_s > plan.bind_deadline_s:
            return _roll_back(now, bind_deadline_missed(pods, now.terms.replicas), now_s, config)
        return Step(progress=with_trouble(now.progress, pods), delete=_strays(now))
    message = f"all {now.terms.replicas} pods are bound"
    bound = replace(now.progress, phase=Phase.STARTING, reason="Starting", message=message)
    return Step(progress=with_trouble(bound, pods), delete=_strays(now))


def _starting(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    fault = gang_fault(now, now_s, config) or start_deadline_missed(now, now_s)
    if fault is not None:
        return _roll_back(now, fault, now_s, config)
    pods = of_attempt(now)
    if any(pod.state is PodState.WAITING for pod in pods):
        return Step(progress=with_trouble(now.progress, pods), delete=_strays(now))
    running = replace(
        now.progress,
        phase=Phase.RUNNING,
        start_s=now.progress.start_s or now_s,
        reason="Running",
        message=f"all {now.terms.replicas} ranks have started",
    )
    return Step(progress=running, delete=_strays(now))


def _running(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    pods = of_attempt(now)
    succeeded = {pod.rank for pod in pods if pod.state is PodState.SUCCEEDED}
    if now.terms.rank_zero_decides and 0 in succeeded:
        return _finish(now, now_s, Phase.SUCCEEDED, ("Succeeded", "rank 0 succeeded"))
    if len(succeeded) == now.terms.replicas:
        return _finish(now, now_s, Phase.SUCCEEDED, ("Succeeded", f"all {now.terms.replicas} ranks succeeded"))
    fault = gang_fault(now, now_s, config)
    if fault is not None:
        return _roll_back(now, fault, now_s, config)
    return Step(progress=replace(now.progress, generation=now.generation), delete=_strays(now))


def _restarting(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    left = _left(now, now_s, config)
    if left:
        return Step(progress=now.progress, delete=_deletable(left))
    return _enqueue(
        now,
        now_s,
        attempt=now.progress.attempt + 1,
        not_before_s=now.progress.not_before_s,
        reason=now.progress.reason,
        message=now.progress.message,
    )


def _suspended(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    left = _left(now, now_s, config)
    if now.terms.suspend or left:
        return Step(progress=replace(now.progress, generation=now.generation), delete=_deletable(left))
    planned = now.placement is not None and now.placement.attempt >= now.progress.attempt
    attempt = now.progress.attempt + (1 if planned else 0)
    resumed = replace(now, progress=replace(now.progress, queued_s=0.0))
    return _enqueue(resumed, now_s, attempt=attempt, not_before_s=0.0, reason="Resumed", message=ACCEPTED)


def _finished(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    progress = now.progress
    refused = progress.phase is Phase.FAILED and progress.reason == TEMPLATE_REFUSED
    if refused and progress.generation != now.generation:
        again = replace(now, progress=replace(progress, completion_s=0.0))
        return _enqueue(again, now_s, attempt=progress.attempt, not_before_s=0.0, reason="Queued", message=ACCEPTED)
    running = tuple(pod for pod in now.pods if not pod.ended and not pod.terminating)
    over = now.terms.ttl_s is not None and now_s >= progress.completion_s + now.terms.ttl_s
    return Step(progress=replace(progress, generation=now.generation), delete=running, remove=over)


_BY_PHASE: Mapping[Phase | None, Callable[[Situation, float, LifecycleConfig], Step]] = {
    None: _new,
    Phase.QUEUED: _queued,
    Phase.LAUNCHED: _launched,
    Phase.STARTING: _starting,
    Phase.RUNNING: _running,
    Phase.RESTARTING: _restarting,
    Phase.SUSPENDED: _suspended,
    Phase.SUCCEEDED: _finished,
    Phase.FAILED: _finished,
}


# --- changes several phases share -------------------------------------------------------------------------------------


def _delete(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    left = _left(now, now_s, config)
    return Step(progress=now.progress, delete=_deletable(left), finalize=not left)


def _suspend(now: Situation) -> Step:
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
    return Step(progress=suspended, delete=_deletable(now.pods))


def _enqueue_again(now: Situation) -> Step:
    return Step(progress=replace(now.progress, generation=now.generation))


def _enqueue(now: Situation, now_s: float, *, attempt: int, not_before_s: float, reason: str, message: str) -> Step:
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
    )
    return Step(progress=queued, accept=True)


def _roll_back(now: Situation, fault: Fault, now_s: float, config: LifecycleConfig) -> Step:
    """Count the fault, then either the next attempt or the end."""
    failures = now.progress.failures + (1 if fault.own else 0)
    disruptions = now.progress.disruptions + (0 if fault.own else 1)
    counted = replace(now.progress, failures=failures, disruptions=disruptions)
    if fault.own and failures > now.terms.retries:
        message = f"{fault.message}; all {failures} allowed attempts have failed"
        return _finish(replace(now, progress=counted), now_s, Phase.FAILED, (fault.reason, message))
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
    return Step(progress=progress, delete=_deletable(now.pods))


def _finish(now: Situation, now_s: float, phase: Phase, why: tuple[str, str]) -> Step:
    reason, message = why
    done = replace(now.progress, phase=phase, completion_s=now_s, reason=reason, message=message)
    return Step(progress=done, delete=tuple(pod for pod in _deletable(now.pods) if not pod.ended))


def _strays(now: Situation) -> tuple[RankPod, ...]:
    """Pods of another attempt that nobody deletes yet."""
    return tuple(pod for pod in now.pods if pod.attempt != now.progress.attempt and not pod.terminating)


def _released_plan(now: Situation) -> Placement | None:
    plan = now.placement
    wanted = now.progress
    if plan is None or (plan.attempt, plan.generation) != (wanted.attempt, wanted.generation):
        return None
    return plan if plan.state is PlacementState.RELEASED and len(plan.nodes) == now.terms.replicas else None


def _left(now: Situation, now_s: float, config: LifecycleConfig) -> tuple[RankPod, ...]:
    """Pods that must be gone first: all but those being deleted on a lost node, which only its kubelet can confirm."""
    return tuple(
        pod for pod in now.pods if not (pod.terminating and pod.node and is_lost(pod.node, now, now_s, config))
    )


def _deletable(pods: tuple[RankPod, ...]) -> tuple[RankPod, ...]:
    return tuple(pod for pod in pods if not pod.terminating)


def _with_wake(step: Step, now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """Add the next moment at which the answer may change by time alone."""
    progress, terms = step.progress, now.terms
    moments: list[float] = []
    if progress.phase in FINISHED:
        if terms.ttl_s is not None:
            moments.append(progress.completion_s + terms.ttl_s)
    else:
        if terms.active_deadline_s is not None and progress.start_s:
            moments.append(progress.start_s + terms.active_deadline_s)
        if progress.phase in (Phase.LAUNCHED, Phase.STARTING):
            moments.append(progress.launch_s + terms.start_deadline_s)
        if progress.phase in (Phase.QUEUED, Phase.LAUNCHED) and now.placement is not None:
            moments.append(now.placement.bind_deadline_s + 0.001)
        moments += [
            pod.unschedulable_since_s + config.unschedulable_s
            for pod in now.pods
            if pod.unschedulable_since_s is not None
        ]
        moments += [
            now.unready_since_s[pod.node] + config.node_loss_s
            for pod in now.pods
            if pod.node and pod.node in now.unready_since_s
        ]
    ahead = [moment for moment in moments if moment > now_s]
    return replace(step, wake_s=min(ahead, default=None))
