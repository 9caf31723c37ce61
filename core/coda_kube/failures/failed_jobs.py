"""The failed jobs of each user, from the TrainingJobs that the API server has.

Nothing is stored besides the jobs themselves: after a restart or a change of leader, the list of jobs tells the same.
A job that is deleted is forgotten, so its user may end the matter. A user counts as in the shares of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from coda.correlation import Alike, FailedJob, Outcome, alike_among
from coda.correlation.failed_jobs import WINDOW_S
from coda.lifecycle.failures import RANK_FAILED
from coda.model import JobId, Phase
from coda.model.decision import name_for
from coda_kube.failures.node_failures import NodeFailures
from coda_kube.failures.owners import Owner, owner_from_json
from coda_kube.objects.quantities import seconds_from_time

Item = Mapping[str, Any]
MOST_JOBS: Final = 200
"""Failed jobs that are remembered of one user, the newest. Our choice: three stops are looked for."""


class FailedJobs:
    """The jobs of a day that failed by themselves, by user. Seeing a job twice changes nothing."""

    def __init__(self) -> None:
        self._jobs_by_owner: dict[Owner, dict[str, FailedJob]] = {}
        self._owner_by_uid: dict[str, Owner] = {}
        self.on_nodes = NodeFailures()

    def see(self, job: Item, now_s: float) -> None:
        """Remember how a job failed, if it did within a day; forget it if it did not. O(1), now and then O(jobs)."""
        uid = job["metadata"]["uid"]
        self.on_nodes.see(job, now_s)
        self._forget(uid)  # whom it counts for may have changed
        failed = failed_job_from_json(job)
        if failed is None or now_s - failed.time_s >= WINDOW_S:
            return
        owner = owner_from_json(job["metadata"])
        jobs = self._jobs_by_owner.setdefault(owner, {})
        jobs[uid] = failed
        self._owner_by_uid[uid] = owner
        if len(jobs) > MOST_JOBS:
            self._drop_old(jobs, now_s)

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self.on_nodes.forget(uid)
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        owner = self._owner_by_uid.pop(uid, None)
        if owner is None:
            return
        del self._jobs_by_owner[owner][uid]
        if not self._jobs_by_owner[owner]:
            del self._jobs_by_owner[owner]

    def forget_all(self) -> None:
        """Forget every job: they are listed again."""
        self.on_nodes.forget_all()
        self._jobs_by_owner.clear()
        self._owner_by_uid.clear()

    def alike(self, job: Item, signature: str, now_s: float) -> Alike:
        """Return the other jobs of the same user that failed so, with names that users of the job's namespace may know.

        O(the user's failed jobs)."""
        jobs, metadata = self._jobs_by_owner.get(owner_from_json(job["metadata"]), {}), job["metadata"]
        alike = alike_among(jobs.values(), signature, metadata["uid"], now_s)
        return replace(alike, names=tuple([name_for(metadata["namespace"], JobId(name)) for name in alike.names]))

    def _drop_old(self, jobs: dict[str, FailedJob], now_s: float) -> None:
        oldest = min(jobs.values(), key=lambda job: (job.time_s, job.name))
        for job in [job for job in jobs.values() if job is oldest or now_s - job.time_s >= WINDOW_S]:
            del jobs[job.uid], self._owner_by_uid[job.uid]


def failed_job_from_json(job: Item) -> FailedJob | None:
    """Return how a job failed last; None if it did not, or left nothing to compare."""
    metadata, status = job["metadata"], job.get("status") or {}
    failure = status.get("failure") or {}
    signature, failed_s = failure.get("signature"), seconds_from_time(failure.get("time"))
    if not signature or not failed_s:
        return None
    phase, outcome, time_s = status.get("phase"), Outcome.TRIED, failed_s
    if phase == Phase.SUCCEEDED.value:
        outcome, time_s = Outcome.RECOVERED, seconds_from_time(status.get("completionTime")) or failed_s
    elif phase == Phase.FAILED.value and status.get("reason") == RANK_FAILED:  # and not by its deadline
        outcome = Outcome.CUT_SHORT if failure.get("cutShort") else Outcome.STOPPED
    return FailedJob(
        uid=metadata["uid"],
        name=f"{metadata['namespace']}/{metadata['name']}",
        signature=signature,
        time_s=time_s,
        outcome=outcome,
    )
