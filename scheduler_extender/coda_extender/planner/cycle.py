"""Runs the planner's cycles, in a thread beside the event loop, and finds the wait reasons that are not written yet.

All work that grows with the number of jobs is done here, in steps of Python and not in one long call of C. A filter
answer waits for the interpreter no longer than one step takes.
"""

from __future__ import annotations

from collections.abc import Mapping

from coda.cache import PlannerCache
from coda.cycle import CycleResult, CycleSnapshot, run_cycle
from coda.model import JobId
from coda.model.decision import Refusal
from coda.policy import PolicyConfig
from coda_extender.planner.pending_reasons import PendingNotice, PendingNotices, notice_for
from coda_kube.objects.json_types import Json


class CycleRunner:
    """Runs one cycle after the other, and keeps what saves time in the next one. Not for two threads at once."""

    def __init__(self) -> None:
        self._cache = PlannerCache()
        self._notice_by_job: dict[JobId, tuple[Refusal, Json | None, PendingNotice | None]] = {}

    def run(
        self, snapshot: CycleSnapshot, job_json_by_id: Mapping[JobId, Json], config: PolicyConfig
    ) -> tuple[CycleResult, PendingNotices]:
        """Decide, and compare every wait reason with the one that the job's object shows."""
        result = run_cycle(snapshot, config, self._cache)
        return result, self._notices(result.decision.refusals, job_json_by_id)

    def _notices(self, refusals: tuple[Refusal, ...], job_json_by_id: Mapping[JobId, Json]) -> PendingNotices:
        """The reasons to write. A job is compared again only if its refusal or its object is another one."""
        known = self._notice_by_job
        if len(known) > 2 * len(refusals) + 1000:
            known.clear()
        notices: list[PendingNotice] = []
        jobs = [refusal.job for refusal in refusals]
        for refusal, item, before in zip(refusals, map(job_json_by_id.get, jobs), map(known.get, jobs), strict=True):
            if before is None or before[0] is not refusal or before[1] is not item:
                before = known[refusal.job] = (refusal, item, notice_for(refusal, item))
            if before[2] is not None:
                notices.append(before[2])
        return PendingNotices.of(notices)
