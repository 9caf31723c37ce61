"""Changes that several phases share: each returns the new progress and the pods to delete; and the waiting clock, which
counts from the last moment at which the job began to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from coda.lifecycle.failures import nodes_to_avoid
from coda.lifecycle.kept_pods import strays
from coda.lifecycle.state import TEMPLATE_REFUSED, UNDER_WAY, Progress, RankPod, Situation, Step, deletable, of_attempt
from coda.model.job import FINISHED, Phase, PlacementState
from coda.model.trial_run import TrialOutcome, TrialRun, is_tried, next_trial
from coda.progress.stall import stall_after
from coda.wording import without_controls

MESSAGE_LIMIT = 1000
"""Characters of a message. Our choice: people read it in a column of a table."""
LAUNCHED = "Launched"
"""The reason of a gang whose pods all exist."""
STARTING = "Starting"
"""The reason of a gang whose pods are bound, if nothing keeps them from starting."""


def suspend(now: Situation) -> Step:
    """Stop the attempt, if there is one, and wait until `spec.suspend` is false. It does not count as a failure."""
    suspended = replace(
        _without_stall(now.progress),
        phase=Phase.SUSPENDED,
        generation=now.generation,
        launch_s=0.0,
        start_s=0.0,
        not_before_s=0.0,
        in_a_row=0,
        succeeded=frozenset(),
        trial=_paused(now.progress),
        reason="Suspended",
        message="spec.suspend is true",
    )
    return Step(progress=suspended, delete=deletable(now.pods))


def accept_again(now: Situation, now_s: float) -> Step:
    """Accept an edit of a waiting job.

    A released placement may have led to pods that are not seen yet: a new attempt separates them from the next one."""
    placement = now.placement
    is_current = placement is not None and placement.attempt >= now.progress.attempt
    released = placement is not None and is_current and placement.state is PlacementState.RELEASED
    attempt = now.progress.attempt + (1 if released else 0)
    taken = replace(
        _without_stall(now.progress),
        attempt=attempt,
        trial=next_trial(now.progress.trial, attempt, now_s, is_asked=now.wants_trial),
        succeeded=frozenset(),
        in_a_row=0,
        not_before_s=0.0,
        generation=now.generation,
        memory=None,
        cores_multiple=1,
        reason="Edited",
        message="the edited spec is accepted; waits for a placement",
    )
    return Step(progress=taken, accept=True)


def enqueue(now: Situation, now_s: float, *, attempt: int, not_before_s: float, reason: str, message: str) -> Step:
    """Wait for a placement of `attempt`, from now on; the job keeps its place in the queue.

    After a trial it waits since it was queued: the one GPU was not what it waits for."""
    progress = now.progress
    was_tried = progress.is_tried and progress.phase is not Phase.SUSPENDED
    if is_tried(progress.trial, attempt) and progress.trial is not None and not progress.trial.is_open:
        attempt += 1  # what came of the trial is known: this is the gang
    queued = replace(
        progress,
        phase=Phase.QUEUED,
        attempt=attempt,
        generation=now.generation,
        queued_s=progress.queued_s or now_s,
        waiting_s=(progress.waiting_s or now_s) if was_tried else now_s,
        not_before_s=not_before_s,
        launch_s=0.0,
        start_s=0.0 if was_tried else progress.start_s,
        trial=next_trial(progress.trial, attempt, now_s, is_asked=now.wants_trial),
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


def all_started(now: Situation, now_s: float, message: str) -> Step:
    """Go on to phase Running: all ranks have started. If the attempt has ended unseen, the pods say when that was."""
    ended = [pod.begun_s for pod in of_attempt(now)] if now.ended_s else []
    begun_s = min(now.ended_s, max(now.progress.launch_s, *ended)) if ended else 0.0
    start_s = now.progress.start_s or begun_s or now_s
    running = replace(now.progress, phase=Phase.RUNNING, start_s=start_s, reason="Running", message=message)
    return Step(progress=running, delete=strays(now), at_s=begun_s)


def with_served(step: Step, now: Situation, now_s: float) -> Step:
    """Count how long the attempt ran, if this step ends it, and say when. Whole seconds: so it is written as it is.

    From its launch until it ended: pods that take long to go are a wait. A trial counts for itself: it did none of the
    job's work. How far the job came is noted also if the attempt is stopped."""
    if now.progress.phase in UNDER_WAY and step.progress.phase not in UNDER_WAY:
        step = replace(step, at_s=now.ended_s)
        if _is_stopped(step.progress, now.progress):
            step = replace(step, progress=with_stall(step.progress, now, now_s, adds=False))
    if not now.progress.launch_s or step.progress.launch_s:
        return step
    ended_s = now.ended_s or now_s
    if now.progress.is_tried:
        return replace(step, progress=with_trial_time(step.progress, now.progress.launch_s, ended_s))
    served_s = now.progress.served_s + max(0, int(ended_s - now.progress.launch_s))
    return replace(step, progress=replace(step.progress, served_s=served_s))


