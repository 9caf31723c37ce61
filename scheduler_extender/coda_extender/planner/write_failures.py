"""Leaves jobs out of decisions whose writes fail, each for itself, and says so.

The job's status may be what cannot be written. So an Event on the job and a metric say it besides the wait reason.
Running CPU jobs whose owner's disruption budget refuses evictions are left out together, and nobody is alarmed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from coda.cycle.wait_reasons import UNWRITABLE
from coda.errors import CodaError
from coda.model import JobId
from coda.model.job import WriteTrouble
from coda.placements.failed_writes import FIRST_PAUSE_S, BudgetRefusals, WriteFailures
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.events import event_about
from coda_extender.metrics import Metrics
from coda_extender.written import Written
from coda_kube.api.client import Client
from coda_kube.objects.names import API_VERSION, KIND
from coda_kube.objects.pods.cpu_job import pod_id_of

log = logging.getLogger(__name__)

_TROUBLE: Final[Mapping[Written, WriteTrouble]] = {
    Written.REFUSED: WriteTrouble.REFUSED,
    Written.FAILED: WriteTrouble.UNANSWERED,
    Written.CONFLICT: WriteTrouble.OVERTAKEN,
    Written.STALE: WriteTrouble.OVERTAKEN,
    Written.BUSY: WriteTrouble.SLOW,
}

_IN_VAIN: Final = frozenset({Written.REFUSED, Written.FAILED, Written.BUSY})

_EVENT_EVERY_S: Final = 60.0  # per job
_EVENTS_AT_ONCE: Final = 4
_MESSAGE_LIMIT: Final = 900  # characters; an Event's message has 1024


_Owner = tuple[str, str]
"""Namespace and uid: whoever claims an owner elsewhere keeps none of its pods."""


class _Kind(Enum):
    """Writes that need one right, and meet the same webhooks: one that works says something of the others."""

    STATUS = "status"
    RELEASE = "release"
    EVICTION = "eviction"


class _Pause(NamedTuple):
    until_s: float
    trouble: WriteTrouble
    is_protected: bool  # by a disruption budget, which is no fault


class JobsLeftOut:
    """The jobs whose last writes failed. Lost with the process: then they are tried again."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._failures: dict[JobId, WriteFailures] = {}
        self._left_out: dict[JobId, _Pause] = {}
        self._at_fault: set[JobId] = set()  # of these, those that somebody should look at
        self._refusals_by_owner: dict[_Owner, BudgetRefusals] = {}
        self._told_s: dict[JobId, float] = {}
        self._failing: set[_Owner] = set()  # whose last release failed; with "" for a uid: whose namespace's
        self._worked_s = dict.fromkeys(_Kind, float("-inf"))  # the last write of any job that worked
        self._posting: set[asyncio.Task[None]] = set()

    def note(self, job: JobId, written: Written, why: str) -> None:
        """A write of the job's placement ended, or did not begin."""
        if pod_id_of(job) is None:
            self._note(job, written, why, _Kind.STATUS)
            return
        if written is Written.DONE:
            self._failing.difference_update(self._owners(job))
        elif written in _IN_VAIN:
            self._failing.update(self._owners(job))
        self._note(job, written, why, _Kind.RELEASE)

    def doubts(self, job: JobId) -> int:
        """How much speaks against it that a release of the CPU job works: failures of its own, of its owner's pods and
        of its namespace's."""
        if not self._failing:
            return int(job in self._failures)
        return (job in self._failures) + sum(owner in self._failing for owner in self._owners(job))

    def note_eviction(self, job: JobId, owner_uid: str, written: Written, why: str) -> None:
        """An eviction of the CPU job ended, or was tried in vain."""
        now_s, owner = self._clock(), (job.partition("/")[0], owner_uid)
        known = self._refusals_by_owner.get(owner)
        if written is Written.PROTECTED:
            refusals = self._refusals_by_owner[owner] = (known or BudgetRefusals()).with_refusal(now_s)
            if refusals is not known:
                log.info("no pod of the owner of %s is evicted for %.0f s: %s", job, refusals.until_s - now_s, why)
            self._leave_out(job, _Pause(refusals.until_s, WriteTrouble.REFUSED, is_protected=True))
            self._keep_out(owner, refusals, self._cluster.state.cpu_jobs.jobs_of(owner_uid))
        elif written is Written.DONE and known is not None:
            self._refusals_by_owner[owner] = known.with_eviction(now_s)
        self._note(job, written, why, _Kind.EVICTION)

    def admit_due(self) -> None:
        """Decide again about those whose pause is over. Forget those that are gone."""
        now_s = self._clock()
        for job in [job for job, pause in self._left_out.items() if pause.until_s <= now_s]:
            self._admit(job)
        for by_job in (self._failures, self._told_s):
            for job in [job for job in by_job if not self._cluster.state.knows(job)]:
                del by_job[job]
        self._failing = {
            owner for owner in self._failing if not owner[1] or self._cluster.state.cpu_jobs.jobs_of(owner[1])
        }
        for owner, refusals in [*self._refusals_by_owner.items()]:
            jobs = self._cluster.state.cpu_jobs.jobs_of(owner[1])
            if now_s < refusals.until_s:
                self._keep_out(owner, refusals, jobs)  # some may have come since
            elif not jobs:
                del self._refusals_by_owner[owner]

    def next_s(self) -> float | None:
        """When the next pause is over, on the clock; None without any."""
        return min((pause.until_s for pause in self._left_out.values()), default=None)

    def admit_all(self) -> None:
        """Forget everything: this replica begins or ends to lead."""
        self._refusals_by_owner.clear()
        for job in list(self._left_out):
            self._admit(job)
        self._failures.clear()
        self._failing.clear()
        self._told_s.clear()
        for task in self._posting:
            task.cancel()

    def _note(self, job: JobId, written: Written, why: str, kind: _Kind) -> None:
        now_s = self._clock()
        if written is Written.DONE:
            self._worked_s[kind] = now_s
            self._failures.pop(job, None)
            self._admit(job)
            return
        trouble = _TROUBLE.get(written)
        if trouble is None:
            return
        if trouble is WriteTrouble.SLOW:
            self._leave_out(job, _Pause(now_s + FIRST_PAUSE_S, trouble, is_protected=False))
            return
        failures = self._failures.get(job) or WriteFailures(since_s=now_s)
        is_overtaken, answered = trouble is WriteTrouble.OVERTAKEN, trouble is WriteTrouble.REFUSED
        failures = failures.with_conflict(now_s) if is_overtaken else failures.with_failure(now_s, answered=answered)
        self._failures[job] = failures
        worked_s = self._worked_s[kind] if answered else max(self._worked_s.values())
        pause_s = failures.pause_s(others_work=worked_s > failures.since_s)
        if pause_s:
            self._leave_out(job, _Pause(now_s + pause_s, trouble, is_protected=False))
            posts = kind is not _Kind.EVICTION  # the order's own Event says it
            self._tell(job, pause_s, trouble, why, posts=posts)

    def _keep_out(self, owner: _Owner, refusals: BudgetRefusals, jobs: Iterable[JobId]) -> None:
        """Leave out every pod of the owner that runs; one that waits may start. O(pods of the owner)."""
        cpu_jobs = self._cluster.state.cpu_jobs
        for job in jobs:
            is_its = job.partition("/")[0] == owner[0] and job in cpu_jobs and not cpu_jobs.pod(job).gated
            pause = self._left_out.get(job)
            if is_its and (pause is None or pause.until_s < refusals.until_s):
                self._leave_out(job, _Pause(refusals.until_s, WriteTrouble.REFUSED, is_protected=True))

    def _owners(self, job: JobId) -> set[_Owner]:
        """The owner of the CPU job, and its namespace."""
        namespace = job.partition("/")[0]
        return {(namespace, ""), (namespace, self._cluster.state.cpu_jobs.owner_of(job))}

    def _leave_out(self, job: JobId, pause: _Pause) -> None:
        self._left_out[job] = pause
        self._cluster.set_unwritable(job, pause.trouble)
        self._show_fault(job, is_fault=pause.trouble is not WriteTrouble.SLOW and not pause.is_protected)

    def _admit(self, job: JobId) -> None:
        if self._left_out.pop(job, None) is not None:
            self._cluster.set_unwritable(job, None)
            self._show_fault(job, is_fault=False)

    def _show_fault(self, job: JobId, *, is_fault: bool) -> None:
        (self._at_fault.add if is_fault else self._at_fault.discard)(job)
        self._metrics.unwritable_jobs.set(len(self._at_fault))

    def _tell(self, job: JobId, pause_s: float, trouble: WriteTrouble, why: str, *, posts: bool) -> None:
        now_s = self._clock()
        sentence = f"{UNWRITABLE[trouble].message} ({why})"
        log.warning("%s is left out for %.0f s: %s", job, pause_s, sentence)
        is_due = self._told_s.get(job, float("-inf")) + _EVENT_EVERY_S <= now_s
        if posts and is_due and len(self._posting) < _EVENTS_AT_ONCE:
            self._told_s[job] = now_s
            task = asyncio.create_task(self._post(job, UNWRITABLE[trouble].code.value, sentence[:_MESSAGE_LIMIT]))
            self._posting.add(task)
            task.add_done_callback(self._posting.discard)

    async def _post(self, job: JobId, reason: str, message: str) -> None:
        """Post the Event; it is lost if the API server does not take it."""
        pod = self._cluster.pod_item(job)
        item = pod or self._cluster.state.job_json_by_id.get(job)
        if item is None:
            return
        kind = {"apiVersion": "v1", "kind": "Pod"} if pod is not None else {"apiVersion": API_VERSION, "kind": KIND}
        about = kind | item["metadata"]
        event = event_about(about, self._client.clock(), reason, message, is_warning=True)
        try:
            await self._client.create(f"/api/v1/namespaces/{item['metadata']['namespace']}/events", event)
        except CodaError as error:
            log.warning("no event about %s was posted: %s", job, error)
        else:
            self._worked_s[_Kind.STATUS] = self._clock()
