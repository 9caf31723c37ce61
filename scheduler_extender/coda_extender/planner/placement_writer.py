"""Writes the placements of jobs that wait to start: commits them, and releases, adopts or drops them after review.

Where nothing is in the way of a new placement, one write commits and releases it (docs/decisions/0040)."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from coda.cycle import CycleResult
from coda.model import Job, Placement
from coda.model.decision import Start
from coda.model.seats import as_sharer
from coda.placements import PlacementAction, PlacementDefect, PlacementReview, placement_from_start
from coda.placements.review import adopted_placement, is_given_up, released_placement, with_volume_time
from coda.policy import PolicyConfig
from coda_extender.metrics import IN_FLIGHT, VOID, Metrics
from coda_extender.planner.status_writer import StatusWriter
from coda_extender.written import Written
from coda_kube.api.lease import Elector
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import placement_json, sharing_json, with_sharing

log = logging.getLogger(__name__)

_IN_FLIGHT = ("pods outside Coda stayed in flight to its nodes for too long", IN_FLIGHT)


class PlacementWriter:
    """Carries out starts and reviews. It remembers only since when placements wait for pods in flight."""

    def __init__(
        self,
        writer: StatusWriter,
        elector: Elector,
        metrics: Metrics,
        policy: PolicyConfig,
        *,
        settle_limit_s: float,
        fits_at_once: Callable[[Job, Sequence[str]], bool],
    ) -> None:
        self._writer = writer
        self._elector = elector
        self._metrics = metrics
        self._policy = policy
        self._settle_limit_s = settle_limit_s
        self._fits_at_once = fits_at_once
        self._has_unreleased = False
        self._waits_since_s: dict[str, float] = {}  # id of the placement -> monotonic

    def commits(self, result: CycleResult) -> Iterator[Coroutine[Any, Any, Written]]:
        """One write for each job that the cycle starts."""
        for start in result.decision.starts:
            yield self._commit(start, result.decided_on[start.job])

    def follow_ups(self, reviews: Iterable[PlacementReview]) -> Iterator[Coroutine[Any, Any, Written]]:
        """One write for each review that asks for one."""
        for review in reviews:
            yield self._carry_out(review)

    def give_up_times_s(self) -> list[float]:
        """When placements that wait for pods in flight are given up, on the monotonic clock."""
        return [since_s + self._settle_limit_s for since_s in self._waits_since_s.values()]

    def pop_unreleased(self) -> bool:
        """Return whether placements were committed since the last call that a review may release."""
        has_unreleased, self._has_unreleased = self._has_unreleased, False
        return has_unreleased

    def forget_waits(self, but_for: Iterable[PlacementReview] = ()) -> None:
        """Forget since when placements wait, except those that still do."""
        placements = (review.job.placement for review in but_for if review.awaits_in_flight)
        ids = {placement.plan_id for placement in placements if placement is not None}
        self._waits_since_s = {id_: since_s for id_, since_s in self._waits_since_s.items() if id_ in ids}

    async def _commit(self, start: Start, job: Job) -> Written:
        epoch, now_s, config = self._elector.epoch, self._writer.now_s(), with_volume_time(self._policy, job)
        committed = placement_from_start(start, plan_id=uuid.uuid4().hex[:16], epoch=epoch, now_s=now_s, config=config)
        released = released_placement(committed, epoch=epoch, now_s=now_s, config=config)
        at_once = False

        def body(_status: Json) -> Json:
            """Asked when the write begins. From the same moment on, filter calls count the placement."""
            nonlocal at_once
            at_once = self._fits_at_once(as_sharer(job) if start.gpus else job, start.nodes)
            placement = placement_json(released if at_once else committed)
            sharing = sharing_json(start)
            return {"placement": placement} | ({"sharing": sharing} if sharing else {})

        def done() -> None:
            self._metrics.commits.inc()
            if at_once:
                self._metrics.releases.inc()
            else:
                self._has_unreleased = True

        return await self._writer.write(job.id, body, decided_on=job, done=done)

    async def _carry_out(self, review: PlacementReview) -> Written:
        job, placement = review.job, review.job.placement
        assert placement is not None, "only written placements are reviewed"
        if review.awaits_in_flight and is_given_up(
            review, waited_s=self._waited_s(placement), limit_s=self._settle_limit_s
        ):
            return await self._drop(job, *_IN_FLIGHT)
        if review.action is PlacementAction.WAIT:
            return Written.NEEDLESS
        if review.action is PlacementAction.VOID:
            return self._void(job, placement)
        if review.action is PlacementAction.DROP:
            return await self._drop(job, *_cause_of(review))
        if review.action is PlacementAction.ADOPT:
            return await self._adopt(job, placement)
        return await self._release(job, placement)

    async def _release(self, job: Job, placement: Placement) -> Written:
        def done() -> None:
            self._metrics.releases.inc()
            log.info("%s: plan of attempt %d released", job.id, placement.attempt)

        epoch, now_s, config = self._elector.epoch, self._writer.now_s(), with_volume_time(self._policy, job)
        released = released_placement(placement, epoch=epoch, now_s=now_s, config=config)
        return await self._write(job, released, done)

    async def _adopt(self, job: Job, placement: Placement) -> Written:
        def done() -> None:
            self._metrics.adoptions.inc()
            log.info("%s: plan of attempt %d adopted", job.id, placement.attempt)

        return await self._write(job, adopted_placement(placement, epoch=self._elector.epoch), done)

    async def _drop(self, job: Job, sentence: str, label: str) -> Written:
        def done() -> None:
            self._metrics.dropped_placements.labels(label).inc()
            log.info("%s: plan of attempt %d dropped: %s", job.id, job.attempt, sentence)

        return await self._write(job, None, done)

    def _void(self, job: Job, placement: Placement) -> Written:
        """Give the capacity away though the placement cannot be removed: the filter refuses its pods from now on."""
        self._writer.void(job.id, placement.plan_id)
        self._metrics.dropped_placements.labels(VOID).inc()
        log.warning("%s: plan of attempt %d counts no more: it cannot be removed", job.id, placement.attempt)
        return Written.NEEDLESS

    async def _write(self, job: Job, placement: Placement | None, done: Callable[[], None]) -> Written:
        """Write the placement, or remove it. With it goes `pending`: a job with a placement waits no more."""

        def body(status: Json) -> Json:
            return {} if placement is None else with_sharing(placement, status)

        return await self._writer.write(job.id, body, decided_on=job, done=done)

    def _waited_s(self, placement: Placement) -> float:
        now_s = time.monotonic()
        return now_s - self._waits_since_s.setdefault(placement.plan_id, now_s)


def _cause_of(review: PlacementReview) -> tuple[str, str]:
    """Why a placement is dropped, as a sentence and as a metric's label."""
    why = review.defect
    if isinstance(why, PlacementDefect):
        return str(why), why.kind.name
    return (why.value, why.name) if why is not None else ("", "")
