"""Deadlines that others wrote, counted by the operator's own clock from the moment it saw them.

The planner's clock may differ by minutes, and so may that of an operator that led before. So of the planner's deadlines
only the length is taken; for the other ones it is known when this operator found the job.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from coda.model import Placement

SHORTEST_S: Final = 5.0
LONGEST_S: Final = 3600.0
"""Bounds of a length: two planners whose clocks differ can neither fail a gang at once nor hold one for ever."""


class Deadlines:
    """When each job's placement and its last answer to a wish were first seen."""

    def __init__(self) -> None:
        self._seen_by_uid: dict[str, dict[str, tuple[float, bool]]] = {}  # job -> what -> (when, in the middle)
        self._found_s_by_uid: dict[str, float] = {}  # of jobs that had a placement already

    def see(self, uid: str, placement: Placement | None, now_s: float, *, in_the_middle: bool) -> None:
        """The job has this placement now. `in_the_middle`: it was not written now, this process has just begun."""
        keys = [] if placement is None else _keys(placement)
        if not keys:
            self._seen_by_uid.pop(uid, None)
            return
        if in_the_middle:
            self._found_s_by_uid[uid] = now_s
        seen = self._seen_by_uid.get(uid, {})
        self._seen_by_uid[uid] = {key: seen.get(key, (now_s, in_the_middle)) for key in keys}

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._seen_by_uid.pop(uid, None)
        self._found_s_by_uid.pop(uid, None)

    def found_s(self, uid: str) -> float:
        """Return when this operator last found the job with a placement, at its start or at a fail-over."""
        return self._found_s_by_uid.get(uid, -inf)

    def local(self, uid: str, placement: Placement | None, now_s: float) -> Placement | None:
        """Return the placement with its deadlines by our own clock.

        Half of a length is left for one that was found in the middle: the planner leaves as much at the release."""
        if placement is None:
            return None
        seen = self._seen_by_uid.get(uid, {})
        keys = _keys(placement)
        bind_by_s = _end_s(seen.get(keys[0], (now_s, False)), placement.bind_deadline_s - placement.committed_s)
        answer = placement.answer
        if answer is not None:
            at = seen.get(keys[1], (now_s, False))
            answer = replace(answer, deadline_s=_end_s(at, answer.deadline_s - answer.answered_s))
        return replace(placement, bind_deadline_s=bind_by_s, answer=answer)


def _keys(placement: Placement) -> list[str]:
    answer = placement.answer
    return [placement.plan_id, *([] if answer is None else [f"{placement.attempt}/{answer.sequence}"])]


def _end_s(seen: tuple[float, bool], length_s: float) -> float:
    seen_s, in_the_middle = seen
    length_s = min(LONGEST_S, max(SHORTEST_S, length_s))
    return seen_s + (length_s / 2 if in_the_middle else length_s)
