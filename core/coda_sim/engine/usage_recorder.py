"""Records what all jobs together hold and do, after every simulated time."""

from __future__ import annotations

from coda_sim.engine.cluster import Cluster
from coda_sim.engine.idle_causes import IdleCauses
from coda_sim.engine.job_run import JobRun
from coda_sim.engine.log import UsageTrail


class UsageRecorder:
    """Sums over the running jobs, and the causes of idle GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self.trail = UsageTrail()
        self._idle_causes = IdleCauses(cluster)
        self._gpus = self._cores = 0
        self._busy_gpus = self._useful_gpus = 0.0

    def add_waiting(self, run: JobRun) -> None:
        """Count a job that waits."""
        if run.gpus:
            self._idle_causes.add_waiting(run)

    def remove_waiting(self, run: JobRun) -> None:
        """Count a job as waiting no more."""
        if run.gpus:
            self._idle_causes.remove_waiting(run)

    def add_holding(self, run: JobRun) -> None:
        """Count the GPUs and cores of a job as held."""
        self._gpus += run.gpus
        self._cores += run.held_cores

    def remove_holding(self, run: JobRun) -> None:
        """Count the GPUs and cores of a job as held no more."""
        self._gpus -= run.gpus
        self._cores -= run.held_cores

    def change_pace(self, run: JobRun, busy_gpus: float, pace: float) -> None:
        """Add the differences of a job's busy GPUs and of its pace."""
        self._busy_gpus += busy_gpus
        self._useful_gpus += pace * run.gpus

    def record(self, now_s: float) -> None:
        """Append the present usage to the trail."""
        if not self._gpus:
            self._useful_gpus = self._busy_gpus = 0.0  # rounding errors
        self.trail.append(
            now_s,
            (self._gpus, self._cores),
            self._busy_gpus,
            self._useful_gpus,
            self._idle_causes.jobs,
            self._idle_causes.idle(),
        )
