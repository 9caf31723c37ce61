"""Writes the order to stop into the placements of running jobs. Decides nothing.

One write per job: from then on its plan holds no more, the operator deletes its pods and lets it wait again, and the
planner commits their room to the job that it is stopped for, whose plan is released once they are gone. A planner
killed between two of these leaves the rest to the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

from coda.cycle.planner_cycle import CycleResult
from coda.model.decision import Stop
from coda.model.job import Job, StopOrder
from coda_extender.metrics import Metrics
from coda_extender.planner.status_writer import StatusWriter, Written
from coda_kube.objects.write import placement_json

log = logging.getLogger(__name__)


class StopOrders:
    """Orders stops under the same conditions as every other write of the planner."""

    def __init__(self, writer: StatusWriter, metrics: Metrics) -> None:
        self._writer = writer
        self._metrics = metrics

    def writes(self, result: CycleResult) -> Iterator[Coroutine[Any, Any, Written]]:
        """One write for each job that the round stops."""
        now_s = time.time()
        for stop in result.decision.stops:
            yield self._order(result.decided_on[stop.job], stop, now_s)

    async def _order(self, job: Job, stop: Stop, now_s: float) -> Written:
        assert job.placement is not None
        order = StopOrder(cause=stop.cause, by=stop.by, since_s=now_s)
        body = {"placement": placement_json(replace(job.placement, stop=order))}
        written = await self._writer.write(job.id, lambda _status: body, decided_on=job)
        if written is Written.DONE:
            self._metrics.stops.labels(stop.cause.value).inc()
            log.info("%s: attempt %d is stopped for %s (%s)", job.id, stop.attempt, stop.by, stop.cause.value)
        return written
