"""What follows a failed attempt: the next attempt after a back-off, or the end of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from coda.allocator.memory_growth import grown_memory, growth_text
from coda.correlation import is_stopped_by
from coda.correlation.failed_jobs import STOPS
from coda.diagnosis import Diagnosis, Reason, Retry, would_fail_the_gang
from coda.diagnosis.classifier import EVIDENCE_CHARS
from coda.diagnosis.reasons import FACTS
from coda.lifecycle.failures import (
    BAD_IMAGE_NAME,
    RANK_FAILED,
    START_DEADLINE,
    SUBMIT_AGAIN,
    Failure,
    broken_node,
    is_ended_cordon,
)
from coda.lifecycle.state import (
    FailureRecord,
    LifecycleConfig,
    PodState,
    Progress,
    RankPod,
    Situation,
    Step,
    deletable,
    of_attempt,
)
from coda.lifecycle.transitions import end_trial, finish, ran_s, trial_text, with_stall, with_trial_time
from coda.model.job import Phase
from coda.model.trial_run import TrialOutcome
from coda.progress.stall import stall_wait_s
from coda.wording import counted, listed, without_controls

TRIAL_FAILED: Final = "TrialFailed"
"""The reason of a job that its trial ended."""
TOLD_S: Final = 30.0
"""A longer back-off is named in the message. Our choice."""
NAMED_JOBS: Final = 3
"""Jobs that failed alike and are named; others are counted. Our choice."""
MOST_REMEMBERED: Final = 256
"""Nodes that a job avoids after its failures, the last ones among them. Our choice: 25 KB of its status at most. A job
that more nodes refuse comes back to some of them."""
EVIDENCE_ROOM: Final = 240  # characters of the evidence in the message; the status has all of it
ALL_FAILED: Final = "all {} allowed attempts have failed"
CUT_SHORT: Final = f"it is not tried again: {STOPS} other jobs of this user stopped so within a day"
TRIED_AGAIN: Final = "it is tried again while spec.retries allows"
NOT_YET_COUNTED: Final = "it is tried again, and not counted as a failure: the next time in a row it counts"
_ENDS_TWICE: Final = (Retry.NO, Retry.ONCE)
"""The classes of what ends a job the second time in a row."""
_OVERUSED: Final[Mapping[str, tuple[Reason, str, str]]] = {
    "memory": (Reason.CPU_MEMORY, "", "request as much memory as it needs, or use fewer data workers"),
    "ephemeral-storage": (
        Reason.INPUTS,
        "disk full",
        "write less into the container, use a volume, or request as much ephemeral-storage as it needs",
    ),
}
"""What is said of a rank that used up its node: reason, what Table 6 has no word for, advice."""
NOT_ALIGNED: Final = "SMTAlignmentError"
_MOST_THREADS: Final = 64  # of one processor core. Our choice: many times what exists
_NOT_ALIGNED_SAID: Final = re.compile(r"requested \d+ cpus not multiple cpus per core = (\d+)")
MESSAGE_ROOM: Final = 880  # characters, so that the time of the next try is not cut off


def roll_back(now: Situation, failure: Failure, now_s: float, config: LifecycleConfig) -> Step:
    """Count the failure; then begin the next attempt, or fail the job: what was found in the logs decides."""
    now, failure = _with_aligned_cores(now, failure)
    before = now
    found = now.diagnosis if failure.reason == RANK_FAILED else None
    suspected = found is not None and _is_outside(found)
    now = replace(now, progress=with_stall(now.progress, now, now_s, adds=suspected))
    if found is not None:
        now, failure = _judged(now, failure, found, now_s, config)
    elif not failure.own:
        now, failure = _with_broken_node(now, failure, now_s, config)
    if failure.overused_by is not None:
        now, failure = _evicted_for(failure.overused_by, now, failure, now_s)
    if now.progress.is_tried and (ended := _trial_failed(before, now, failure, now_s, config)) is not None:
        return ended
    failures = now.progress.failures + (1 if failure.own else 0)
    disruptions = now.progress.disruptions + (0 if failure.own else 1)
    in_a_row = 0 if failure.own else _in_a_row(now, now_s, config)
    stall = now.progress.stall
    if suspected and failure.own and stall is not None:
        stall = replace(stall, counted=stall.counted + 1)
    counted = replace(now.progress, failures=failures, disruptions=disruptions, in_a_row=in_a_row, stall=stall)
    if failure.own and (failure.is_last or failures > now.terms.retries):
        is_said = failure.is_last or ALL_FAILED.format(failures) in failure.message
        said = "" if is_said else f"; {ALL_FAILED.format(failures)}"
        return finish(replace(now, progress=counted), now_s, Phase.FAILED, (failure.reason, f"{failure.message}{said}"))
    wait_s, why = _wait(counted, failure, config, ran_s=ran_s(now, now_s), suspected=suspected)
    not_before_s = now_s + wait_s
    message = f"attempt {now.progress.attempt}: {failure.message}"
    if why and wait_s > TOLD_S:
        message = f"{message[:MESSAGE_ROOM]}; {why}; the next is tried {wait_s:.0f} s later"
    progress = replace(
        counted,
        phase=Phase.RESTARTING,
        not_before_s=not_before_s,
        avoid=_avoided(now, failure, not_before_s + config.avoid_node_s, is_row=in_a_row > 1),
        reason=failure.reason,
        message=message,
    )
    return Step(progress=progress, delete=deletable(now.pods))


def _avoided(now: Situation, failure: Failure, until_s: float, *, is_row: bool) -> dict[str, float]:
    """Return the nodes that the next attempts avoid, with until when: those of this failure until `until_s`.

    So are the earlier ones while attempts in a row are ended from outside, and after one that missed its start
    deadline. Back-offs grow, and that deadline is long: forgotten meanwhile, a few nodes that refuse, or that lack its
    image, would get the job in turns for ever. If it finds no other place until then, all may be tried again. A cordon
    has its own end. O(n log n) in nodes."""
    before = {node: at_s for node, at_s in now.progress.avoid.items() if node not in failure.nodes}
    if is_row or failure.reason == START_DEADLINE:
        cordons = (node for node, at_s in before.items() if node in now.cordoned or is_ended_cordon(node, at_s, now))
        kept = frozenset(cordons)
        before = {node: at_s if node in kept else max(at_s, until_s) for node, at_s in before.items()}
    longest = sorted(before.items(), key=lambda entry: (-entry[1], entry[0]))
    return dict(longest[: MOST_REMEMBERED - len(failure.nodes)]) | dict.fromkeys(failure.nodes, until_s)


def _wait(
    progress: Progress, failure: Failure, config: LifecycleConfig, *, ran_s: float, suspected: bool
) -> tuple[float, str]:
    """Return how long to wait before the next attempt, and a clause that says why ("": for the usual reason)."""
    if failure.own:
        first_s, limit_s, doublings = config.failure_backoff_s, config.failure_backoff_limit_s, progress.failures - 1
        why = ""
    else:
        first_s, limit_s = config.disruption_backoff_s, config.disruption_backoff_limit_s
        doublings, why = progress.in_a_row - 1, f"{progress.in_a_row} attempts in a row ended so"
    wait_s: float = min(limit_s, first_s * 2.0 ** min(doublings, 30))
    if not suspected or progress.stall is None or (stalled_s := stall_wait_s(progress.stall, ran_s)) <= wait_s:
        return wait_s, why
    attempts = progress.stall.failures
    return stalled_s, f"{attempts} attempts without getting further" if attempts > 1 else "it fails so again and again"


def _with_aligned_cores(now: Situation, failure: Failure) -> tuple[Situation, Failure]:
    """Return the situation and the failure of a rank that was refused so; unchanged for any other failure.

    Kubelets with `full-pcpus-only` refuse cores that are no whole processor cores. Source: Kubernetes' cpumanager.

    Cores that Coda chose are multiples of the threads of a processor core from the next attempt on, and the node is not
    avoided: also a trial's part of the cores of the spec. If they already are, another container is refused: only its
    user changes that, and the cores of the spec."""
    said = _NOT_ALIGNED_SAID.search(failure.message) if failure.reason == NOT_ALIGNED else None
    threads = int(said[1]) if said is not None else 0
    if not 1 < threads <= _MOST_THREADS:
        return now, failure
    chose = now.terms.finds_cores or now.progress.is_tried
    if chose and now.progress.cores_multiple % threads:
        who = "it" if now.terms.finds_cores else "its trial"
        message = f"{failure.message}; from now on {who} asks for a multiple of {threads} cores"
        progress = replace(now.progress, cores_multiple=threads)
        return replace(now, progress=progress), replace(failure, message=message, nodes=())
    which = "of its other containers" if chose else "of spec.cpusPerReplica, and of each container,"
    message = f"{failure.message}; on such a node the cores {which} must be a multiple of {threads}"
    return now, replace(failure, message=message)


def _evicted_for(pod: RankPod, now: Situation, failure: Failure, now_s: float) -> tuple[Situation, Failure]:
    """Return situation and failure of a rank that used up its node's memory or disk, and was evicted for that.

    Once it may be chance: others had taken the rest. The next attempt runs on another node."""
    before, attempt = now.progress.failure, now.progress.attempt
    reason, sub_reason, advice = _OVERUSED.get(pod.overuse, _OVERUSED["memory"])
    is_row = before is not None and before.attempt == attempt - 1 and _is_of_overuse(before)
    repeats = before.repeats + 1 if before is not None and is_row else 1
    own, failures = repeats > 1, now.progress.failures + 1
    decision = NOT_YET_COUNTED
    if own:
        is_over = failures > now.terms.retries
        decision = f"it is not tried again: {ALL_FAILED.format(failures)}" if is_over else TRIED_AGAIN
    record = FailureRecord(
        attempt=attempt,
        reason=reason.value,
        sub_reason=sub_reason,
        category=FACTS[reason].category,
        explicit=True,
        rank=pod.rank,
        node=pod.node or "",
        evidence=without_controls(pod.message)[:EVIDENCE_CHARS],
        advice=advice,
        retry=Retry.YES.value,
        decision=decision,
        repeats=repeats,
        time_s=now_s,
    )
    message = f"{failure.message[:MESSAGE_ROOM]}; {decision}"
    now = replace(now, progress=replace(now.progress, failure=record))
    return now, replace(failure, own=own, message=message)


def _is_of_overuse(record: FailureRecord) -> bool:
    """True for what `_evicted_for` wrote: what logs say of memory or disk has another class."""
    is_one = any(
        (one.value, sub_reason) == (record.reason, record.sub_reason) for one, sub_reason, _ in _OVERUSED.values()
    )
    return is_one and record.retry == Retry.YES.value


def _trial_failed(
    before: Situation, judged: Situation, failure: Failure, now_s: float, config: LifecycleConfig
) -> Step | None:
    """Return what follows a trial that failed; None: it is tried again, because it never ran and is not at fault.

    Only what the gang would fail of, too, ends the job. Else the trial counts as no failure, and leaves no record of
    one: the gang is judged by its own."""
    progress, found = judged.progress, before.diagnosis
    is_shared = failure.reason == BAD_IMAGE_NAME or (found is not None and would_fail_the_gang(found))
    if failure.own and failure.is_last and is_shared:
        trial = progress.trial and replace(progress.trial, outcome=TrialOutcome.FAILED, message=failure.message)
        counted = replace(progress, trial=trial, failures=progress.failures + 1)
        failed = replace(judged, progress=with_trial_time(counted, progress.launch_s, before.ended_s or now_s))
        message = trial_text(f"{failure.message[:MESSAGE_ROOM]}; no gang was started")
        return finish(failed, now_s, Phase.FAILED, (TRIAL_FAILED, message))
    trial, wait_s = progress.trial, before.terms.trial.wait_s
    begun = any(pod.state is not PodState.WAITING for pod in of_attempt(before)) and failure.reason != NOT_ALIGNED
    ran = progress.phase is Phase.RUNNING or begun
    is_late = trial is not None and now_s >= trial.since_s + wait_s
    if not failure.own and not ran and not is_late:
        return None
    outcome = TrialOutcome.UNCLEAR if ran and failure.reason != START_DEADLINE else TrialOutcome.SKIPPED
    ended = end_trial(before, outcome, f"{failure.message[:MESSAGE_ROOM]}; the gang is next")
    avoid = dict(progress.avoid) | dict.fromkeys(failure.nodes, now_s + config.avoid_node_s)
    return replace(ended, progress=replace(ended.progress, avoid=avoid))


def _in_a_row(now: Situation, now_s: float, config: LifecycleConfig) -> int:
    """Return how many attempts in a row were ended from outside, this one included. One that ran for long ends a row.

    What refuses a gang once will often refuse it again, and each try withholds capacity from others."""
    return 1 if _ran_long(now, now_s, config) else now.progress.in_a_row + 1


def _ran_long(now: Situation, now_s: float, config: LifecycleConfig) -> bool:
    return ran_s(now, now_s) >= config.calm_s


def _repeats(now: Situation, found: Diagnosis, now_s: float, config: LifecycleConfig) -> int:
    """Return how many attempts in a row failed for this reason, this one included.

    An attempt that ran for long, or ended otherwise, ends the row: GPUs of a long job break now and then. What would
    fail the same way again does so whatever was in between. What was tried again for another class, such as the
    eviction of a rank, begins no row of `once`."""
    before, attempt = now.progress.failure, now.progress.attempt
    if before is None or before.attempt >= attempt:
        return 1
    if (before.reason, before.sub_reason) != (found.reason.value, found.sub_reason):
        return 1
    if found.retry in _ENDS_TWICE and before.retry in (Retry.YES.value, Retry.OTHER_NODE.value):
        return 1
    is_row = before.attempt == attempt - 1 and not _ran_long(now, now_s, config)
    return before.repeats + 1 if is_row or found.retry is Retry.NO else 1


def _judged(
    now: Situation, failure: Failure, found: Diagnosis, now_s: float, config: LifecycleConfig
) -> tuple[Situation, Failure]:
    """Return the failure as its logs show it, and the situation with the record of it.

    Source for the classes: Philly, section 2.4 of the papers' reference."""
    stall = now.progress.stall
    node = next((pod.node for pod in now.pods if pod.rank == found.rank and _is_of_now(pod.attempt, now)), None)
    record = _record_of(now, found, node, now_s, config)
    spent = _is_outside(found) and stall is not None and stall.is_spent
    outside = _is_outside(found) and not spent
    is_sure = found.retry is Retry.NO and found.explicit  # a consequence alone may have another cause
    is_last = is_sure or (found.retry in _ENDS_TWICE and record.repeats > 1)
    grown = grown_memory(now.killed) if now.killed and not outside else None
    is_last = is_last and grown is None
    cut_short = not is_last and not outside and grown is None and is_stopped_by(now.alike, found)
    decision = CUT_SHORT if cut_short else _decision(found, node, outside=outside, is_last=is_last)
    if spent and stall is not None:
        decision = f"{decision}: it counts, after {stall.failures} such failures without getting further"
    is_last = is_last or cut_short
    failures = now.progress.failures + 1
    if not (is_last or outside or now.progress.is_tried) and failures > now.terms.retries:
        decision = f"it is not tried again: {ALL_FAILED.format(failures)}"
    if now.killed and (growth := growth_text(now.killed, grown)):
        decision = growth if grown else f"{decision}; {growth}"
    record = replace(record, decision=decision, cut_short=cut_short)
    message = failure.message
    if found.reason is not Reason.NO_SIGNATURE:
        message = f"{message}: {_cause_text(found)}; {decision}{_alike_text(record)}"
    if now.unread:
        message = f"{message}; {now.unread}"
    nodes = (node,) if node and found.retry is Retry.OTHER_NODE else failure.nodes
    judged = replace(failure, own=not outside, is_last=is_last and not outside, nodes=nodes, message=message)
    progress = replace(now.progress, failure=record, memory=grown or now.progress.memory)
    return replace(now, progress=progress), judged


