"""Writes the extender's part of a job's status: `placement`, `pending` and `sharing`, always all at once.

Every write has three conditions: the Lease is held, the job is as it was decided on, and nobody wrote to the object
meanwhile (its resourceVersion). A write that takes long goes on by itself: nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coda.errors import Conflict, Outage
from coda.model import Job, JobId
from coda.placements.failed_writes import DOUBT_S
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.metrics import Metrics
from coda_extender.write_slots import WriteSlots
from coda_extender.written import Ended, Written
from coda_kube.api.client import Client, NotFound, Rejected, TooBusy
from coda_kube.api.status_apply import apply_status
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import EXTENDER
from coda_kube.objects.read import placement_from_json
from coda_kube.objects.write import job_path, status_patch

log = logging.getLogger(__name__)

RETRY_S: Final = (0.02, 0.2, 0.5, 1.0, 2.0)
"""How long to wait after writes that did not work, each time longer; the first is a conflict's."""

ANSWER_S: Final = 12.0
"""A write is given up after this. Our choice: a webhook's default limit is 10 s."""

ASKED_AGAIN_S: Final = 30.0
"""A write whose fate is unknown is sent again for this long. Our choice: as long as a webhook may take at most."""

OWN_FIELDS: Final = ("placement", "pending", "sharing")

Change = Callable[[Json], Json | None]
"""From a status to the extender's new part of it; None: write nothing."""


class StatusWriter:
    """Writes as the extender's field manager: one write per job at a time, `at_once` for all jobs; see `WriteSlots`."""

    def __init__(
        self, client: Client, cluster: ExtenderCluster, metrics: Metrics, held: Callable[[], bool], *, at_once: int
    ) -> None:
        self.now_s = client.clock  # the API server's time, for all that is written
        self.on_end: Ended = lambda _job, _written, _why: None
        self._client = client
        self._cluster = cluster
        self._metrics = metrics
        self._held = held
        self._slots = WriteSlots(at_once, cluster.changed.set)

    async def write(
        self,
        job_id: JobId,
        change: Change,
        *,
        decided_on: Job | None = None,
        done: Callable[[], None] | None = None,
        ended: Callable[[Written], None] | None = None,
    ) -> Written:
        """Apply `change`, if the job is still as in `decided_on`. Soon or late, `done` is called once it is stored, and
        `ended` with what came of a write that began, unless it is cancelled.

        With `decided_on` the capacity of the new placement counts as taken from now on."""
        written = await self._slots.run(job_id, lambda: self._write_and_tell(job_id, change, decided_on, done, ended))
        if written is None and decided_on is not None:
            self.on_end(job_id, Written.BUSY, "")
        return self._counted(written or Written.BUSY)

    def void(self, job_id: JobId, plan_id: str) -> None:
        """Count a placement no more that cannot be removed."""
        self._cluster.void_placement(job_id, plan_id)

    def cancel(self) -> None:
        """Give up every slow write: this replica leads no more."""
        self._slots.cancel()

    def _counted(self, written: Written) -> Written:
        if written not in (Written.DONE, Written.NEEDLESS):
            self._metrics.refused_writes.labels(written.value).inc()
        return written

    async def _write_and_tell(
        self,
        job_id: JobId,
        change: Change,
        decided_on: Job | None,
        done: Callable[[], None] | None,
        ended: Callable[[Written], None] | None,
    ) -> Written:
        written = await self._write(job_id, change, decided_on, done)
        if ended is not None:
            ended(written)
        return written

    async def _write(
        self, job_id: JobId, change: Change, decided_on: Job | None, done: Callable[[], None] | None
    ) -> Written:
        state = self._cluster.state
        item = state.job_json_by_id.get(job_id)
        if item is None or (decided_on is not None and not _is_unchanged(decided_on, state.job(job_id))):
            if decided_on is not None:
                self.on_end(job_id, Written.STALE, "it changes all the time")
            return Written.STALE
        status = change(item.get("status") or {})
        if status is None:
            return Written.NEEDLESS
        if not self._held():
            return Written.LAPSED
        version = self._cluster.begin_write(job_id, placement_from_json(status)) if decided_on is not None else None
        written, why, in_doubt = Written.LAPSED, "", True
        try:
            written, why, in_doubt = await self._send_until_answered(job_id, item["metadata"], status)
        finally:
            if version is not None and written is not Written.DONE:
                self._cluster.end_write_in(job_id, version, DOUBT_S if in_doubt else 0.0)
        if written is Written.DONE and done is not None:
            done()
        if decided_on is not None:
            self.on_end(job_id, written, why)
        return written

    async def _send_until_answered(self, job_id: JobId, metadata: Json, status: Json) -> tuple[Written, str, bool]:
        """As `_send`. While nobody knows whether the write is stored, the same one is sent again: that tells."""
        began_s, tries = time.monotonic(), 0
        while True:
            written, why, in_doubt = await self._send(job_id, metadata, status)
            if written is not Written.FAILED or time.monotonic() - began_s > ASKED_AGAIN_S:
                return written, why, in_doubt
            tries += 1
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            if not self._held():
                return Written.LAPSED, why, True

    async def _send(self, job_id: JobId, metadata: Json, status: Json) -> tuple[Written, str, bool]:
        """The outcome, why it is not done, and whether it may still be stored."""
        body = status_patch(job_id, status, uid=metadata["uid"], version=metadata["resourceVersion"])
        path = job_path(job_id, status=True)
        try:
            answer = await apply_status(
                self._client, path, body, manager=EXTENDER, fields=OWN_FIELDS, timeout_s=ANSWER_S
            )
        except Conflict as error:
            return Written.CONFLICT, str(error), True  # perhaps with an earlier write of ours
        except NotFound as error:
            return Written.STALE, str(error), True  # until the watch says that it is gone
        except TooBusy as error:
            return Written.BUSY, str(error), False
        except (Outage, Rejected) as error:
            log.warning("the status of %s was not written: %s", job_id, error)
            in_doubt = isinstance(error, Outage) and error.may_have_worked
            return Written.FAILED if in_doubt else Written.REFUSED, str(error), in_doubt
        self._cluster.jobs.put(answer)
        return Written.DONE, "", False


def _is_unchanged(before: Job, now: Job | None) -> bool:
    """True if only its pods changed (which are bound or missing, and what they have), or when it saved last."""
    if before is now:
        return True
    return now is not None and _without_pods(before) == _without_pods(now)


def _without_pods(job: Job) -> Job:
    bare = replace(job, bound=frozenset(), unbound={}, gone=frozenset(), leftovers=False, pod_cpu_m={})
    return replace(bare, asked_anyway=0, saved_s=0.0)
