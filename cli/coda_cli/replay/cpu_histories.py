"""What CPU jobs went through, from the changes of their pods. Pure.

A CPU job is queued when its pods were seen, placed when its last rank was released, and over when all have ended well.
Each rank is one pod after another: after an eviction the next one begins again, or goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from coda.model import FINISHED, Phase
from coda_cli.job_history import History, Moments, WaitRecord
from coda_kube.objects.names import ANNOTATION_PLANNED
from coda_kube.objects.quantities import seconds_from_time
from coda_sim.workload import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One pod. Moments by this machine's clock, but for `planned_s`: the planner's."""

    number: int
    run_s: float  # for which it would run undisturbed
    queued_s: float
    planned_s: float | None = None
    placed_s: float | None = None
    started_s: float | None = None
    stopped_s: float | None = None  # its deletion was asked for
    ended_s: float | None = None
    node: str = ""
    succeeded: bool = False
    message: str = ""  # why it ended, if not well

    @property
    def is_stopped(self) -> bool:
        """True if it was evicted or deleted before its work was done."""
        return self.ended_s is not None and self.stopped_s is not None and not self.succeeded

    @property
    def left_s(self) -> float:
        """Return how long it would have gone on when it was stopped."""
        began_s = self.planned_s if self.planned_s is not None else self.stopped_s
        ran_s = 0.0 if began_s is None or self.stopped_s is None else max(0.0, self.stopped_s - began_s)
        return max(0.0, self.run_s - ran_s)


def attempt_after(attempt: Attempt, pod: Mapping[str, Any] | None, now_s: float) -> Attempt:
    """Return the attempt after its pod was seen like this at `now_s`; None: it is gone."""
    if pod is None:
        gone_s = attempt.ended_s or now_s
        stopped_s = attempt.stopped_s if attempt.stopped_s is not None or attempt.succeeded else now_s
        return replace(attempt, ended_s=gone_s, stopped_s=stopped_s)
    metadata, status = pod["metadata"], pod.get("status") or {}
    planned = (metadata.get("annotations") or {}).get(ANNOTATION_PLANNED)
    phase = status.get("phase")
    has_ended = phase in ("Succeeded", "Failed")

    def first(known: float | None, happened: object) -> float | None:
        return known if known is not None or not happened else now_s

    return replace(
        attempt,
        planned_s=seconds_from_time(planned) if planned else attempt.planned_s,
        placed_s=first(attempt.placed_s, planned),
        started_s=first(attempt.started_s, phase in ("Running", "Succeeded", "Failed")),
        stopped_s=first(attempt.stopped_s, metadata.get("deletionTimestamp") and phase != "Succeeded"),
        ended_s=first(attempt.ended_s, has_ended),
        node=pod["spec"].get("nodeName") or attempt.node,
        succeeded=attempt.succeeded or phase == "Succeeded",
        message=_why(status) if phase == "Failed" else attempt.message,
    )


def _why(status: Mapping[str, Any]) -> str:
    said = ": ".join(part for part in (status.get("reason"), status.get("message")) if part)
    return said or "its container failed"


Ranks = Mapping[int, tuple[Attempt, ...]]
"""The attempts of each rank, in order."""


def history_of(name: str, gang: Gang, ranks: Ranks, reasons: tuple[WaitRecord, ...]) -> History:
    """Return the history of a CPU job. Ranks whose first pod was not seen yet are missing."""
    every = [attempt for attempts in ranks.values() for attempt in attempts]
    firsts, lasts = ([attempts[end] for attempts in ranks.values() if attempts] for end in (0, -1))
    is_whole = len(lasts) == gang.replicas
    phase = _phase(lasts, is_whole=is_whole)
    ends = [attempt.ended_s for attempt in lasts]
    queued_s = min((attempt.queued_s for attempt in firsts), default=None)

    def last(moments: list[float | None]) -> float | None:
        """None while one is missing."""
        known = [moment_s for moment_s in moments if moment_s is not None]
        return max(known) if is_whole and len(known) == len(moments) else None

    return History(
        name=name,
        gpus=0,
        cores=gang.replicas * gang.cpus_per_replica,
        phase=phase,
        message=next((attempt.message for attempt in lasts if attempt.message), ""),
        attempt=max((attempt.number for attempt in lasts), default=0),
        stops=sum(attempt.is_stopped for attempt in every),
        waited_again_s=max((waited_again_s(attempts) for attempts in ranks.values()), default=0.0),
        nodes=tuple(attempt.node for attempt in lasts if attempt.node),
        pending=reasons[-1] if reasons and phase is Phase.QUEUED else None,
        reasons=reasons,
        reported=Moments(queued_s=queued_s, placed_s=last([attempt.planned_s for attempt in firsts])),
        seen=Moments(
            queued_s=queued_s,
            placed_s=last([attempt.placed_s for attempt in firsts]),
            started_s=last([attempt.started_s for attempt in firsts]),
            finished_s=last(ends) if phase in FINISHED else None,
        ),
        freed_s=last(ends),
    )


def waited_again_s(attempts: tuple[Attempt, ...]) -> float:
    """Return the seconds from each stop to the next placement."""
    total_s = 0.0
    for before, after in pairwise(attempts):
        if before.stopped_s is not None and after.planned_s is not None:
            total_s += max(0.0, after.planned_s - before.stopped_s)
    return total_s


def _phase(lasts: list[Attempt], *, is_whole: bool) -> Phase:
    if any(attempt.ended_s is not None and not attempt.succeeded and not attempt.is_stopped for attempt in lasts):
        return Phase.FAILED
    if is_whole and all(attempt.succeeded for attempt in lasts):
        return Phase.SUCCEEDED
    if is_whole and all(attempt.planned_s is not None and not attempt.is_stopped for attempt in lasts):
        return Phase.RUNNING
    return Phase.QUEUED
