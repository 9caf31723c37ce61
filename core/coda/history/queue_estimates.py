"""How long waiting jobs are expected to run, fixed when each is first asked about: its place in the queue follows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from coda.history.run_times import RunTimes
from coda.model.job import Job, JobId

LEAST_RUNS: Final = 20
"""Finished jobs that prove something. Our choice."""
_FEW: Final = 64  # more known jobs than this, and than twice the waiting ones, are looked through


class _Kind(NamedTuple):
    """What the expectation depends on."""

    user: str
    category: str
    gpus: int  # of the whole gang


class ExpectedRuns:
    """The expected run times of waiting jobs, by the mean of those of finished jobs."""

    def __init__(self, run_times: RunTimes) -> None:
        self._run_times = run_times
        self._known: dict[JobId, tuple[_Kind, float]] = {}

    def run_s(self, job: Job) -> float:
        """Return how long the job is expected to run in all, at most up to its limit; 0 if nobody knows. O(1).

        The answer stays until the owner, the category or the GPUs of the job change."""
        kind = _Kind(job.user, job.category, job.replicas * job.request.gpus)
        known = self._known.get(job.id)
        if known is None or known[0] != kind:
            known = self._known[job.id] = (kind, self._run_times.mean_s(kind.user, kind.category, kind.gpus))
        return known[1] if job.run_limit_s is None else min(known[1], job.run_limit_s)

    def proven_run_s(self, job: Job) -> float:
        """As `run_s`, but until `LEAST_RUNS` jobs have finished, only the job's limit says how long it runs. O(1).

        The seconds of a smoke test prove nothing of the training that follows."""
        return self.run_s(job) if self._run_times.finished >= LEAST_RUNS else job.run_limit_s or 0.0

    def forget_all_but(self, waiting: Collection[JobId]) -> None:
        """Forget the jobs that wait no more, once most of the known ones are such. O(1) on the mean."""
        if len(self._known) > 2 * len(waiting) + _FEW:
            self._known = {job: known for job, known in self._known.items() if job in waiting}
