"""What the planner process does with each message: it keeps its copy, and answers questions by the core's functions."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from coda.cycle import CycleCache, SnapshotReplica, review_snapshot, run_cycle
from coda.history import learn_groups
from coda.model import JobId
from coda.model.decision import Refusal
from coda.placements import PlacementReview
from coda.policy import PolicyConfig
from coda_extender.planner_process.messages import (
    REFUSALS,
    AnswerEnd,
    ChangedRefusals,
    Failure,
    Kind,
    Message,
    Past,
    Question,
    RefusedAlike,
    ReviewOf,
    Setup,
    Values,
    orders_in_messages,
)


class Answering:
    """Answers the extender's messages in their order. What it has told once it does not tell again.

    `clock`: what judging costs, so that demands that take long wait for their turn; see `CycleCache`."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._config = PolicyConfig()
        self._replica = SnapshotReplica()
        self._cache = CycleCache(clock)
        self._told: dict[JobId, Refusal] = {}

    def take(self, message: Message) -> Iterator[Message]:
        """Take one message, and yield the answer if it is a question."""
        if isinstance(message, Setup):
            self._config = message.config
        elif isinstance(message, Past):
            learn_groups(self._cache.book.run_times, message.groups)
        elif isinstance(message, Values):
            if message.is_first_of_all:
                self._replica.clear(message.part)
            self._replica.change(message.part, message.items)
        elif isinstance(message, Question):
            try:
                yield from self._answer(message)
            except Exception:  # the process stays: the extender decides what becomes of it
                yield Failure(traceback.format_exc())

    def _answer(self, question: Question) -> Iterator[Message]:
        snapshot = self._replica.snapshot(epoch=question.epoch, now_s=question.now_s)
        if question.kind is Kind.REVIEW:
            yield from orders_in_messages(map(_review_of, review_snapshot(snapshot)))
            yield AnswerEnd()
            return
        snapshot = replace(snapshot, in_flight_for_s=question.in_flight_for_s)
        result = run_cycle(snapshot, self._config, self._cache)
        decision = result.decision
        yield from self._changed_refusals(decision.refusals)
        yield from orders_in_messages(
            (
                *decision.starts,
                *decision.stops,
                *decision.grants,
                *decision.returns,
                *decision.denials,
                *map(_review_of, result.reviews),
            )
        )
        yield AnswerEnd(
            decision.postponed, dict(result.jobs_by_code), result.gpus_wanted, result.wake_s, decision.faults
        )

    def _changed_refusals(self, refusals: tuple[Refusal, ...]) -> Iterator[ChangedRefusals]:
        """The refusals that were not told yet, those of one reason together. O(refusals)."""
        told, now = self._told, {refusal.job: refusal for refusal in refusals}
        self._told = now
        groups: dict[tuple[int, int], list[Refusal]] = {}
        is_same: dict[tuple[int, int], bool] = {}  # two reasons by identity: thousands of jobs share the same two
        for job, refusal in now.items():
            before = told.get(job)
            if before is refusal:
                continue
            if before is not None and before.generation == refusal.generation:
                pair = (id(before.reason), id(refusal.reason))
                if pair not in is_same:
                    is_same[pair] = before.reason == refusal.reason
                if is_same[pair]:
                    continue
            groups.setdefault((refusal.generation, id(refusal.reason)), []).append(refusal)
        gone = [job for job in told if job not in now]
        for start in range(0, len(gone), REFUSALS):
            yield ChangedRefusals(gone=tuple(gone[start : start + REFUSALS]))
        yield from _in_messages(groups.values())


def _in_messages(groups: Iterable[list[Refusal]]) -> Iterator[ChangedRefusals]:
    some: list[RefusedAlike] = []
    jobs = 0
    for refusals in groups:
        for start in range(0, len(refusals), REFUSALS):
            part = tuple([refusal.job for refusal in refusals[start : start + REFUSALS]])
            if some and jobs + len(part) > REFUSALS:
                yield ChangedRefusals(groups=tuple(some))
                some, jobs = [], 0
            some.append(RefusedAlike(refusals[0].generation, refusals[0].reason, part))
            jobs += len(part)
    if some:
        yield ChangedRefusals(groups=tuple(some))


def _review_of(review: PlacementReview) -> ReviewOf:
    return ReviewOf(review.job.id, review.action, review.defect, review.awaits_stops)
