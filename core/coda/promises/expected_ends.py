"""When running jobs are expected to end, worked out again only when their age has grown."""

from __future__ import annotations

from typing import Final, NamedTuple

from coda.history.run_times import RunEstimate, RunTimes
from coda.model.job import Job, JobId
from coda.model.live_placement import live_placement

_GROWTH: Final = 1.2  # an estimate counts until the job is older by this factor: it changes no sooner, see `RunTimes`
_LEAST_S: Final = 60.0
_COUNTS_S: Final = 600.0  # how long an answer about jobs that wait counts. Our choice
_REMEMBERED: Final = 50_000


class _Run(NamedTuple):
    """What tells runs of one name apart: a job may be deleted and submitted again, or be given another limit."""

    uid: str
    attempt: int
    committed_s: float | None  # None: it starts in this cycle
    limit_s: float | None


class _KnownEnd(NamedTuple):
    run: _Run
    end_s: float
    until_s: float  # it counts until then


class ExpectedEnds:
    """The expected ends of running jobs, by the run times of finished ones."""

    def __init__(self, run_times: RunTimes) -> None:
        self._run_times = run_times
        self._known: dict[JobId, _KnownEnd] = {}
        self.upsets = 0  # how often an answer changed before its time, or answers were forgotten
        self._cautious: dict[tuple[str, str, int, float], tuple[float, float]] = {}  # until when it counts, and seconds

    def end_s(self, job: Job, now_s: float) -> float:
        """Return when a job with a placement is expected to end, after now; infinite if nobody knows."""
        known, run = self._known.get(job.id), _run_of(job)
        if known is not None and known.run == run and now_s < known.until_s:
            return known.end_s
        age_s = age_of(job, now_s)
        end_s = now_s - age_s + self._estimate(job, age_s).expected_s
        limit_s = limit_of(job)
        if limit_s is not None:
            end_s = min(end_s, limit_s)
        end_s = max(end_s, now_s + 1.0)  # it is over its limit: it ends at any moment
        if len(self._known) > _REMEMBERED:
            self._known.clear()
            self.upsets += 1
        elif known is not None and now_s < known.until_s and known.run.committed_s is not None:
            self.upsets += 1  # it is another run; where one has just started, the nodes are looked at again anyway
        until_s = now_s + max(_LEAST_S, (_GROWTH - 1.0) * age_s)
        self._known[job.id] = _KnownEnd(run, end_s, min(until_s, end_s))
        return end_s

    def counts_until_s(self, job: Job) -> float:
        """Return until when the answer of `end_s` about the job counts, which was given before."""
        return self._known[job.id].until_s

    def cautious_s(self, job: Job, now_s: float) -> float:
        """Return how long a waiting job runs, with caution, if it starts now.

        An answer counts for jobs alike and for a while: thousands wait, and each cycle may ask."""
        age_s, gpus = job.resumed_s, job.replicas * job.request.gpus
        key = (job.user, job.category, gpus, age_s)
        known = self._cautious.get(key)
        if known is None or now_s >= known[0]:
            if len(self._cautious) > _REMEMBERED:
                self._cautious.clear()
            known = self._cautious[key] = (now_s + _COUNTS_S, self._estimate(job, age_s).cautious_s - age_s)
        return known[1] if job.run_left_s is None else min(known[1], job.run_left_s)

    def _estimate(self, job: Job, age_s: float) -> RunEstimate:
        return self._run_times.estimate(job.user, job.category, job.replicas * job.request.gpus, age_s)


def _run_of(job: Job) -> _Run:
    placement = live_placement(job)
    return _Run(job.uid, job.attempt, None if placement is None else placement.committed_s, job.run_limit_s)


def age_of(job: Job, now_s: float) -> float:
    """Return how long a job with a placement has run: earlier attempts that it resumed from count."""
    placement = live_placement(job)
    began_s = now_s if placement is None else placement.committed_s
    return max(0.0, now_s - began_s) + job.resumed_s


def limit_of(job: Job) -> float | None:
    """Return when a job with a placement is ended at the latest; None: it may run for ever."""
    placement = live_placement(job)
    if job.run_left_s is None or placement is None:
        return None
    return (job.run_from_s or placement.committed_s) + job.run_left_s
