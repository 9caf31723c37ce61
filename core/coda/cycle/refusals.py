"""A refusal for each job left waiting, worked out once for all that ask for the same. What must not live here: causes.

Ten thousand jobs wait, of few shapes, and from one round to the next little changes: reasons are kept by shape, and a
job's refusal stays the same object for as long as its shape's reason does, so that readers can tell by identity.
"""

from __future__ import annotations

from coda.cache.queue import GangClass, QueuedJob
from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.cycle.wait_reasons import (
    EDITED,
    HELD_BY_POLICY,
    ReasonFinder,
    Shortfall,
    reason_from_shortfall,
    reserved_for_job,
)
from coda.model.decision import Refusal, WaitReason
from coda.model.job import JobId


class ClassVerdict:
    """What was last found out about one shape. `reason` stays the same object for as long as it says the same."""

    __slots__ = ("comes_first", "lasting", "nodes", "reason", "shortfall")

    def __init__(self) -> None:
        self.nodes = -1  # the version of the nodes that `lasting` was judged by
        self.lasting: WaitReason | None = None
        self.shortfall: Shortfall | None = None  # that the reason says
        self.comes_first = False  # before whatever else may hold a single job back
        self.reason: WaitReason | None = None

    def keep(self, reason: WaitReason, *, comes_first: bool) -> None:
        """This is the reason now."""
        self.comes_first = comes_first
        if self.reason != reason:
            self.reason = reason


def refusals_of(
    index: WorldIndex, quotas: QuotaLedger, now_s: float, count: int | None, *, reserved_for: JobId | None = None
) -> tuple[Refusal, ...]:
    """Why each job that does not start in this round waits; for the first `count` in order, where given. `kept_for`:
    the job for which nodes are kept, if any."""
    if count == 0:
        return ()
    refuser = ReasonFinder(index, quotas, now_s)
    held = HELD_BY_POLICY if reserved_for is None else reserved_for_job(reserved_for)
    queued_jobs = _left_waiting(index, count)
    gang_classes = (
        index.queue.class_by_key.values()
        if count is None
        else dict.fromkeys(queued.gang_class for queued in queued_jobs)
    )
    for gang_class in gang_classes:
        _judge(refuser, index, gang_class, held)
    return tuple(
        [
            queued.refusal
            if queued.reason is queued.gang_class.case.reason and not queued.is_held
            else _refusal(refuser, queued)
            for queued in queued_jobs
        ]
    )


def _left_waiting(index: WorldIndex, count: int | None) -> list[QueuedJob]:
    started = index.started()
    queued_jobs = index.queue.without(started) if started else index.queue.queued_jobs
    return queued_jobs if count is None else queued_jobs[:count]


def _judge(refuser: ReasonFinder, index: WorldIndex, gang_class: GangClass, held: WaitReason) -> None:
    """Find the reason that all gangs of a shape share. `held`: where there is room, and the policy keeps it."""
    case: ClassVerdict | None = gang_class.case
    if case is None:
        case = gang_class.case = ClassVerdict()
    if case.nodes != index.nodes_version:
        case.nodes = index.nodes_version
        case.lasting = refuser.lasting(gang_class.job, index.rank_class(gang_class))
    found = case.lasting or refuser.quota_exceeded(gang_class.job) or refuser.unknown_level(gang_class.job)
    if found is not None:
        case.shortfall = None
        case.keep(found, comes_first=True)
        return
    may_hold_back = index.policy.may_hold_back or held is not HELD_BY_POLICY
    if may_hold_back and refuser.has_room(gang_class.job, index.rank_class(gang_class)):
        case.shortfall = None
        case.keep(held, comes_first=False)
        return
    shortfall = refuser.shortfall(gang_class.job, index.rank_class(gang_class), index.rank_class_anywhere(gang_class))
    if case.shortfall != shortfall:
        case.shortfall = shortfall
        case.keep(reason_from_shortfall(gang_class.job, shortfall), comes_first=False)


def _refusal(refuser: ReasonFinder, queued: QueuedJob) -> Refusal:
    """The job's own reason, or its shape's; the same object as before where it says the same."""
    job, case = queued.job, queued.gang_class.case
    reason = case.reason
    if job.edited:
        reason = EDITED
    elif queued.is_held and not case.comes_first:
        reason = refuser.held_back(job) or reason
    if queued.reason is None or queued.reason != reason:
        queued.refusal = Refusal(job.id, job.generation, reason)
    queued.reason = reason
    refusal: Refusal = queued.refusal
    return refusal
