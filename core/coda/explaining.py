"""A refusal for each job left waiting, worked out once for all that ask for the same. What must not live here: causes.

Ten thousand jobs wait, of few shapes, and from one round to the next little changes: reasons are kept by shape, and a
job's refusal stays the same object for as long as its shape's reason does, so that readers can tell by identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from coda.memory import Known
from coda.model import Job, Refusal
from coda.ordering import Shape, Waiter
from coda.quotas import QuotaLedger
from coda.refusing import EDITED, Lack, Reason, Refuser, reason_from_lack


class _Case:
    """What was last found out about one shape."""

    __slots__ = ("lack", "lasting", "reason")

    def __init__(self, lasting: Reason | None) -> None:
        self.lasting = lasting
        self.reason = lasting
        self.lack: Lack | None = None  # that the reason says

    def keep(self, reason: Reason) -> Reason:
        """The same object as before, if it says the same."""
        if self.reason != reason:
            self.reason = reason
        return self.reason or reason


class _Told:
    """What one job was told last, and the reason behind it."""

    __slots__ = ("reason", "refusal")

    def __init__(self, waiter: Waiter, reason: Reason) -> None:
        self.reason = reason
        self.refusal = Refusal(
            job=waiter.job.id,
            generation=waiter.job.generation,
            code=reason.code,
            message=reason.message,
            numbers=reason.numbers,
            holders=reason.holders,
        )


def refusals_of(known: Known, quotas: QuotaLedger, now_s: float, count: int | None) -> tuple[Refusal, ...]:
    """Why each job that does not start in this round waits; for the first `count` in order, where given."""
    refuser = Refuser(known, quotas, now_s)
    reason_by_shape: dict[Shape, tuple[Reason, bool]] = {}
    told: list[Refusal] = []
    for waiter in _left_waiting(known, count):
        found = reason_by_shape.get(waiter.shape)
        if found is None:
            found = reason_by_shape[waiter.shape] = _reason(refuser, known, waiter.shape)
        reason = _own_reason(refuser, waiter.job, *found) if waiter.is_held else found[0]
        answer: _Told | None = waiter.answer
        if answer is None or (answer.reason is not reason and answer.reason != reason):
            answer = waiter.answer = _Told(waiter, reason)
        told.append(answer.refusal)
    return tuple(told)


def _left_waiting(known: Known, count: int | None) -> Iterable[Waiter]:
    started = known.started()
    waiters: Iterable[Waiter] = known.queue.waiters
    if started:
        waiters = (waiter for waiter in waiters if waiter.job.id not in started)
    return waiters if count is None else islice(waiters, count)


def _own_reason(refuser: Refuser, job: Job, reason: Reason, comes_first: bool) -> Reason:
    if job.edited:
        return EDITED
    return reason if comes_first else refuser.held_back(job) or reason


def _reason(refuser: Refuser, known: Known, shape: Shape) -> tuple[Reason, bool]:
    """The reason, and whether it comes before whatever else may hold a single job back."""
    case: _Case | None = shape.answer
    if case is None:
        case = shape.answer = _Case(refuser.lasting(shape.job, known.kind(shape)))
    found = case.lasting or refuser.quota_exceeded(shape.job) or refuser.unknown_level(shape.job)
    if found is not None:
        case.lack = None
        return case.keep(found), True
    lack = refuser.lack(shape.job, known.kind(shape), known.kind_anywhere(shape))
    if case.reason is not None and case.lack == lack:
        return case.reason, False
    case.lack = lack
    return case.keep(reason_from_lack(shape.job, lack)), False
