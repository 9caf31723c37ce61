"""A refusal for each job left waiting, worked out once for all that ask for the same. What must not live here: causes.

Ten thousand jobs wait, of few shapes, and from one round to the next little changes: reasons are kept by shape, and a
job's refusal stays the same object for as long as its shape's reason does, so that readers can tell by identity.
"""

from __future__ import annotations

from coda.cache.queue import GangClass, QueuedJob
from coda.cache.quotas import QuotaLedger
from coda.cache.world_index import WorldIndex
from coda.cycle.wait_reasons import EDITED, HELD_BY_POLICY, ReasonFinder, Shortfall, kept_for_job, reason_from_shortfall
from coda.model.decision import Refusal, WaitReason
from coda.model.job import JobId


class ClassVerdict:
    """What was last found out about one shape. `reason` stays the same object for as long as it says the same."""

    __slots__ = ("comes_first", "lack", "lasting", "nodes", "reason")

    def __init__(self) -> None:
        self.nodes = -1  # the version of the nodes that `lasting` was judged by
        self.lasting: WaitReason | None = None
        self.lack: Shortfall | None = None  # that the reason says
        self.comes_first = False  # before whatever else may hold a single job back
        self.reason: WaitReason | None = None

    def keep(self, reason: WaitReason, *, comes_first: bool) -> None:
        """This is the reason now."""
        self.comes_first = comes_first
        if self.reason != reason:
            self.reason = reason


def refusals_of(
    known: WorldIndex, quotas: QuotaLedger, now_s: float, count: int | None, *, kept_for: JobId | None = None
) -> tuple[Refusal, ...]:
    """Why each job that does not start in this round waits; for the first `count` in order, where given. `kept_for`:
    the job for which nodes are kept, if any."""
    if count == 0:
        return ()
    refuser = ReasonFinder(known, quotas, now_s)
    held = HELD_BY_POLICY if kept_for is None else kept_for_job(kept_for)
    waiters = _left_waiting(known, count)
    shapes = known.queue.shape_by_key.values() if count is None else dict.fromkeys(waiter.shape for waiter in waiters)
    for shape in shapes:
        _judge(refuser, known, shape, held)
    return tuple(
        [
            waiter.refusal
            if waiter.reason is waiter.shape.case.reason and not waiter.is_held
            else _refusal(refuser, waiter)
            for waiter in waiters
        ]
    )


def _left_waiting(known: WorldIndex, count: int | None) -> list[QueuedJob]:
    started = known.started()
    waiters = known.queue.without(started) if started else known.queue.waiters
    return waiters if count is None else waiters[:count]


def _judge(refuser: ReasonFinder, known: WorldIndex, shape: GangClass, held: WaitReason) -> None:
    """Find the reason that all gangs of a shape share. `held`: where there is room, and the policy keeps it."""
    case: ClassVerdict | None = shape.case
    if case is None:
        case = shape.case = ClassVerdict()
    if case.nodes != known.nodes_version:
        case.nodes = known.nodes_version
        case.lasting = refuser.lasting(shape.job, known.kind(shape))
    found = case.lasting or refuser.quota_exceeded(shape.job) or refuser.unknown_level(shape.job)
    if found is not None:
        case.lack = None
        case.keep(found, comes_first=True)
        return
    withholds = known.policy.withholds or held is not HELD_BY_POLICY
    if withholds and refuser.has_room(shape.job, known.kind(shape)):
        case.lack = None
        case.keep(held, comes_first=False)
        return
    lack = refuser.lack(shape.job, known.kind(shape), known.kind_anywhere(shape))
    if case.lack != lack:
        case.lack = lack
        case.keep(reason_from_shortfall(shape.job, lack), comes_first=False)


def _refusal(refuser: ReasonFinder, waiter: QueuedJob) -> Refusal:
    """The job's own reason, or its shape's; the same object as before where it says the same."""
    job, case = waiter.job, waiter.shape.case
    reason = case.reason
    if job.edited:
        reason = EDITED
    elif waiter.is_held and not case.comes_first:
        reason = refuser.held_back(job) or reason
    if waiter.reason is None or waiter.reason != reason:
        waiter.refusal = Refusal(job.id, job.generation, reason)
    waiter.reason = reason
    refusal: Refusal = waiter.refusal
    return refusal
