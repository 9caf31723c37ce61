"""The division between the arrays inside a simulation, where it follows what finished jobs used.

The rule is the core's.
"""

from __future__ import annotations

from coda.history.division import EVERY_S, SPAN_S, HeldSpan, Shares, next_shares, past_use
from coda.model.world import ArrayQuota
from coda.policy.config import ArraysConfig
from coda_sim.engine.job_run import JobRun


class PastDivision:
    """One division for all nodes; it begins as configured and may take a step every `EVERY_S`."""

    def __init__(self, arrays: ArraysConfig) -> None:
        self.shares = Shares(arrays.reserve_cores_per_gpu, arrays.large_share)
        self._spans: list[HeldSpan] = []
        self._due_s = EVERY_S

    def add(self, run: JobRun, now_s: float) -> None:
        """A job ends now; call it before it leaves its nodes."""
        if run.gpus and run.job.placement is not None:
            cores = run.held_cores if run.job.tunable else 0
            category = run.model.profile.category.value if run.model.profile else ""
            self._spans.append(HeldSpan(run.job.placement.committed_s, now_s, run.gpus, cores, category))

    def next_quota(self, now_s: float) -> ArrayQuota | None:
        """Return the division from now on; None if it stays. O(jobs of the last week) once in `EVERY_S`."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + EVERY_S
        self._spans = [span for span in self._spans if span.end_s > now_s - SPAN_S]
        before, self.shares = self.shares, next_shares(self.shares, past_use(self._spans, now_s - SPAN_S, now_s))
        if self.shares == before:
            return None
        cores_per_gpu, large_share = self.shares
        return ArrayQuota(name="from-history", reserve_cores_per_gpu=cores_per_gpu, large_share=large_share)
