"""Which refusals the extender was told, and which it is told next.

A first reason and a new code are told at once. New numbers under the same code wait for their turn: if a node comes
back, those of ten thousand jobs change, and the extender writes fifty in a second (`pending_reasons`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from coda.model import JobId
from coda.model.decision import Refusal
from coda_extender.planner_process.messages import REFUSALS, ChangedRefusals, RefusedAlike

NUMBERS: Final = 500
"""Jobs whose new numbers are told in one answer. Our choice: many times what is written meanwhile."""
AGAIN_S: Final = 1.0
"""After this time more numbers are told, though nothing happens in the cluster. Our choice."""


class ToldRefusals:
    """What was told, job by job. What was told once is not told again."""

    def __init__(self) -> None:
        self._told: dict[JobId, Refusal] = {}
        self._numbers: dict[JobId, Refusal] = {}  # with new numbers that were not told yet, the longest wait first

    def changes(self, refusals: tuple[Refusal, ...]) -> Iterator[ChangedRefusals]:
        """Yield what is to be told of these refusals, which are all there are now; at most one of a job.

        Those of one reason come together. O(refusals)."""
        told, numbers = self._told, self._numbers
        new: list[Refusal] = []
        for refusal in refusals:  # tens of thousands: what is usual comes first
            before = told.get(refusal.job)
            if before is refusal:
                if numbers:
                    numbers.pop(refusal.job, None)
                continue
            if (
                before is not None
                and before.generation == refusal.generation
                and before.reason.code is refusal.reason.code
            ):
                numbers[refusal.job] = refusal
            else:
                new.append(refusal)
        for refusal in new:
            told[refusal.job] = refusal
            numbers.pop(refusal.job, None)
        yield from self._gone(refusals)
        yield from _in_messages([*new, *self._next_numbers()])

    @property
    def has_more(self) -> bool:
        """True if numbers wait for their turn."""
        return bool(self._numbers)

    def _gone(self, refusals: tuple[Refusal, ...]) -> Iterator[ChangedRefusals]:
        if len(self._told) == len(refusals):
            return
        now = {refusal.job for refusal in refusals}
        gone = [job for job in self._told if job not in now]
        for job in gone:
            del self._told[job]
            self._numbers.pop(job, None)
        for start in range(0, len(gone), REFUSALS):
            yield ChangedRefusals(gone=tuple(gone[start : start + REFUSALS]))

    def _next_numbers(self) -> list[Refusal]:
        """Whose turn it is. Equal reasons need not be told; they are compared once, since thousands share the same."""
        turn: list[Refusal] = []
        seen: list[JobId] = []
        is_same: dict[tuple[int, int], bool] = {}  # by identity
        for job, refusal in self._numbers.items():
            if len(turn) == NUMBERS:
                break
            before, self._told[job] = self._told[job], refusal
            seen.append(job)
            pair = (id(before.reason), id(refusal.reason))
            if pair not in is_same:
                is_same[pair] = before.reason == refusal.reason
            if not is_same[pair]:
                turn.append(refusal)
        for job in seen:
            del self._numbers[job]
        return turn


def _in_messages(refusals: Iterable[Refusal]) -> Iterator[ChangedRefusals]:
    groups: dict[tuple[int, int], list[Refusal]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.generation, id(refusal.reason)), []).append(refusal)
    some: list[RefusedAlike] = []
    jobs = 0
    for alike in groups.values():
        for start in range(0, len(alike), REFUSALS):
            part = tuple([refusal.job for refusal in alike[start : start + REFUSALS]])
            if some and jobs + len(part) > REFUSALS:
                yield ChangedRefusals(groups=tuple(some))
                some, jobs = [], 0
            some.append(RefusedAlike(alike[0].generation, alike[0].reason, part))
            jobs += len(part)
    if some:
        yield ChangedRefusals(groups=tuple(some))
