"""What the live planner sees end, for its estimates of run times."""

from __future__ import annotations

from collections.abc import Sequence

from coda.history.run_times import FinishedRun, RunTimes
from coda.model.job import FINISHED, Job, JobId, Phase
from coda.model.live_placement import live_placement
from coda.snapshots import removed_and_added


class EndedRuns:
    """Follows the jobs of successive worlds: which of them ran to their end, and how long."""

    def __init__(self) -> None:
        self._jobs: Sequence[Job] = ()
        self._running: dict[JobId, Job] = {}  # without a stop

    def learn(self, jobs: Sequence[Job], run_times: RunTimes, now_s: float) -> None:
        """Count the jobs that ran when they were seen last, and are finished or gone by `now_s`. O(jobs that changed).

        A job that was deleted while it ran counts too: its user was done with it. Attempts that end early do not, nor
        those on seats, which are slower."""
        before, self._jobs = self._jobs, jobs
        gone, come = removed_and_added(before, jobs)
        phases = {job.id: job.phase for job in come}
        for job in gone:
            ran, phase = self._running.pop(job.id, None), phases.get(job.id)
            if (
                ran is not None
                and ran.placement is not None
                and not ran.placement.gpus
                and (phase is None or phase in FINISHED)
            ):
                run_s = ran.resumed_s + max(0.0, now_s - ran.placement.committed_s)
                gpus = ran.replicas * ran.request.gpus
                run_times.add(FinishedRun(ran.user, ran.category, gpus, run_s))
        for job in come:
            if job.phase is Phase.RUNNING and live_placement(job) is not None:
                self._running[job.id] = job
