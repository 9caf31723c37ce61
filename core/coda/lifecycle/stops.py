"""How an attempt ends that was ordered to stop for another job: at once, or after a notice in which it may save.

The notice begins when the operator writes down until when it lasts; only then are the ranks told. So whatever ends
after it was told has ended for that reason, and an operator that dies finds the same moment again. The moment is the
operator's own, by the API server's clock. Only who leads after a fail-over compares it with another clock: it leaves at
least half of the notice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.lifecycle.deadlines import end_s
from coda.lifecycle.failures import Failure
from coda.lifecycle.kept_pods import strays, success_of
from coda.lifecycle.state import (
    UNDER_WAY,
    PodState,
    Progress,
    Situation,
    Step,
    StopAnswer,
    StopRecord,
    deletable,
    of_attempt,
)
from coda.lifecycle.transitions import end_trial
from coda.model.job import RETURNING, Phase, StopCause, StopOrder
from coda.model.trial_run import TrialOutcome

STOPPING: Final = "Stopping"
"""The reason of a job that runs and was told to save and end."""

_STOPPED: Final = {
    StopCause.RECLAIM: "Reclaimed",
    StopCause.MIGRATE: "Migrated",
    StopCause.PREEMPT: "Preempted",
    StopCause.FAIR_SHARE: "LentGPUsReturned",
    StopCause.UPGRADE: "Upgraded",
}
_HOW: Final = {
    StopAnswer.UNASKED: "stopped",
    StopAnswer.SAVED: "saved and stopped",
    StopAnswer.EXITED: "ended by itself when told to stop,",
    StopAnswer.LATE: "stopped without an answer at the end of its notice,",
    StopAnswer.CUT_SHORT: "a pod of it was lost within its notice, and it is stopped",
}


def stop_order(now: Situation) -> StopOrder | None:
    """Return the order to stop the present attempt, or None."""
    placement = now.placement
    return placement.stop if placement is not None and placement.attempt == now.progress.attempt else None


def is_announced(now: Situation) -> bool:
    """True from the moment at which a rank knows that it is to stop: an end is then an answer.

    Until then, and if nobody could be told, whoever ends well has done all its work."""
    order, placement = stop_order(now), now.placement
    if order is None or placement is None or order.notice_s <= 0 or now.progress.stop_due_s <= 0:
        return False
    return any(pod.told == placement.plan_id for pod in of_attempt(now))


def has_succeeded(now: Situation) -> bool:
    """Return whether the attempt succeeded, though nobody has written it.

    An end after a stop was announced may be the answer to it."""
    if now.progress.phase not in UNDER_WAY or success_of(now) is None:
        return False
    return now.is_done or not is_announced(now)


def stop(now: Situation, order: StopOrder, now_s: float, answer: StopAnswer = StopAnswer.UNASKED) -> Step:
    """End the attempt for another job. It does not count as a failure, and the next attempt has no back-off.

    A trial is over then: it loses no work, and is not repeated."""
    if now.progress.is_tried:
        return end_trial(now, TrialOutcome.UNCLEAR, f"it was stopped so that {order.by} gets its room")
    record = StopRecord(
        attempt=now.progress.attempt, cause=order.cause, by=order.by, answer=answer, lost_s=lost_s(now, now_s)
    )
    stopped = replace(
        now.progress,
        phase=Phase.RESTARTING,
        returned=order.cause in RETURNING,
        not_before_s=0.0,
        reason=_STOPPED[order.cause],
        message=f"attempt {now.progress.attempt}: {_HOW[answer]} so that {order.by} gets its room",
        stopped=record,
        lost_s=now.progress.lost_s + record.lost_s,
        lost_gpu_s=now.progress.lost_gpu_s + record.lost_s * now.terms.replicas * now.terms.gpus_per_replica,
    )
    return Step(progress=stopped, delete=deletable(now.pods))


def lost_s(now: Situation, now_s: float) -> float:
    """Return how much work a stop throws away, in whole seconds: since the last known save of a job that resumes, else
    since the attempt began."""
    since_s = now.progress.launch_s
    if not since_s:
        return 0.0
    if now.terms.resumable:
        since_s = max(since_s, now.saved_s)
    return float(max(0, int(now_s - since_s)))


def stop_after_notice(now: Situation, order: StopOrder, now_s: float, ended: Failure | None, *, is_over: bool) -> Step:
    """Tell a running job to save and end, and end it once it has answered, or its notice has passed.

    `ended`: what has gone wrong with it. `is_over`: its ranks have ended well. Without a notice it ends at once. A
    clock that went back makes no notice longer than it is."""
    if order.notice_s <= 0:
        return stop(now, order, now_s)
    latest_s = now_s + order.notice_s
    due_s = latest_s
    if now.progress.stop_due_s:
        due_s = min(latest_s, end_s(now, now.progress.stop_due_s, order.notice_s))
        answer = _answer(now, ended, is_over=is_over) or (StopAnswer.LATE if now_s >= due_s else None)
        if answer is not None:
            return stop(now, order, now_s, answer)
    elif ended is not None:
        return stop(now, order, now_s)
    placement = now.placement
    told = placement.plan_id if placement is not None else ""
    running = tuple(pod for pod in of_attempt(now) if pod.state is PodState.STARTED and not pod.terminating)
    stopping = replace(
        now.progress,
        generation=now.generation,
        stop_due_s=due_s,
        reason=STOPPING,
        message=f"is to save and end within {order.notice_s:g} s, so that {order.by} gets its room",
    )
    return Step(
        progress=stopping,
        announce=tuple(pod for pod in running if pod.told != told),
        delete=strays(now),
        wake_s=due_s,
    )


def not_stopping(progress: Progress, message: str) -> Progress:
    """Return the progress of a running job that is not to stop, or no longer: a restored backup lacks the order."""
    if not progress.stop_due_s and progress.reason != STOPPING:
        return progress
    return replace(progress, stop_due_s=0.0, reason="Running", message=message)


def _answer(now: Situation, ended: Failure | None, *, is_over: bool) -> StopAnswer | None:
    """How the announced stop was answered; None: not yet."""
    if now.placement is not None and now.answered == now.placement.plan_id:
        return StopAnswer.SAVED
    if is_over or (ended is not None and ended.own):
        return StopAnswer.EXITED
    if ended is not None:
        return StopAnswer.CUT_SHORT
    return None
