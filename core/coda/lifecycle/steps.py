"""What one job needs next: `next_step(situation, now_s, config) -> Step`, called by the operator on every change.

Level-triggered: it reads only the present state (progress in the status, placement, pods, nodes). So every step may be
repeated, and the operator may die between any two writes.

The rule of a gang: until all pods of an attempt exist (phase QUEUED with a released placement), missing pods are
created; from LAUNCHED on, a missing pod fails the attempt. A failed attempt is rolled back as a whole: RESTARTING
until its pods are gone, then QUEUED with the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from coda.allocator.resize import ResizeState, give_up, next_resize
from coda.lifecycle.deadlines import NOT_TUNED_S, with_stuck, with_wake
from coda.lifecycle.failures import (
    Failure,
    active_deadline_over,
    attempt_failure,
    awaits_news_s,
    bind_deadline_missed,
    gang_failure,
    nodes_to_avoid,
    start_deadline_missed,
    with_trouble,
)
from coda.lifecycle.kept_pods import WITH_RANKS, strays, success_of, with_end, with_let_go, with_succeeded
from coda.lifecycle.node_loss import with_node_trouble
from coda.lifecycle.retry import roll_back
from coda.lifecycle.state import (
    TEMPLATE_REFUSED,
    UNDER_WAY,
    UNTUNED_REASONS,
    LifecycleConfig,
    PodState,
    Progress,
    Situation,
    Step,
    Untuned,
    deletable,
    is_alone,
    is_live,
    is_rank,
    kept_s,
    lacks_its_record,
    missing_ranks,
    of_attempt,
    pods_left,
    released_placement,
    stays,
    winds_down_until_s,
)
from coda.lifecycle.stops import has_succeeded, is_announced, not_stopping, stop, stop_after_notice, stop_order
from coda.lifecycle.transitions import (
    accept_again,
    all_bound,
    all_created,
    all_started,
    end_trial,
    enqueue,
    finish,
    in_short,
    skip_trial,
    suspend,
    trial_text,
    waits_anew,
    with_served,
)
from coda.model.job import FINISHED, Phase, Placement
from coda.model.trial_run import TrialOutcome

NEXT: Mapping[Phase | None, frozenset[Phase]] = {
    None: frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED, Phase.RESTARTING}),  # the last: its status was lost
    Phase.QUEUED: frozenset({Phase.LAUNCHED, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.LAUNCHED: frozenset({Phase.STARTING, Phase.SUCCEEDED, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.SUCCEEDED, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.RUNNING: frozenset({Phase.SUCCEEDED, Phase.RESTARTING, Phase.SUSPENDED, Phase.FAILED}),
    Phase.RESTARTING: frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED}),
    Phase.SUSPENDED: frozenset({Phase.QUEUED, Phase.FAILED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset({Phase.QUEUED}),  # only when its template was refused and then edited
}
"""The legal changes of phase. A test runs `next_step` over random situations and checks them."""

ACCEPTED = "accepted; waits for a placement"
WHY_UNTUNED: Mapping[Untuned, str] = {
    Untuned.NO_AGENT: "node {node} has no agent that looks for its cores",
    Untuned.OFF: "the agent of node {node} is set not to look for its cores",
    Untuned.SILENT: "the agent of node {node} does not look for its cores: it may be gone",
}
"""The clause for each reason of a running job whose cores are to be found, and nobody looks for them."""


def next_step(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """Return what the job needs next.

    Without a change outside, a second call returns a step that does nothing new. A job that is not finished always
    waits for something: a placement, a pod, or `wake_s`. O(pods)."""
    now = with_end(with_succeeded(now), now_s)
    step = with_served(_decide(now, now_s, config), now, now_s)
    if step.progress.stop_due_s and step.progress.phase is not Phase.RUNNING:
        step = replace(step, progress=replace(step.progress, stop_due_s=0.0))
    return with_let_go(with_wake(replace(step, progress=in_short(step.progress)), now, now_s, config), now)


def furthest_step(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    """As `next_step`, but skip LAUNCHED and STARTING if they are over already: past phases need no write."""
    step = next_step(now, now_s, config)
    while step.progress.phase in _PASSING and step.progress.phase is not now.progress.phase and not step.delete:
        now = replace(now, progress=step.progress)
        step = next_step(now, now_s, config)
    return step


def _decide(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if now.deleting:
        return _delete(now, now_s, config)
    if (expired := active_deadline_over(now, now_s)) is not None and _may_expire(now):
        return finish(now, now_s, Phase.FAILED, expired)
    if now.terms.suspend and now.progress.phase not in FINISHED | {Phase.SUSPENDED} and not has_succeeded(now):
        return suspend(now)
    if _is_judged_by_failures(now) and (until_s := awaits_news_s(now, now_s, config)) > 0.0:
        return Step(progress=now.progress, delete=strays(now), wake_s=until_s)
    return _BY_PHASE[now.progress.phase](now, now_s, config)


def step_refused(
    now: Situation, step: Step, reason: str, message: str, now_s: float, config: LifecycleConfig
) -> Step | None:
    """Return the step after the API server refused a pod of `step`, or its new cores (a quota, for example).

    A refused pod rolls the attempt back. Refused cores take the resize back; None if that has begun already."""
    if step.create:
        rolled_back = roll_back(now, Failure(own=False, reason=reason, message=message), now_s, config)
        return replace(rolled_back, progress=in_short(rolled_back.progress))
    resize = step.progress.resize
    if resize is None or resize.state is ResizeState.REVERTING:
        return None
    return replace(step, progress=replace(step.progress, resize=give_up(resize, reason, message, now_s)), resize=())


# --- one function per phase -------------------------------------------------------------------------------------------


def _new(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if known := [pod.attempt for pod in now.pods if is_rank(pod, now)]:  # its status was deleted, its pods know
        attempt = max(now.progress.attempt, *known)
        lost = replace(now, progress=replace(now.progress, attempt=attempt, queued_s=now_s))
        failure = Failure(own=False, reason="StatusLost", message="the status of the job was lost")
        return roll_back(lost, failure, now_s, config)
    return enqueue(now, now_s, attempt=now.progress.attempt, not_before_s=0.0, reason="Queued", message=ACCEPTED)


def _queued(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    pods = of_attempt(now)
    if now.progress.generation != now.generation:
        if pods:
            edited = Failure(own=False, reason="SpecChanged", message="the spec was edited while its pods were created")
            return roll_back(now, edited, now_s, config)
        return accept_again(now, now_s)
    placement = released_placement(now)
    if pods and (placement is None or any(pod.plan_id != placement.plan_id for pod in pods)):
        dropped = Failure(own=False, reason="PlanDropped", message="the plan was withdrawn before all its pods existed")
        return roll_back(now, dropped, now_s, config)
    if placement is None and not pods and (untried := skip_trial(now, now_s)) is not None:
        return untried
    if placement is None:  # the planner avoids every node named here and compares no times
        avoid = nodes_to_avoid(now, now_s)
        return Step(progress=replace(now.progress, avoid=avoid), delete=strays(now))
    failure = attempt_failure(now, now_s, config)
    if failure is None and now_s > placement.bind_deadline_s:
        failure = bind_deadline_missed(pods, now.terms.replicas, now.progress.in_a_row)
    if failure is not None:
        return roll_back(now, failure, now_s, config)
    if missing := missing_ranks(now):
        create = missing[: now.room] if _may_create(now, placement, now_s, config) else ()
        return Step(progress=now.progress, create=create, delete=strays(now))
    return Step(progress=all_created(now.progress, now.terms.replicas, now_s), delete=strays(now))


def _launched(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if (ended := _before_it_runs(now, now_s, config)) is not None:
        return ended
    pods = of_attempt(now)
    if not all(pod.node for pod in pods):
        placement = now.placement
        if placement is None or placement.attempt != now.progress.attempt:
            gone = Failure(
                own=False, reason="PlanDropped", message="the plan was withdrawn before all its pods were bound"
            )
            return roll_back(now, gone, now_s, config)
        if now_s > placement.bind_deadline_s:
            return roll_back(now, bind_deadline_missed(pods, now.terms.replicas, now.progress.in_a_row), now_s, config)
        launched = all_created(now.progress, now.terms.replicas, now.progress.launch_s)
        told = with_node_trouble(with_trouble(launched, now, now_s), now, now_s, config)
        return Step(progress=told, delete=strays(now))
    told = with_node_trouble(with_trouble(all_bound(now), now, now_s), now, now_s, config)
    return Step(progress=told, delete=strays(now))


def _starting(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    if (ended := _before_it_runs(now, now_s, config)) is not None:
        return ended
    pods = of_attempt(now)
    if any(pod.state is PodState.WAITING for pod in pods):
        told = with_node_trouble(with_trouble(all_bound(now), now, now_s), now, now_s, config)
        return Step(progress=told, delete=strays(now))
    return all_started(now, now_s, _all_started(now))


def _before_it_runs(now: Situation, now_s: float, config: LifecycleConfig) -> Step | None:
    """Return how an attempt ends before all its ranks have started; None: it does not.

    Rank 0 may decide then already. If all have started, RUNNING is written first: that the job ran, and when."""
    success = success_of(now)
    if success is not None:
        waits = any(pod.state is PodState.WAITING or not pod.node for pod in of_attempt(now))
        is_over = waits and not now.progress.is_tried
        return finish(now, now_s, Phase.SUCCEEDED, ("Succeeded", success)) if is_over else None
    if (order := stop_order(now)) is not None:
        return stop(now, order, now_s)
    failure = gang_failure(now, now_s, config) or start_deadline_missed(now, now_s)
    return None if failure is None else roll_back(now, failure, now_s, config)


def _all_started(now: Situation) -> str:
    if now.progress.is_tried:
        return trial_text("it runs, until its first step")
    return f"all {now.terms.replicas} ranks have started"


def _with_missing_agent(progress: Progress, now: Situation, now_s: float) -> Progress:
    """Say why the job keeps the cores it began with, where nobody looks for them."""
    placement, is_said = now.placement, progress.reason in UNTUNED_REASONS
    why = None if now.untuned is Untuned.SEARCHED else now.untuned
    if why is Untuned.UNKNOWN:
        return progress
    if why is not None and placement is not None and now_s >= progress.start_s + NOT_TUNED_S:
        if progress.reason != "Running" and not is_said:
            return progress
        clause = WHY_UNTUNED[why].format(node=placement.nodes[0])
        return replace(progress, reason=why.value, message=f"{_all_started(now)}; {clause}")
    if is_said:
        return replace(progress, reason="Running", message=_all_started(now))
    return progress


def _running(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    success, failure = success_of(now), gang_failure(now, now_s, config)
    if now.progress.is_tried:
        return _trial_runs(now, now_s, config, failure, is_over=success is not None)
    if success is not None and (now.is_done or not is_announced(now)):
        return finish(now, now_s, Phase.SUCCEEDED, ("Succeeded", success))
    if (order := stop_order(now)) is not None:
        return stop_after_notice(now, order, now_s, failure, is_over=success is not None)
    if failure is not None:
        return roll_back(now, failure, now_s, config)
    if now.converged:
        return finish(now, now_s, Phase.SUCCEEDED, ("Converged", now.converged))
    running = not_stopping(replace(now.progress, generation=now.generation), _all_started(now))
    told = with_node_trouble(running, now, now_s, config)
    step = Step(progress=_with_missing_agent(told, now, now_s), delete=strays(now))
    return _with_resize(step, now, now_s)


def _trial_runs(
    now: Situation, now_s: float, config: LifecycleConfig, failure: Failure | None, *, is_over: bool
) -> Step:
    """The gang comes next once the trial has reported a step, has ended well, or has run for as long as it may."""
    run_s = now.terms.trial.run_s
    if is_over:
        return end_trial(now, TrialOutcome.PASSED, "it ended well; the gang is next")
    if (order := stop_order(now)) is not None:
        return stop(now, order, now_s)
    if failure is not None:
        return roll_back(now, failure, now_s, config)
    if now.has_stepped:
        return end_trial(now, TrialOutcome.PASSED, "it reported its first step; the gang is next")
    if now_s >= now.progress.start_s + run_s:
        message = f"it ran for {run_s:g} s without an error, and reported no step; the gang is next"
        return end_trial(now, TrialOutcome.TIME_OVER, message)
    told = with_node_trouble(replace(now.progress, generation=now.generation), now, now_s, config)
    return Step(progress=told, delete=strays(now), wake_s=now.progress.start_s + run_s)


def _with_resize(step: Step, now: Situation, now_s: float) -> Step:
    """Add what the last granted wish needs, if the size of every running rank is known."""
    ranks = [pod for pod in of_attempt(now) if pod.state is PodState.STARTED and not pod.terminating]
    sizes = [pod.size for pod in ranks if pod.size is not None]
    placement = now.placement
    if placement is None or placement.attempt != now.progress.attempt or len(sizes) < len(ranks):
        return step
    resize = next_resize(placement.answer, now.progress.resize, now.progress.attempt, sizes, now_s)
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
        told = with_stuck(suspended, left, now_s, config)
        return Step(progress=told, delete=deletable(left), disconnect=now.terms.suspend and not left)
    planned = now.placement is not None and now.placement.attempt >= now.progress.attempt
    attempt = now.progress.attempt + (1 if planned else 0)
    resumed = replace(now, progress=replace(now.progress, queued_s=0.0, returned=False))
    return enqueue(resumed, now_s, attempt=attempt, not_before_s=0.0, reason="Resumed", message=ACCEPTED)


def _finished(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    progress = now.progress
    refused = progress.phase is Phase.FAILED and progress.reason == TEMPLATE_REFUSED
    if refused and progress.generation != now.generation:
        again = replace(now, progress=waits_anew(progress))
        return enqueue(again, now_s, attempt=progress.attempt, not_before_s=0.0, reason="Queued", message=ACCEPTED)
    stay_s = {pod.uid: winds_down_until_s(pod, now_s, config) for pod in now.pods}
    running = tuple(pod for pod in deletable(now.pods) if not pod.ended and now_s >= stay_s[pod.uid])
    limit_s = kept_s(now, config)
    over = limit_s is not None and now_s >= progress.completion_s + limit_s
    edited_s = progress.completion_s + config.edit_s if refused else 0.0  # its user is about to write it, too
    is_live_yet = bool(running) or any(is_live(pod, now, now_s, config) for pod in now.pods)
    record = lacks_its_record(now)
    free = now.held and now_s >= edited_s and not is_live_yet
    return Step(
        progress=replace(progress, generation=now.generation),
        delete=running,
        record=record and not is_live_yet,  # until then they hold GPUs
        disconnect=free and not record,
        finalize=free and not record,
        remove=over and not record and not stays(now),
        clear=over and not record and stays(now),
        wake_s=min((at_s for at_s in (edited_s if now.held else 0.0, *stay_s.values()) if at_s > now_s), default=None),
    )


def _delete(now: Situation, now_s: float, config: LifecycleConfig) -> Step:
    unrecorded = lacks_its_record(now)
    has_live = any(pod.owned and is_live(pod, now, now_s, config) for pod in now.pods) and not now.orphaning
    over = unrecorded and not has_live and now.progress.phase not in FINISHED
    at_s = now.ended_s if over else 0.0  # if nobody saw its end, its pods say it
    if now.orphaning:
        finalize = now.held and not unrecorded
        return Step(progress=now.progress, record=unrecorded, over=over, at_s=at_s, finalize=finalize)
    left = tuple(pod for pod in pods_left(now, now_s, config) if pod.owned)
    told = with_stuck(now.progress, left, now_s, config)
    record = unrecorded and not has_live
    finalize = not left and now.held and not unrecorded
    return Step(progress=told, delete=deletable(left), record=record, over=over, at_s=at_s, finalize=finalize)


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


def _may_create(now: Situation, placement: Placement, now_s: float, config: LifecycleConfig) -> bool:
    """Not for a stale leader's placement: the new leader adopts or drops it. Not beside pods of another attempt."""
    return now.epoch == placement.epoch and is_alone(now, now_s, config)


def _may_expire(now: Situation) -> bool:
    """False for a job that has ended: also for one that succeeded while nobody looked, until its time was over."""
    return now.progress.phase not in FINISHED and not (now.progress.phase in UNDER_WAY and success_of(now) is not None)


def _is_judged_by_failures(now: Situation) -> bool:
    """Whether a failure of a rank decides what is next."""
    return now.progress.phase in WITH_RANKS and stop_order(now) is None and success_of(now) is None