def _is_stopped(after: Progress, before: Progress) -> bool:
    """True if an attempt of the gang ends by a step that did not note how far it came: by none of its failures."""
    return after.phase is Phase.RESTARTING and not before.is_tried and after.stall == before.stall


def ran_s(now: Situation, now_s: float) -> float:
    """Return how long the attempt ran, all its ranks."""
    if now.progress.phase is not Phase.RUNNING:
        return 0.0
    return max(0.0, (now.ended_s or now_s) - now.progress.launch_s)


def with_stall(progress: Progress, now: Situation, now_s: float, *, adds: bool) -> Progress:
    """Note in `progress` how far the job came, and how long it ran, in the attempt that ends now.

    If it got further, what had counted without that does so no longer. `adds`: what ends it looks like the
    infrastructure's failure."""
    before = now.progress.stall
    stall = stall_after(before, now.reached, ran_s(now, now_s), adds=adds)
    back = before.counted - stall.counted if before is not None and stall is not None else 0
    return replace(_given_back(progress, back), stall=stall)


def _without_stall(progress: Progress) -> Progress:
    """The progress of a job that begins anew: failures that looked like the infrastructure's do not count."""
    return progress if progress.stall is None else replace(_given_back(progress, progress.stall.counted), stall=None)


def _given_back(progress: Progress, count: int) -> Progress:
    back = min(count, progress.failures)
    return replace(progress, failures=progress.failures - back, disruptions=progress.disruptions + back)


def end_trial(now: Situation, outcome: TrialOutcome, message: str) -> Step:
    """End the trial with what came of it: once its pod is gone, the gang is queued. No back-off: it was no failure."""
    assert now.progress.trial is not None
    ended = replace(
        now.progress,
        phase=Phase.RESTARTING,
        not_before_s=0.0,
        in_a_row=0,
        trial=replace(now.progress.trial, outcome=outcome, message=message),
        reason=f"Trial{outcome.value}",
        message=trial_text(message),
    )
    return Step(progress=ended, delete=deletable(now.pods))


def skip_trial(now: Situation, now_s: float) -> Step | None:
    """Queue the gang without a trial, if that got no GPU in time; None: it may still wait, or there is none.

    A new attempt: neither its back-off nor what the planner decides for it meanwhile counts for the gang."""
    progress, wait_s = now.progress, now.terms.trial.wait_s
    trial = progress.trial
    if trial is None or not progress.is_tried or not trial.is_open or now_s < trial.since_s + wait_s:
        return None
    message = f"no GPU was free for it within {wait_s:g} s; the gang waits untried"
    skipped = replace(progress, in_a_row=0, trial=replace(trial, outcome=TrialOutcome.SKIPPED, message=message))
    reason = f"Trial{TrialOutcome.SKIPPED.value}"
    return enqueue(
        replace(now, progress=skipped),
        now_s,
        attempt=progress.attempt + 1,
        not_before_s=0.0,
        reason=reason,
        message=trial_text(message),
    )


def trial_text(message: str) -> str:
    """Return what is said of a trial as the message of its job."""
    return f"trial on one GPU: {message}"


def with_trial_time(progress: Progress, launch_s: float, now_s: float) -> Progress:
    """Add how long a trial that began at `launch_s` had its GPU."""
    if progress.trial is None or not launch_s:
        return progress
    held_s = progress.trial.held_s + max(0, int(now_s - launch_s))
    return replace(progress, trial=replace(progress.trial, held_s=held_s))


