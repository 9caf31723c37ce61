"""Leaves jobs out of decisions whose status writes fail, each for itself, and says so.

The job's status may be what cannot be written. So an Event on the job and a metric say it besides the wait reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from coda.cycle.wait_reasons import UNWRITABLE
from coda.errors import CodaError
from coda.model import JobId
from coda.model.job import WriteTrouble
from coda.placements.write_limits import FIRST_PAUSE_S, WriteFailures
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.events import event_about
from coda_extender.metrics import Metrics
from coda_extender.written import Written
from coda_kube.api.client import Client
from coda_kube.objects.names import API_VERSION, KIND

log = logging.getLogger(__name__)

_TROUBLE: Final[Mapping[Written, WriteTrouble]] = {
    Written.REFUSED: WriteTrouble.REFUSED,
    Written.FAILED: WriteTrouble.UNANSWERED,
    Written.CONFLICT: WriteTrouble.OVERTAKEN,
    Written.STALE: WriteTrouble.OVERTAKEN,
    Written.BUSY: WriteTrouble.SLOW,
}

_EVENT_EVERY_S: Final = 60.0  # per job
_EVENTS_AT_ONCE: Final = 4
_MESSAGE_LIMIT: Final = 900  # characters; an Event's message has 1024


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
        self._left_out: dict[JobId, tuple[float, WriteTrouble]] = {}  # until when
        self._told_s: dict[JobId, float] = {}
        self._worked_s = float("-inf")  # the last write of any job that worked
        self._posting: set[asyncio.Task[None]] = set()

    def note(self, job: JobId, written: Written, why: str) -> None:
        """A write of the job's placement ended, or did not begin."""
        now_s = self._clock()
        if written is Written.DONE:
            self._worked_s = now_s
            self._failures.pop(job, None)
            self._admit(job)
            return
        trouble = _TROUBLE.get(written)
        if trouble is None:
            return
        if trouble is WriteTrouble.SLOW:
            self._leave_out(job, now_s + FIRST_PAUSE_S, trouble)
            return
        failures = self._failures.get(job) or WriteFailures(since_s=now_s)
        is_overtaken = trouble is WriteTrouble.OVERTAKEN
        failures = failures.with_conflict(now_s) if is_overtaken else failures.with_failure(now_s)
        self._failures[job] = failures
        pause_s = failures.pause_s(others_work=self._worked_s > failures.since_s)
        if pause_s:
            self._leave_out(job, now_s + pause_s, trouble)
            self._tell(job, pause_s, trouble, why)

    def admit_due(self) -> None:
        """Decide again about those whose pause is over. Forget those that are gone."""
        now_s = self._clock()
        for job in [job for job, (until_s, _) in self._left_out.items() if until_s <= now_s]:
            self._admit(job)
        for by_job in (self._failures, self._told_s):
            for job in [job for job in by_job if not self._cluster.state.knows(job)]:
                del by_job[job]

    def next_s(self) -> float | None:
        """When the next pause is over, on the clock; None without any."""
        return min((until_s for until_s, _ in self._left_out.values()), default=None)

    def admit_all(self) -> None:
        """Forget everything: this replica begins or ends to lead."""
        for job in list(self._left_out):
            self._admit(job)
        self._failures.clear()
        self._told_s.clear()
        for task in self._posting:
            task.cancel()

    def _leave_out(self, job: JobId, until_s: float, trouble: WriteTrouble) -> None:
        self._left_out[job] = (until_s, trouble)
        self._cluster.set_unwritable(job, trouble)
        self._show_count()

    def _admit(self, job: JobId) -> None:
        if self._left_out.pop(job, None) is not None:
            self._cluster.set_unwritable(job, None)
            self._show_count()

    def _show_count(self) -> None:
        troubles = [trouble for _, trouble in self._left_out.values()]
        self._metrics.unwritable_jobs.set(len(troubles) - troubles.count(WriteTrouble.SLOW))

    def _tell(self, job: JobId, pause_s: float, trouble: WriteTrouble, why: str) -> None:
        now_s = self._clock()
        sentence = f"{UNWRITABLE[trouble].message} ({why})"
        log.warning("%s is left out for %.0f s: %s", job, pause_s, sentence)
        if self._told_s.get(job, float("-inf")) + _EVENT_EVERY_S <= now_s and len(self._posting) < _EVENTS_AT_ONCE:
            self._told_s[job] = now_s
            task = asyncio.create_task(self._post(job, UNWRITABLE[trouble].code.value, sentence[:_MESSAGE_LIMIT]))
            self._posting.add(task)
            task.add_done_callback(self._posting.discard)

    async def _post(self, job: JobId, reason: str, message: str) -> None:
        """Post the Event; it is lost if the API server does not take it."""
        item = self._cluster.state.job_json_by_id.get(job)
        if item is None:
            return
        about = {"apiVersion": API_VERSION, "kind": KIND, **item["metadata"]}
        event = event_about(about, self._client.clock(), reason, message, is_warning=True)
        try:
            await self._client.create(f"/api/v1/namespaces/{item['metadata']['namespace']}/events", event)
        except CodaError as error:
            log.warning("no event about %s was posted: %s", job, error)
        else:
            self._worked_s = self._clock()
