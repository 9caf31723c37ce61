"""What the planner process does with each message: it keeps its copy, and answers questions by the core's functions."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

from coda.cycle import CycleCache, SnapshotReplica, review_snapshot, run_cycle
from coda.history import learn_groups
from coda.placements import PlacementReview
from coda.policy import PolicyConfig
from coda_extender.planner_process.messages import (
    AnswerEnd,
    Failure,
    Kind,
    Message,
    Past,
    Question,
    ReviewOf,
    Setup,
    Values,
    orders_in_messages,
)
from coda_extender.planner_process.told_refusals import AGAIN_S, ToldRefusals


class Answering:
    """Answers the extender's messages in their order. What it has told once it does not tell again.

    `clock`: what judging costs, so that demands that take long wait for their turn; see `CycleCache`."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._config = PolicyConfig()
        self._replica = SnapshotReplica()
        self._cache = CycleCache(clock)
        self._told = ToldRefusals()

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
        yield from self._told.changes(decision.refusals)
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
        wake_s = result.wake_s
        if self._told.has_more:
            again_s = question.now_s + AGAIN_S
            wake_s = again_s if wake_s is None else min(wake_s, again_s)
        gpus = result.gpus_wanted, result.gpus_unmatched
        told = dict(result.jobs_by_code), *gpus, wake_s, decision.faults, result.apart
        yield AnswerEnd(decision.postponed, *told)


def _review_of(review: PlacementReview) -> ReviewOf:
    return ReviewOf(review.job.id, review.action, review.defect, review.awaits_stops)