def _paused(progress: Progress) -> TrialRun | None:
    """The trial of a job that is suspended or was refused: it waits anew afterwards."""
    trial = progress.trial
    return trial if trial is None or not trial.is_open else replace(trial, since_s=0.0)


def finish(now: Situation, now_s: float, phase: Phase, why: tuple[str, str]) -> Step:
    """End the job with `why` (reason, message). Pods that have ended, or whose sidecars end, stay for their logs."""
    reason, message = why
    done = replace(now.progress, phase=phase, completion_s=now_s, reason=reason, message=message)
    return Step(progress=done, delete=tuple(pod for pod in deletable(now.pods) if _is_to_end(pod)))


def _is_to_end(pod: RankPod) -> bool:
    """False for a pod that has ended or whose sidecars now end: phases Succeeded and Failed see to these."""
    return not (pod.ended or (pod.winds_down_s and pod.ended_s is not None))


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
    would keep a place for a large one. So does one that was stopped for another job, and waited at the head."""
    edited = before.generation != after.generation and after.phase is Phase.QUEUED
    if not edited or size_before is None or not is_enlarged(size_before, size):
        return after
    return replace(after, queued_s=now_s, waiting_s=now_s, returned=False)


def after_hopeless_wait(before: Progress, after: Progress, in_vain_since_s: float | None, now_s: float) -> Progress:
    """Return `after`, the progress of a job whose edit is taken.

    `in_vain_since_s`: since when no end of a job could have started it as it was accepted before; None: one could.

    The time in vain counts neither as a wait nor for its place in the queue: else what nobody can start would age, and
    become the place of real work by an edit. Nor does such a job keep the head of the queue. What it waited before that
    counts on. What was said before it began to wait takes nothing off."""
    edited = before.generation != after.generation and before.phase is after.phase is Phase.QUEUED
    if not edited or in_vain_since_s is None:
        return after
    waiting_s = after.waiting_s or after.queued_s
    in_vain_s = max(0.0, now_s - max(in_vain_since_s, waiting_s))
    return replace(after, queued_s=after.queued_s + in_vain_s, waiting_s=waiting_s + in_vain_s, returned=False)


def waits_anew(progress: Progress) -> Progress:
    """Return the progress of a refused job whose template was edited: it waits for nothing since before it failed."""
    return replace(progress, completion_s=0.0, waiting_s=0.0, trial=_paused(progress))


def template_refused(progress: Progress, generation: int, message: str, now_s: float) -> Progress:
    """Return the progress of a job whose dry run failed for good: it has failed until its template is edited."""
    refused = replace(
        progress,
        phase=Phase.FAILED,
        generation=generation,
        completion_s=now_s,
        reason=TEMPLATE_REFUSED,
        message=message,
    )
    return in_short(refused)


def is_refused_for_good(progress: Progress, generation: int, *, was_accepted: bool) -> bool:
    """True if a refusal of its template ends the job until it is edited. `generation`: of its spec now.

    Not between two attempts, nor when a waiting job that nobody edited goes on without its trial: the template was
    accepted before, so a policy may have changed, or fail for a while. A suspended job may have never been accepted."""
    between = progress.phase is Phase.QUEUED and progress.generation == generation
    paused = progress.phase is Phase.RESTARTING or (progress.phase is Phase.SUSPENDED and was_accepted)
    return not between and not paused


def not_admitted(progress: Progress, reason: str, message: str, now_s: float) -> Progress:
    """Return the progress of a job that its surroundings do not admit now: only what is said of it changes.

    Its phase stays, and the generation that was accepted last. One whose refused template was edited has not failed any
    more: it waits like a queued job with an edit that is not accepted yet."""
    if progress.phase in FINISHED:
        progress = replace(waits_anew(progress), phase=Phase.QUEUED, waiting_s=now_s)
    return in_short(replace(progress, reason=reason, message=message))


def in_short(progress: Progress) -> Progress:
    """Cut the messages: kubelets, schedulers and webhooks may send pages. So the status is exactly what was decided.

    The API server refuses a status whose trial says more than 1024 characters."""
    trial = progress.trial and replace(progress.trial, message=_cut(progress.trial.message))
    return replace(progress, message=_cut(progress.message), trial=trial)


def _cut(message: str) -> str:
    message = without_controls(message)  # a container ends with any message it likes
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 3] + "..."
