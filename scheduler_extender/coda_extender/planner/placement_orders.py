"""Writes the answers to wishes for cores into the placements of running jobs. Decides nothing.

One write per wish: a grant withholds its growth from the moment it is in the cache, which is before anybody can act on
it. A planner killed before the write leaves the wish open for the next one; killed after it, the answer stands.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final

from coda.cycle.planner_cycle import CycleResult
from coda.cycle.resize_grants import answer_from_denial, answer_from_grant
from coda.model.job import Job, WishAnswer
from coda.policy.config import PolicyConfig
from coda_extender.metrics import Metrics
from coda_extender.planner.status_writer import StatusWriter, Written
from coda_kube.objects.write import placement_json

log = logging.getLogger(__name__)

GRANTED: Final = "Granted"


class WishAnswers:
    """Answers wishes under the same conditions as every other write of the planner."""

    def __init__(self, writer: StatusWriter, metrics: Metrics, config: PolicyConfig) -> None:
        self._writer = writer
        self._metrics = metrics
        self._config = config

    def writes(self, result: CycleResult) -> Iterator[Coroutine[Any, Any, Written]]:
        """One write for each wish that the round came to an answer for."""
        now_s = time.time()
        for grant in result.decision.grants:
            yield self._answer(result.decided_on[grant.job], answer_from_grant(grant, now_s, self._config))
        for denial in result.decision.denials:
            yield self._answer(result.decided_on[denial.job], answer_from_denial(denial, now_s))

    async def _answer(self, job: Job, answer: WishAnswer) -> Written:
        assert job.placement is not None
        body = {"placement": placement_json(replace(job.placement, answer=answer))}
        written = await self._writer.write(job.id, lambda _status: body, decided_on=job)
        if written is Written.DONE:
            self._metrics.answered_wishes.labels(GRANTED if answer.granted else answer.code).inc()
            said = f"granted {answer.cores} cores per rank" if answer.granted else f"refused: {answer.message}"
            log.info("%s: wish %d %s", job.id, answer.sequence, said)
        return written