def _with_broken_node(
    now: Situation, failure: Failure, now_s: float, config: LifecycleConfig
) -> tuple[Situation, Failure]:
    """Return the failure that decides and avoids, too, a node that a log shows to be broken, with the record of that.

    Unchanged if no log does. A rank that used up its node keeps its own record: it shows whether it does so again."""
    found, node = now.diagnosis, broken_node(now, now_s, config)
    if found is None or node is None:
        return now, failure
    message = f"{failure.message}; {node} is avoided, too, for what rank {found.rank} says: {_cause_text(found)}"
    failure = replace(failure, nodes=tuple(dict.fromkeys((*failure.nodes, node))), message=message)
    if failure.overused_by is not None:
        return now, failure
    decision = _decision(found, node, outside=True, is_last=False)
    record = replace(_record_of(now, found, node, now_s, config), decision=decision)
    return replace(now, progress=replace(now.progress, failure=record)), failure


def _record_of(
    now: Situation, found: Diagnosis, node: str | None, now_s: float, config: LifecycleConfig
) -> FailureRecord:
    """Return the record of what was found, before it is decided what follows."""
    return FailureRecord(
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
        repeats=_repeats(now, found, now_s, config),
        unread=now.unread,
        time_s=now_s,
        signature=now.signature,
        alike=len(now.alike.names),
        alike_names=now.alike.names[:NAMED_JOBS],
        xid=found.xid,
    )


def _cause_text(found: Diagnosis) -> str:
    what = f"{found.reason.value} ({found.sub_reason})" if found.sub_reason else found.reason.value
    return f"{what}: {found.evidence[:EVIDENCE_ROOM]}" if found.evidence else what


def _alike_text(record: FailureRecord) -> str:
    if not record.alike:
        return ""
    more = record.alike - len(record.alike_names)
    named = [*record.alike_names, f"{more} more"] if more else record.alike_names
    return f"; {counted(record.alike, 'other job')} of this user failed so within a day: {listed(named)}"


def _is_of_now(attempt: int, now: Situation) -> bool:
    return attempt == now.progress.attempt


def _is_outside(found: Diagnosis) -> bool:
    """True for what looks like the infrastructure's fault, by the words of the job."""
    return found.retry is Retry.OTHER_NODE or (found.reason is Reason.PREEMPTED and found.retry is Retry.YES)


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
        return f"it is not tried again: {found.advice}; then {SUBMIT_AGAIN}"
    return TRIED_AGAIN
