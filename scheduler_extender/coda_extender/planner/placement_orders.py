"""Writes orders into the placements of running jobs: to stop for another job, and the answers to wishes for cores.

One write per job. Once it is in the cache it counts: the capacity of a stopped job goes to the other job, and a grant
withholds its growth. The operator does the rest. It deletes the pods of a stopped job and requeues it; the other job's
placement is released when these pods are gone. If the planner is killed before a write, the next leader decides again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from coda.cycle import CycleResult, answer_from_denial, answer_from_grant, answer_from_return
from coda.model import Job, JobId, Placement
from coda.model.decision import Stop
from coda.model.job import WishAnswer
from coda.placements.stop_orders import order_from_stop
from coda.policy import PolicyConfig
from coda_extender.metrics import GRANTED, Metrics
from coda_extender.planner.status_writer import StatusWriter
from coda_extender.written import Written
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import with_sharing

log = logging.getLogger(__name__)


class PlacementOrders:
    """Writes orders under the same conditions as every other write of the planner.

    `may_grow`: whether the ranks of a running job may have so many cores now, beside everything that is known."""

    def __init__(
        self, writer: StatusWriter, metrics: Metrics, config: PolicyConfig, *, may_grow: Callable[[JobId, int], bool]
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._config = config
        self._may_grow = may_grow

    def writes(self, result: CycleResult) -> Iterator[Coroutine[Any, Any, Written]]:
        """One write for each stop, each grant, each return of cores and each denial of the cycle."""
        now_s, job_by_id = self._writer.now_s(), result.decided_on
        for stop in result.decision.stops:
            yield self._order_stop(job_by_id[stop.job], stop, now_s)
        for grant in result.decision.grants:
            yield self._grant(job_by_id[grant.job], answer_from_grant(grant, now_s, self._config))
        for grant in result.decision.returns:
            job = job_by_id[grant.job]
            yield self._answer_wish(job, answer_from_return(grant, job, now_s, self._config))
        for denial in result.decision.denials:
            yield self._answer_wish(job_by_id[denial.job], answer_from_denial(denial, now_s))

    async def _order_stop(self, job: Job, stop: Stop, now_s: float) -> Written:
        def done() -> None:
            self._metrics.stops.labels(stop.cause.value).inc()
            told = f", with {order.notice_s:g} s of notice" if order.notice_s else ""
            log.info("%s: attempt %d is stopped for %s (%s%s)", job.id, stop.attempt, stop.by, stop.cause.value, told)

        order = order_from_stop(stop, job, now_s, self._config)
        return await self._write(job, replace(_placement_of(job), stop=order), done)

    async def _grant(self, job: Job, answer: WishAnswer) -> Written:
        """Grant the wish, unless its cores are no longer free: then it stays open, and the next cycle sees why."""

        def is_free() -> bool:
            may_grow = self._may_grow(job.id, answer.cores)
            if not may_grow:
                log.info("%s: wish %d stays open: other pods may take its cores", job.id, answer.sequence)
            return may_grow

        return await self._answer_wish(job, answer, is_free)

    async def _answer_wish(self, job: Job, answer: WishAnswer, holds: Callable[[], bool] = lambda: True) -> Written:
        def done() -> None:
            self._metrics.answered_wishes.labels(answer.code or GRANTED).inc()
            said = f"refused: {answer.message}"
            if answer.granted:
                said = answer.message or f"granted {answer.cores} cores per rank"
            log.info("%s: wish %d %s", job.id, answer.sequence, said)

        return await self._write(job, replace(_placement_of(job), answer=answer), done, holds)

    async def _write(
        self, job: Job, placement: Placement, done: Callable[[], None], holds: Callable[[], bool] = lambda: True
    ) -> Written:
        """`holds`: asked when the write begins. From the same moment on, filter calls count the placement."""

        def body(status: Json) -> Json | None:
            return with_sharing(placement, status) if holds() else None

        return await self._writer.write(job.id, body, decided_on=job, done=done)


def _placement_of(job: Job) -> Placement:
    assert job.placement is not None, "only jobs with a placement are stopped or resized"
    return job.placement
