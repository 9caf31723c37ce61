"""Times that other processes wrote, by the planner's own sight of them.

The planner's time is the API server's. Several API servers may differ, and an earlier leader may have asked another.
So a deadline that looks too near counts its length from the moment it was first seen, and so does a back-off that looks
too long. What has begun, a wait or a run, began at that moment at the latest. This may be lost: a process that begins
gives a placement its whole time again, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from coda.model import Job, JobId, Phase, Placement
from coda.model.job import TAKEN_BACK, Wish

CLOSE_S: Final = 3.0
"""Clocks that differ by less count as equal: times are written in whole seconds, and seen late. Our choice."""

_DEADLINE_COUNTS: Final = frozenset({Phase.QUEUED, Phase.LAUNCHED})

HELD_S: Final = 1800.0
"""So long after a search began, what it tries without is withheld for it at most. Our choice: most searches end sooner,
one whose agent is gone never ends."""

LONGEST_S: Final = 3600.0
"""A longer time is not believed to be a length: the placement was released again and again. Our choice."""


class _Seen(NamedTuple):
    plan_id: str
    deadline_s: float
    shift_s: float


class _Search(NamedTuple):
    attempt: int
    since_s: float
    cores: int  # per rank, that it had and may go back to


class LocalTimes:
    """When the times of each job were first seen. `now_s`: the planner's time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._placement_by_job: dict[JobId, _Seen] = {}
        self._back_off_by_job: dict[JobId, tuple[tuple[float, float], float]] = {}  # as written, as it counts
        self._wish_by_job: dict[JobId, tuple[tuple[int, Wish], float]] = {}  # with its attempt; as it counts
        self._waiting_by_job: dict[JobId, tuple[float, float]] = {}  # only what was still to come; as it counts
        self._begun_by_job: dict[JobId, tuple[float, float]] = {}  # likewise
        self._search_by_job: dict[JobId, _Search] = {}  # that is under way

    def applied(self, job: Job, *, is_known: bool = True) -> Job:
        """Return the job with its times as they count here. `is_known`: an earlier version of it was seen. O(1)."""
        shift_s, not_before_s = self._shift_s(job), self._not_before_s(job)
        waiting_s = self._past_s(self._waiting_by_job, job.id, job.waiting_s)
        placement, wish, held = self._placement(job), self._wish(job, is_known=is_known), self._held_cores(job)
        if (
            (shift_s, not_before_s, waiting_s) == (job.deadline_shift_s, job.not_before_s, job.waiting_s)
            and held == job.held_cores
            and placement is job.placement
            and wish is job.wish
        ):
            return job
        return replace(
            job,
            deadline_shift_s=shift_s,
            not_before_s=not_before_s,
            waiting_s=waiting_s,
            placement=placement,
            wish=wish,
            held_cores=held,
        )

    def forget(self, job: JobId) -> None:
        """The job is gone."""
        self._placement_by_job.pop(job, None)
        self._back_off_by_job.pop(job, None)
        self._wish_by_job.pop(job, None)
        self._waiting_by_job.pop(job, None)
        self._begun_by_job.pop(job, None)
        self._search_by_job.pop(job, None)

    def next_hold_over_in_s(self) -> float | None:
        """How long until a search has lasted so long that nothing is withheld for it any more; None without any."""
        since_s = min((one.since_s for one in self._search_by_job.values() if one.cores), default=None)
        return None if since_s is None else max(0.0, since_s + HELD_S - self._now_s())

    def pop_holds_over(self) -> list[JobId]:
        """The jobs whose searches have lasted so long; from now on nothing is withheld for these."""
        now_s = self._now_s()
        over = [job for job, one in self._search_by_job.items() if one.cores and now_s >= one.since_s + HELD_S]
        for job in over:
            self._search_by_job[job] = self._search_by_job[job]._replace(cores=0)
        return over

    def _held_cores(self, job: Job) -> int:
        """What a search may go back to, if it was seen to have it: what it never had, or what is given away already,
        is withheld for nobody. A process that begins in the middle of a try withholds nothing for it."""
        answer = job.placement.answer if job.placement is not None else None
        is_taken_back = answer is not None and answer.code == TAKEN_BACK  # somebody else has these cores now
        if not job.searching or job.phase is not Phase.RUNNING or is_taken_back:
            self._search_by_job.pop(job.id, None)
            return 0
        now_s, known = self._now_s(), self._search_by_job.get(job.id)
        since_s = min(now_s, known.since_s) if known is not None and known.attempt == job.attempt else now_s
        had = 0 if known is None or known.attempt != job.attempt else known.cores
        is_over = now_s >= since_s + HELD_S
        cores = 0 if is_over else job.held_cores if job.cpus_per_replica >= job.held_cores else min(had, job.held_cores)
        self._search_by_job[job.id] = _Search(job.attempt, since_s, cores)
        return cores

    def _shift_s(self, job: Job) -> float:
        placement = job.placement
        if placement is None or job.phase not in _DEADLINE_COUNTS:
            self._placement_by_job.pop(job.id, None)
            return 0.0
        seen, now_s, deadline_s = self._placement_by_job.get(job.id), self._now_s(), placement.bind_deadline_s
        if seen is None or seen.plan_id != placement.plan_id:
            shift_s = _first_shift_s(placement, now_s)
        elif seen.deadline_s != deadline_s and deadline_s > now_s:
            shift_s = 0.0  # written anew at its release, by a clock like ours
        else:
            shift_s = seen.shift_s
        self._placement_by_job[job.id] = _Seen(placement.plan_id, deadline_s, shift_s)
        return shift_s

    def _not_before_s(self, job: Job) -> float:
        """The operator writes both times by one clock. The wait begins once the pods of the last attempt are gone, when
        a short back-off is over."""
        written = (job.not_before_s, job.waiting_s)
        if not job.not_before_s:
            self._back_off_by_job.pop(job.id, None)
            return 0.0
        known = self._back_off_by_job.get(job.id)
        if known is not None and known[0] == written:
            return known[1]
        length_s, counts_s = max(0.0, job.not_before_s - job.waiting_s), job.not_before_s
        if length_s <= LONGEST_S and counts_s > self._now_s() + length_s + CLOSE_S:
            counts_s = self._now_s() + length_s
        self._back_off_by_job[job.id] = (written, counts_s)
        return counts_s

    def _placement(self, job: Job) -> Placement | None:
        """With the time since when it runs. As long as its deadline counts, its length is needed as it was written."""
        placement = job.placement
        if placement is None or job.phase in _DEADLINE_COUNTS:
            self._begun_by_job.pop(job.id, None)
            return placement
        begun_s = self._past_s(self._begun_by_job, job.id, placement.committed_s)
        return placement if begun_s == placement.committed_s else replace(placement, committed_s=begun_s)

    def _wish(self, job: Job, *, is_known: bool) -> Wish | None:
        """With its deadline by our clock: an agent writes it by its own."""
        if job.wish is None:
            self._wish_by_job.pop(job.id, None)
            return None
        written, known = (job.attempt, job.wish), self._wish_by_job.get(job.id)
        if known is None or known[0] != written:
            known = self._wish_by_job[job.id] = (written, self._wish_deadline_s(job.wish, is_known=is_known))
        return job.wish if known[1] == job.wish.deadline_s else replace(job.wish, deadline_s=known[1])

    def _wish_deadline_s(self, wish: Wish, *, is_known: bool) -> float:
        """A wish that is news was made just now. One that was there when this process began may be old: if its deadline
        has passed, nobody may wait for it, and whoever does will ask again."""
        length_s = wish.deadline_s - wish.since_s
        counts_s = self._now_s() + length_s
        if not 0.0 < length_s <= LONGEST_S or abs(counts_s - wish.deadline_s) <= CLOSE_S:
            return wish.deadline_s
        return counts_s if is_known else min(counts_s, wish.deadline_s)

    def _past_s(self, seen_by_job: dict[JobId, tuple[float, float]], job: JobId, written_s: float) -> float:
        """A time that cannot be still to come: as it was written, or when it was first seen if that is earlier."""
        known = seen_by_job.pop(job, None)
        if known is None or known[0] != written_s:
            now_s = self._now_s()
            if written_s <= now_s + CLOSE_S:
                return written_s
            known = (written_s, now_s)
        seen_by_job[job] = known
        return known[1]


def _first_shift_s(placement: Placement, now_s: float) -> float:
    """By how much the deadline of a placement that is seen for the first time counts later than it says."""
    length_s = placement.bind_deadline_s - placement.committed_s
    shift_s = now_s + length_s - placement.bind_deadline_s
    return shift_s if 0.0 < length_s <= LONGEST_S and shift_s > CLOSE_S else 0.0
