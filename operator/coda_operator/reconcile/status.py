"""The operator's part of a TrainingJob's status, as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from coda.allocator.memory_growth import RankMemory
from coda.lifecycle import TEMPLATE_REFUSED, Progress
from coda.lifecycle.state import UNTUNED_REASONS, FailureRecord, StopRecord
from coda.model import FINISHED, Phase
from coda.progress.stall import Stall
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.trial_spec import trial_json
from coda_kube.objects.quantities import quantity_from_bytes, time_from_seconds
from coda_kube.objects.tuning_status import resize_json
from coda_operator.view.time_ledger import account_json

Item = Mapping[str, Any]

_LAUNCHED = frozenset({Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING, Phase.SUCCEEDED})
_BOUND = _LAUNCHED - {Phase.LAUNCHED}


PASSING_FIELDS: Final = (
    "waitingSince",
    "notBefore",
    "launchTime",
    "startTime",
    "completionTime",
    "disruptionsInARow",
    "returned",
    "servedSeconds",
    "succeededRanks",
    "resize",
    "failure",
    "grownMemory",
    "coresMultipleOf",
    "stopDeadline",
    "lastStop",
    "lostSeconds",
    "lostGPUSeconds",
    "delays",
    "trial",
)
"""The fields that a later status may lack. Each has a meaning while it is there: it must go, whoever else owns it."""


def status_json(progress: Progress, old: Item, request: Item | None, spec: Item, now_s: float) -> Json:
    """Return all status fields of the operator; the apply removes those left out."""
    times = {
        "queuedTime": progress.queued_s,
        "waitingSince": progress.waiting_s,
        "notBefore": progress.not_before_s,
        "launchTime": progress.launch_s,
        "startTime": progress.start_s,
        "completionTime": progress.completion_s,
        "stopDeadline": progress.stop_due_s,
    }
    status: Json = {
        "observedGeneration": progress.generation,
        "array": "GPU",
        "gpus": spec["replicas"] * spec["gpusPerReplica"],
        "attempt": progress.attempt,
        "failures": progress.failures,
        "disruptions": progress.disruptions,
        "reason": progress.reason,
        "message": progress.message,
        "avoidNodes": [
            {"name": node, "until": time_from_seconds(until_s)} for node, until_s in sorted(progress.avoid.items())
        ],
        "conditions": list(_conditions(progress, old, now_s, is_accepted=request is not None)),
    }
    if progress.phase is not None:  # it is absent until the job is accepted
        status["phase"] = progress.phase.value
    status |= {name: time_from_seconds(moment_s) for name, moment_s in times.items() if moment_s}
    if progress.in_a_row:
        status["disruptionsInARow"] = progress.in_a_row
    if progress.returned:
        status["returned"] = True
    if progress.served_s >= 1.0:
        status["servedSeconds"] = int(progress.served_s)
    if progress.succeeded:
        status["succeededRanks"] = text_from_ranks(progress.succeeded)
    if request is not None:
        status["request"] = dict(request)
        status["cores"] = (1 if progress.is_tried else spec["replicas"]) * request["cpusPerReplica"]
    status |= _of_earlier_attempts(progress) | _of_stops(progress)
    status |= {} if progress.spent is None else {"delays": account_json(progress.spent)}
    if progress.resize is not None:
        status["resize"] = resize_json(progress.resize)
        status["cores"] = spec["replicas"] * progress.resize.cores
    return status


def _of_earlier_attempts(progress: Progress) -> Json:
    """What was learned from attempts that are over: trial, grown memory, processor cores, failure."""
    status: Json = {} if progress.trial is None else {"trial": trial_json(progress.trial)}
    if progress.memory is not None:
        status["grownMemory"] = memory_json(progress.memory)
    if progress.cores_multiple > 1:
        status["coresMultipleOf"] = progress.cores_multiple
    if progress.failure is not None:
        status["failure"] = failure_json(progress.failure)
    if progress.stall is not None:
        status["stall"] = stall_json(progress.stall)
    return status


def stall_json(stall: Stall) -> Json:
    """Return the failures that were not counted at once, and how far the job had come."""
    reached = stall.reached
    fields = {"step": reached.step, "savedStep": reached.saved_step, "epoch": reached.epoch}
    counts = {"failures": stall.failures, "counted": stall.counted, "row": stall.row, "ranSeconds": stall.ran_s}
    return counts | {name: value for name, value in fields.items() if value is not None}


def memory_json(memory: RankMemory) -> Json:
    """Return what ranks ask for since one was killed for memory."""
    fields = {"request": memory.request_bytes, "limit": memory.limit_bytes}
    return {name: quantity_from_bytes(amount) for name, amount in fields.items() if amount}


def failure_json(failure: FailureRecord) -> Json:
    """Return why the last failed attempt failed; what is not known is left out."""
    fields: Json = {
        "attempt": failure.attempt,
        "reason": failure.reason,
        "subReason": failure.sub_reason,
        "category": failure.category,
        "explicit": failure.explicit,
        "rank": failure.rank,
        "node": failure.node,
        "evidence": failure.evidence,
        "advice": failure.advice,
        "retry": failure.retry,
        "decision": failure.decision,
        "repeats": failure.repeats,
        "unread": failure.unread,
        "signature": failure.signature,
        "xid": failure.xid,
    }
    fields = {name: value for name, value in fields.items() if value is not None and value != ""}
    if failure.time_s:
        fields["time"] = time_from_seconds(failure.time_s)
    if failure.alike:
        fields["alike"] = {"jobs": failure.alike, "names": list(failure.alike_names)}
    if failure.cut_short:
        fields["cutShort"] = True
    return fields


def _of_stops(progress: Progress) -> Json:
    """How it was last stopped for another job, and what all such stops cost."""
    status: Json = {} if progress.stopped is None else {"lastStop": stop_record_json(progress.stopped)}
    if progress.lost_s >= 1.0:
        status |= {"lostSeconds": int(progress.lost_s), "lostGPUSeconds": int(progress.lost_gpu_s)}
    return status


def stop_record_json(stopped: StopRecord) -> Json:
    """Return how the job was last stopped for another."""
    return {
        "attempt": stopped.attempt,
        "cause": stopped.cause.value,
        "by": stopped.by,
        "answer": stopped.answer.value,
        "lostSeconds": int(stopped.lost_s),
    }


def text_from_ranks(ranks: Collection[int]) -> str:
    """Return ranks as a short text: ranges joined by commas, "0-2,5". The worst of 4096 takes 10 KB."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _conditions(progress: Progress, old: Item, now_s: float, *, is_accepted: bool) -> Iterator[Json]:
    known = {condition["type"]: condition for condition in old.get("conditions") or ()}
    phase = progress.phase
    truths = {
        "Accepted": phase is not None and is_accepted and progress.reason != TEMPLATE_REFUSED,
        "Launched": phase in _LAUNCHED,
        "Bound": phase in _BOUND,
        "Running": phase is Phase.RUNNING,
        "Finished": phase in FINISHED,
    }
    is_untuned = progress.reason in UNTUNED_REASONS
    if phase is Phase.RUNNING and (is_untuned or "Tunable" in known):  # absent while nothing was ever amiss
        truths["Tunable"] = not is_untuned
    for kind, truth in truths.items():
        said = "True" if truth else "False"
        before = known.get(kind)
        unchanged = before is not None and before["status"] == said
        says_why = (kind == "Finished" and truth) or (kind == "Tunable" and not truth)  # now, and not as it turned
        if unchanged and before is not None and not says_why:
            yield dict(before) | {"observedGeneration": progress.generation}
            continue
        yield {
            "type": kind,
            "status": said,
            "reason": progress.reason or (phase.value if phase else "New"),
            "message": progress.message,
            "lastTransitionTime": before["lastTransitionTime"] if unchanged and before else time_from_seconds(now_s),
            "observedGeneration": progress.generation,
        }
