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

from coda.allocator.resize import ResizeState, give_up, next_resize
from coda.lifecycle.deadlines import with_stuck, with_wake
from coda.lifecycle.failures import (
    Failure,
    active_deadline_over,
    attempt_failure,
    bind_deadline_missed,
    gang_failure,
    start_deadline_missed,
    with_trouble,
)
from coda.lifecycle.state import (
    LifecycleConfig,
    PodState,
    Progress,
    RankPod,
    Situation,
    Step,
    deletable,
    is_alone,
    missing_ranks,
    of_attempt,
    pods_left,
    released_placement,
)
from coda.lifecycle.transitions import (
    accept_again,
    all_bound,
    all_created,
    enqueue,
    finish,
    roll_back,
    stop,
    suspend,
)
from coda.model.job import FINISHED, Phase, Placement, StopOrder

NEXT: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED, Phase.RESTARTING}),  # the last: its status was lost
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
MESSAGE_LIMIT = 1000  # characters; our choice: it is read in a table's column
ACCEPTED = "accepted; waits for a placement"


def next_step(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """Decide what the job needs next.

    Promise: repeating it without a change outside gives a step that does nothing new; a job that is not finished always
    has something to wait for (a plan, a pod, or `wake_s`). Cost: O(pods)."""
    step = _decide(now, now_s, config)
    return with_wake(replace(step, progress=_in_short(step.progress)), now, now_s, config)


def furthest_step(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """As `next_step`, but past LAUNCHED and STARTING when they are over already: nobody need write what was."""
    step = next_step(now, now_s, config)
    while step.progress.phase in _PASSING and step.progress.phase is not now.progress.phase and not step.delete:
        now = replace(now, progress=step.progress)
        step = next_step(now, now_s, config)
    return step


def _decide(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if now.deleting:
        return _delete(now, now_s, config)
    if now.progress.phase not in FINISHED and (expired := active_deadline_over(now, now_s)) is not None:
        return finish(now, now_s, Phase.FAILED, expired)
    if now.terms.suspend and now.progress.phase not in FINISHED | {Phase.SUSPENDED}:
        return suspend(now)
    return _BY_PHASE[now.progress.phase](now, now_s, config)


def step_refused(
    now: Situation, step: Step, reason: str, message: str, now_s: float, config: LifecycleConfig
) -> Step | None:
    """Return what follows when the API server refuses a pod of `step`, or its new cores (a quota, say).

    A refused pod rolls the attempt back. Refused cores take the resize back; None while it is being taken back already.
    """
    if step.create:
        rolled_back = roll_back(now, Failure(own=False, reason=reason, message=message), now_s, config)
        return replace(rolled_back, progress=_in_short(rolled_back.progress))
    resize = step.progress.resize
    if resize is None or resize.state is ResizeState.REVERTING:
        return None
    return replace(step, progress=replace(step.progress, resize=give_up(resize, reason, message, now_s)), resize=())


def template_refused(progress: Progress, generation: int, message: str, now_s: float) -> Progress:
    """The dry run failed for good: the job fails, until its template is edited."""
    refused = replace(
        progress,
        phase=Phase.FAILED,
        generation=generation,
        completion_s=now_s,
        reason=TEMPLATE_REFUSED,
        message=message,
    )
    return _in_short(refused)


def _in_short(progress: Progress) -> Progress:
    """Kubelets, schedulers and webhooks may say pages. Cut here, so that what is written is what was decided."""
    message = progress.message
    short = message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 3] + "..."
    return replace(progress, message=short)


# --- one function per phase -------------------------------------------------------------------------------------------


def _new(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if now.pods:  # its status was taken away: the pods still say which attempt it was at
        attempt = max(now.progress.attempt, *(pod.attempt for pod in now.pods))
        lost = replace(now, progress=replace(now.progress, attempt=attempt, queued_s=now_s))
        fault = Failure(own=False, reason="StatusLost", message="the status of the job was lost")
        return roll_back(lost, fault, now_s, config)
    return enqueue(now, now_s, attempt=now.progress.attempt, not_before_s=0.0, reason="Queued", message=ACCEPTED)


def _queued(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    pods = of_attempt(now)
    if now.progress.generation != now.generation:
        if pods:
            fault = Failure(own=False, reason="SpecChanged", message="the spec was edited while its pods were created")
            return roll_back(now, fault, now_s, config)
        return accept_again(now)
    plan = released_placement(now)
    if pods and (plan is None or any(pod.plan_id != plan.plan_id for pod in pods)):
        fault = Failure(own=False, reason="PlanDropped", message="the plan was withdrawn before all its pods existed")
        return roll_back(now, fault, now_s, config)
    if plan is None:  # the planner avoids what is named, and knows no time
        avoid = {node: until_s for node, until_s in now.progress.avoid.items() if until_s > now_s}
        return Step(progress=replace(now.progress, avoid=avoid), delete=_strays(now))
    fault_found = attempt_failure(now, now_s, config)
    if fault_found is None and now_s > plan.bind_deadline_s:
        fault_found = bind_deadline_missed(pods, now.terms.replicas)
    if fault_found is not None:
        return roll_back(now, fault_found, now_s, config)
    if missing := missing_ranks(now):
        create = missing if _may_create(now, plan, now_s, config) else ()
        return Step(progress=now.progress, create=create, delete=_strays(now))
    return Step(progress=all_created(now.progress, now.terms.replicas, now_s), delete=_strays(now))


def _launched(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if (order := _stop_order(now)) is not None:
        return stop(now, order)
    fault = gang_failure(now, now_s, config) or start_deadline_missed(now, now_s)
    if fault is not None:
        return roll_back(now, fault, now_s, config)
    pods = of_attempt(now)
    if not all(pod.node for pod in pods):
        plan = now.placement
        if plan is None or plan.attempt != now.progress.attempt:
            gone = Failure(
                own=False, reason="PlanDropped", message="the plan was withdrawn before all its pods were bound"
            )
            return roll_back(now, gone, now_s, config)
        if now_s > plan.bind_deadline_s:
            return roll_back(now, bind_deadline_missed(pods, now.terms.replicas), now_s, config)
        launched = all_created(now.progress, now.terms.replicas, now.progress.launch_s)
        return Step(progress=with_trouble(launched, pods), delete=_strays(now))
    return Step(progress=with_trouble(all_bound(now), pods), delete=_strays(now))


def _starting(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if (order := _stop_order(now)) is not None:
        return stop(now, order)
    fault = gang_failure(now, now_s, config) or start_deadline_missed(now, now_s)
    if fault is not None:
        return roll_back(now, fault, now_s, config)
    pods = of_attempt(now)
    if any(pod.state is PodState.WAITING for pod in pods):
        return Step(progress=with_trouble(all_bound(now), pods), delete=_strays(now))
    running = replace(
        now.progress,
        phase=Phase.RUNNING,
        start_s=now.progress.start_s or now_s,
        reason="Running",
        message=f"all {now.terms.replicas} ranks have started",
    )
    return Step(progress=running, delete=_strays(now))


def _running(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if (success := _success(now)) is not None:
        return finish(now, now_s, Phase.SUCCEEDED, ("Succeeded", success))
    if (order := _stop_order(now)) is not None:
        return stop(now, order)
    fault = gang_failure(now, now_s, config)
    if fault is not None:
        return roll_back(now, fault, now_s, config)
    step = Step(progress=replace(now.progress, generation=now.generation), delete=_strays(now))
    return _with_resize(step, now, now_s)


def _with_resize(step: Step, now: Situation, now_s: float) -> Step:
    """Add what the last granted wish needs, once the size of every rank that runs is known."""
    ranks = [pod for pod in of_attempt(now) if pod.state is PodState.STARTED and not pod.terminating]
    sizes = [pod.size for pod in ranks if pod.size is not None]
    plan = now.placement
    if plan is None or plan.attempt != now.progress.attempt or len(sizes) < len(ranks):
        return step
    resize = next_resize(plan.answer, now.progress.resize, now.progress.attempt, sizes, now_s)
    if resize is None:
        return step
    progress = replace(step.progress, resize=resize.resize)
    return replace(step, progress=progress, resize=resize.patches, wake_s=resize.wake_s)


def _restarting(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    left = pods_left(now, now_s, config)
    told = with_stuck(now.progress, left, now_s, config)
    if left:
        return Step(progress=told, delete=deletable(left))
    return enqueue(
        now,
        now_s,
        attempt=told.attempt + 1,
        not_before_s=told.not_before_s,
        reason=told.reason,
        message=told.message,
    )


def _suspended(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    left = pods_left(now, now_s, config)
    if now.terms.suspend or left:
        suspended = replace(now.progress, generation=now.generation)
        return Step(progress=with_stuck(suspended, left, now_s, config), delete=deletable(left))
    planned = now.placement is not None and now.placement.attempt >= now.progress.attempt
    attempt = now.progress.attempt + (1 if planned else 0)
    resumed = replace(now, progress=replace(now.progress, queued_s=0.0, returned=False))
    return enqueue(resumed, now_s, attempt=attempt, not_before_s=0.0, reason="Resumed", message=ACCEPTED)


def _finished(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    progress = now.progress
    refused = progress.phase is Phase.FAILED and progress.reason == TEMPLATE_REFUSED
    if refused and progress.generation != now.generation:
        again = replace(now, progress=replace(progress, completion_s=0.0))
        return enqueue(again, now_s, attempt=progress.attempt, not_before_s=0.0, reason="Queued", message=ACCEPTED)
    running = tuple(pod for pod in now.pods if not pod.ended and not pod.terminating)
    over = now.terms.ttl_s is not None and now_s >= progress.completion_s + now.terms.ttl_s
    return Step(progress=replace(progress, generation=now.generation), delete=running, remove=over)


def _delete(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    left = pods_left(now, now_s, config)
    told = with_stuck(now.progress, left, now_s, config)
    return Step(progress=told, delete=deletable(left), finalize=not left)


_PASSING = frozenset({Phase.LAUNCHED, Phase.STARTING})

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


# --- questions --------------------------------------------------------------------------------------------------------


def _may_create(now: Situation, plan: Placement, now_s: float, config: LifecycleConfig) -> bool:
    """Not for a stale leader's plan, which the new one adopts or drops; not beside another attempt's pods."""
    return now.epoch == plan.epoch and is_alone(now, now_s, config)


def _strays(now: Situation) -> tuple[RankPod, ...]:
    """Pods of another attempt that nobody deletes yet."""
    return tuple(pod for pod in now.pods if pod.attempt != now.progress.attempt and not pod.terminating)


def _success(now: Situation) -> str | None:
    """What the attempt has succeeded by, if it has."""
    succeeded = {pod.rank for pod in of_attempt(now) if pod.state is PodState.SUCCEEDED}
    if now.terms.rank_zero_decides and 0 in succeeded:
        return "rank 0 succeeded"
    return f"all {now.terms.replicas} ranks succeeded" if len(succeeded) == now.terms.replicas else None


def _stop_order(now: Situation) -> StopOrder | None:
    """The order to stop that is to be carried out: none once the attempt has succeeded."""
    plan = now.placement
    mine = plan is not None and plan.attempt == now.progress.attempt
    return plan.stop if plan is not None and mine and _success(now) is None else None
