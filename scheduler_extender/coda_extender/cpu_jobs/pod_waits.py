"""How long CPU jobs waited for what: their release says it, and the history keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from coda.model import JobId
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.planner_process import ChangedRefusals
from coda_kube.objects.pods.cpu_job import pod_id_of

PRUNE_S: Final = 60.0
"""Between two looks for accounts of pods that are gone. Our choice."""


class _Account(NamedTuple):
    uid: str  # of the pod: the next one of its name has waited for nothing
    code: str  # empty: it is not refused now
    since_s: float
    before: tuple[tuple[str, float], ...]  # code and seconds, of the refusals before


class PodWaits:
    """An account for each CPU job that is refused. A new leader begins without: what was before has no cause."""

    def __init__(self, cluster: ExtenderCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._by_job: dict[JobId, _Account] = {}
        self._pruned_s = clock()

    def change_refusals(self, changes: ChangedRefusals) -> None:
        """Take over what changed. O(jobs that changed)."""
        now_s = self._clock()
        for _, reason, jobs in changes.groups:
            for job in jobs:
                if pod_id_of(job) is not None:
                    self._turn(job, reason.code.value, now_s)
        for job in changes.gone:
            if job in self._by_job:
                self._turn(job, "", now_s)
        if now_s > self._pruned_s + PRUNE_S:
            self._prune(now_s)

    def of(self, job: JobId) -> Mapping[str, float]:
        """Return the seconds that the job waited, by the code of the reason."""
        account = self._by_job.get(job)
        return {} if account is None or account.uid != self._uid(job) else _closed(account, self._clock())

    def forget(self) -> None:
        """Forget all accounts: another process may decide meanwhile."""
        self._by_job.clear()

    def _turn(self, job: JobId, code: str, now_s: float) -> None:
        known, uid = self._by_job.get(job), self._uid(job)
        if known is None or known.uid != uid:
            self._by_job[job] = _Account(uid, code, now_s, ())
        elif known.code != code:
            self._by_job[job] = _Account(uid, code, now_s, tuple(_closed(known, now_s).items()))

    def _uid(self, job: JobId) -> str:
        jobs = self._cluster.state.cpu_jobs
        return jobs.pod(job).uid if job in jobs else ""

    def _prune(self, now_s: float) -> None:
        self._pruned_s = now_s
        jobs = self._cluster.state.cpu_jobs
        for job in [job for job in self._by_job if job not in jobs or not jobs.pod(job).gated]:
            del self._by_job[job]


def _closed(account: _Account, now_s: float) -> dict[str, float]:
    waits = dict(account.before)
    if account.code:
        waits[account.code] = waits.get(account.code, 0.0) + now_s - account.since_s
    return waits
