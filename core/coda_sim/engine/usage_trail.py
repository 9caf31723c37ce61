"""What all jobs together hold and do now, kept while they come and go, and noted after every moment.

What must not live here: anything of a single job.
"""

from __future__ import annotations

from coda_sim.engine.cluster import Cluster
from coda_sim.engine.idle_causes import IdleCauses
from coda_sim.engine.job_run import JobRun
from coda_sim.engine.log import Trail


class UsageTrail:
    """Sums over the running jobs, and why GPUs are idle."""

    def __init__(self, cluster: Cluster) -> None:
        self.trail = Trail()
        self._idling = IdleCauses(cluster)
        self._gpus = self._cores = 0
        self._busy_gpus = self._useful_gpus = 0.0

    def waits(self, run: JobRun) -> None:
        """The job waits from now on."""
        if run.gpus:
            self._idling.wait(run)

    def waits_no_more(self, run: JobRun) -> None:
        """It was given nodes, or will never have any."""
        if run.gpus:
            self._idling.leave(run)

    def holds(self, run: JobRun, sign: int) -> None:
        """The job holds its GPUs and cores from now on; no more where `sign` is negative."""
        self._gpus += sign * run.gpus
        self._cores += sign * run.held_cores

    def goes(self, run: JobRun, busy_gpus: float, pace: float) -> None:
        """Its busy GPUs and its pace are so much more than before."""
        self._busy_gpus += busy_gpus
        self._useful_gpus += pace * run.gpus

    def note(self, now_s: float) -> None:
        """This is how it is from now on."""
        if not self._gpus:
            self._useful_gpus = self._busy_gpus = 0.0  # what rounding left
        self.trail.note(
            now_s,
            (self._gpus, self._cores),
            self._busy_gpus,
            self._useful_gpus,
            self._idling.jobs,
            self._idling.idle(),
        )
