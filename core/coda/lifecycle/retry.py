"""What follows a failed attempt: the next attempt after a back-off, or the end of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.allocator.memory_growth import grown_memory, growth_text
from coda.correlation import is_stopped_by
from coda.correlation.failed_jobs import STOPS
from coda.diagnosis import Diagnosis, Reason, Retry
from coda.lifecycle.failures import RANK_FAILED, Failure
from coda.lifecycle.state import FailureRecord, LifecycleConfig, Situation, Step, deletable
from coda.lifecycle.transitions import finish
from coda.model.job import Phase
from coda.wording import counted, listed

TOLD_S: Final = 30.0
"""A longer back-off is named in the message. Our choice."""
MOST_UNCOUNTED: Final = 3
"""Attempts in a row with one reason that is not the job's fault, before they count. Our choice: a rule may be wrong."""
NAMED_JOBS: Final = 3
"""Jobs that failed alike and are named; others are counted. Our choice."""
EVIDENCE_ROOM: Final = 240  # characters of the evidence in the message; the status has all of it
CUT_SHORT: Final = f"it is not tried again: {STOPS} other jobs of this user stopped so within a day"
MESSAGE_ROOM: Final = 880  # characters, so that the time of the next try is not cut off


def roll_back(now: Situation, failure: Failure, now_s: float, config: LifecycleConfig) -> Step:
    """Count the failure; then begin the next attempt, or fail the job: what was found in the logs decides."""
    if failure.reason == RANK_FAILED and now.diagnosis is not None:
        now, failure = _judged(now, failure, now.diagnosis, now_s)
    failures = now.progress.failures + (1 if failure.own else 0)
    disruptions = now.progress.disruptions + (0 if failure.own else 1)
    in_a_row = 0 if failure.own else _in_a_row(now, now_s, config)
    counted = replace(now.progress, failures=failures, disruptions=disruptions, in_a_row=in_a_row)
    if failure.own and (failure.is_last or failures > now.terms.retries):
        said = "" if failure.is_last else f"; all {failures} allowed attempts have failed"
        message = f"{failure.message}{said}"
        return finish(replace(now, progress=counted), now_s, Phase.FAILED, (failure.reason, message))
    if failure.own:
        first_s, limit_s, doublings = config.failure_backoff_s, config.failure_backoff_limit_s, failures - 1
    else:
        first_s, limit_s, doublings = config.disruption_backoff_s, config.disruption_backoff_limit_s, in_a_row - 1
    not_before_s = now_s + min(limit_s, first_s * 2.0 ** min(doublings, 30))
    avoid = dict(counted.avoid) | dict.fromkeys(failure.nodes, not_before_s + config.avoid_node_s)
    message = f"attempt {now.progress.attempt}: {failure.message}"
    if not failure.own and (wait_s := not_before_s - now_s) > TOLD_S:
        message = (
            f"{message[:MESSAGE_ROOM]}; {in_a_row} attempts in a row ended so; the next is tried {wait_s:.0f} s later"
        )
    progress = replace(
        counted,
        phase=Phase.RESTARTING,
        not_before_s=not_before_s,
        avoid=avoid,
        reason=failure.reason,
        message=message,
    )
    return Step(progress=progress, delete=deletable(now.pods))


def _in_a_row(now: Situation, now_s: float, config: LifecycleConfig) -> int:
    """Return how many attempts in a row were ended from outside, this one included. One that ran for long ends a row.

    What refuses a gang once will often refuse it again, and each try withholds capacity from others."""
    progress = now.progress
    ran_long = progress.phase is Phase.RUNNING and now_s - progress.launch_s >= config.calm_s
    return 1 if ran_long else progress.in_a_row + 1


def _judged(now: Situation, failure: Failure, found: Diagnosis, now_s: float) -> tuple[Situation, Failure]:
    """Return the failure as its logs show it, and the situation with the record of it.

    Source for the classes: Philly, section 2.4 of the papers' reference."""
    before = now.progress.failure
    again = before is not None and before.reason == found.reason.value and before.attempt < now.progress.attempt
    repeats = before.repeats + 1 if again and before is not None else 1
    node = next((pod.node for pod in now.pods if pod.rank == found.rank and _is_of_now(pod.attempt, now)), None)
    outside = (found.retry is Retry.OTHER_NODE or _is_preempted(found)) and repeats <= MOST_UNCOUNTED
    is_sure = found.retry is Retry.NO and found.explicit  # a consequence alone may have another cause
    is_last = is_sure or (found.retry in (Retry.NO, Retry.ONCE) and repeats > 1)
    grown = grown_memory(now.killed) if now.killed and not outside else None
    is_last = is_last and grown is None
    cut_short = not is_last and not outside and grown is None and is_stopped_by(now.alike, found)
    decision = CUT_SHORT if cut_short else _decision(found, node, outside=outside, is_last=is_last)
    is_last = is_last or cut_short
    if now.killed and (growth := growth_text(now.killed, grown)):
        decision = growth if grown else f"{decision}; {growth}"
    record = FailureRecord(
        attempt=now.progress.attempt,
        reason=found.reason.value,
        sub_reason=found.sub_reason,
        category=found.category,
        explicit=found.explicit,
        rank=found.rank,
        node=node or "",
        evidence=found.evidence,
        advice=found.advice,
        retry=found.retry.value,
        decision=decision,
        repeats=repeats,
        unread=now.unread,
        time_s=now_s,
        signature=now.signature,
        alike=len(now.alike.names),
        alike_names=now.alike.names[:NAMED_JOBS],
        cut_short=cut_short,
        xid=found.xid,
    )
    message = failure.message
    if found.reason is not Reason.NO_SIGNATURE:
        what = f"{found.reason.value} ({found.sub_reason})" if found.sub_reason else found.reason.value
        evidence = f": {found.evidence[:EVIDENCE_ROOM]}" if found.evidence else ""
        message = f"{message}: {what}{evidence}; {decision}{_alike_text(record)}"
    if now.unread:
        message = f"{message}; {now.unread}"
    nodes = (node,) if node and found.retry is Retry.OTHER_NODE else failure.nodes
    judged = replace(failure, own=not outside, is_last=is_last and not outside, nodes=nodes, message=message)
    progress = replace(now.progress, failure=record, memory=grown or now.progress.memory)
    return replace(now, progress=progress), judged


def _alike_text(record: FailureRecord) -> str:
    if not record.alike:
        return ""
    more = record.alike - len(record.alike_names)
    named = [*record.alike_names, f"{more} more"] if more else record.alike_names
    return f"; {counted(record.alike, 'other job')} of this user failed so within a day: {listed(named)}"


def _is_of_now(attempt: int, now: Situation) -> bool:
    return attempt == now.progress.attempt


def _is_preempted(found: Diagnosis) -> bool:
    return found.reason is Reason.PREEMPTED and found.retry is Retry.YES


def _decision(found: Diagnosis, node: str | None, *, outside: bool, is_last: bool) -> str:
    """Say in one sentence what follows."""
    if outside and found.retry is Retry.OTHER_NODE:
        where = f"without {node}" if node else "elsewhere"
        return f"it is tried again {where}, and not counted as a failure"
    if outside:
        return "it is tried again, and not counted as a failure"
    if is_last and not (found.retry is Retry.NO and found.explicit):
        return "it is not tried again: it failed so twice"
    if is_last:
        return f"it is not tried again: {found.advice}"
    return "it is tried again while spec.retries allows"
