"""When a job whose ranks fit no present node is asked again what they request, and since when it waited in vain."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from coda.model import Phase, WaitCode
from coda.model.decision import HOPELESS
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_operator.view import JobRecord

AGAIN_S: Final = 120.0
"""Between two dry runs of a job. Our choice: a node that came for a job is idle for no longer, and an autoscaler
removes idle nodes after minutes."""
SPACING_S: Final = 0.5
"""Between the dry runs of any two such jobs: thousands of them are no load. Our choice."""

_FITS_NO_NODE: Final = frozenset({WaitCode.NEVER_FITS.value, WaitCode.NO_MATCHING_NODE.value})
_HOPELESS: Final = frozenset([code.value for code in HOPELESS])


class AskedAgain:
    """When each job whose ranks fit no present node is asked again what they request; no other job is.

    A request is what was admitted by the nodes, webhooks and LimitRanges of then: such a job would wait for ever for
    what has changed since. A new process counts from its start. Whoever waits longest comes first, and who leaves the
    line gives its turn to those behind: each is asked every `AGAIN_S`, or `SPACING_S` times the jobs if that is more.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_s_by_key: dict[str, float] = {}
        self._line: list[tuple[float, str]] = []  # the same, sorted
        self._next_s = 0.0  # before it nobody is asked

    def look_s(self, job: JobRecord) -> float | None:
        """Return when to look whether it is the job's turn; None: it has none. Others may leave before that."""
        turn_s = self._turn_s(job)
        return None if turn_s is None else min(turn_s, self._clock() + AGAIN_S)

    def take_turn(self, job: JobRecord) -> bool:
        """Return True if the job is to be asked now, and send it to the end of the line."""
        turn_s, now_s = self._turn_s(job), self._clock()
        if turn_s is None or now_s < turn_s:
            return False
        self._next_s = now_s + SPACING_S
        self.forget(job.key)
        self._join(job.key)
        return True

    def forget(self, key: str) -> None:
        """The job is gone, or is not accepted as it is now."""
        due_s = self._due_s_by_key.pop(key, None)
        if due_s is not None:
            del self._line[bisect_left(self._line, (due_s, key))]

    def _turn_s(self, job: JobRecord) -> float | None:
        if not _fits_no_node(job):
            self.forget(job.key)
            return None
        due_s = self._due_s_by_key.get(job.key) or self._join(job.key)
        ahead = bisect_left(self._line, (due_s, job.key))
        return max(due_s, max(self._next_s, self._line[0][0]) + ahead * SPACING_S)

    def _join(self, key: str) -> float:
        due_s = self._due_s_by_key[key] = self._clock() + AGAIN_S
        insort(self._line, (due_s, key))
        return due_s


def _fits_no_node(job: JobRecord) -> bool:
    """True if the planner says so of the spec that was accepted last, and no pod of this attempt is planned."""
    progress, placement = job.progress, job.placement
    if job.is_deleted or progress.phase is not Phase.QUEUED or job.request is None:
        return False
    if progress.generation != job.generation or (placement is not None and placement.attempt >= progress.attempt):
        return False
    return _told(job).get("code") in _FITS_NO_NODE


def in_vain_since_s(job: JobRecord) -> float | None:
    """Return since when no end of a job could have started this one as it was accepted last; None: one could."""
    told = _told(job)
    return seconds_from_time(told.get("since")) if told.get("code") in _HOPELESS else None


def _told(job: JobRecord) -> Json:
    """Return why the job waits, by the planner's word on the spec that was accepted last; empty if there is none."""
    told: Json = (job.json.get("status") or {}).get("pending") or {}
    return told if told.get("generation") == job.progress.generation else {}
