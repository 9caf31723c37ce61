"""The planner: the one replica that holds the Lease decides, commits and releases plans, and says why jobs wait.

Rounds run when something changed and a job awaits a decision, never by a timer alone. The decision itself runs in a
thread, so that filter calls are answered meanwhile; everything it leads to is written under the conditions of
`statuses`. It may be killed anywhere: what was written is found by the next leader, what was not is decided again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from coda.cycle.planner_cycle import CycleResult, CycleSnapshot, review_snapshot
from coda.model.decision import Start
from coda.model.live_placement import is_waiting
from coda.placements.review import (
    PlacementAction,
    PlacementDefect,
    PlacementReview,
    adopted_placement,
    is_given_up,
    placement_from_start,
    released_placement,
)
from coda.policy.config import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.metrics import Metrics
from coda_extender.planner.cycle import CycleRunner
from coda_extender.planner.leader_label import LeaderLabel
from coda_extender.planner.pending_reasons import (
    NO_NOTICES,
    PendingNotice,
    PendingNotices,
    PendingReasons,
    notice_for,
    pending_for,
)
from coda_extender.planner.placement_orders import PlacementOrders
from coda_extender.planner.status_writer import StatusWriter, Written
from coda_kube.api.client import Client
from coda_kube.api.lease import Elector, lead
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import placement_json

log = logging.getLogger(__name__)

COALESCE_S: Final = 0.003  # changes come in bursts; a round sees all of one
PAUSE_LIMIT_S: Final = 0.25  # after a round its own length is left to filter answers, at most this
_RETRY_S: Final = (0.02, 0.2, 0.5, 1.0, 2.0)  # after writes that did not work; the first is a conflict's


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """What the planner needs of the settings. Times are seconds."""

    policy: PolicyConfig
    scheduler_names: tuple[str, ...]
    takeover_limit_s: float = 2.0
    settle_limit_s: float = 10.0
    writes_at_once: int = 16


class Planner:
    """One candidate for the planner's Lease. `run` never ends by itself."""

    def __init__(
        self,
        client: Client,
        cluster: ExtenderCluster,
        elector: Elector,
        label: LeaderLabel,
        metrics: Metrics,
        config: PlannerConfig,
    ) -> None:
        self._cluster = cluster
        self._elector = elector
        self._label = label
        self._metrics = metrics
        self._config = config
        self._writer = StatusWriter(client, cluster, metrics, self.leads, at_once=config.writes_at_once)
        self._orders = PlacementOrders(self._writer, metrics, config.policy)
        self._reason_slots = asyncio.Semaphore(max(1, config.writes_at_once // 2))
        self._runner = CycleRunner()
        self._reasons = PendingReasons()
        self._reasons_changed = asyncio.Event()
        self._leading = False
        self._settling_since_s: dict[str, float] = {}  # plan id -> monotonic
        self._failures = 0
        self._again_s: float | None = None  # monotonic: look again then though nothing may have changed

    def leads(self) -> bool:
        """True while this replica plans and answers, and nobody else can have taken over."""
        return self._leading and self._elector.held()

    async def run(self) -> None:
        """Be a candidate, and plan while leading, until cancelled."""
        await self._cluster.synced()
        while True:
            try:
                await lead(self._elector, lambda: asyncio.create_task(self._lead(), name="planner"))
            except Exception:  # outermost loop: a bug in one round must not end planning for good
                log.exception("the planner failed and starts anew")
                self._metrics.errors.inc()
                await asyncio.sleep(_RETRY_S[-1])

    async def _lead(self) -> None:
        await self._cluster.in_touch()  # an outage may have ended a moment ago: first see what it hid
        self._cluster.guard.take_over(self._config.scheduler_names, self._config.takeover_limit_s)
        self._settling_since_s.clear()
        self._leading = True
        self._metrics.is_leader.set(1)
        log.info("leading, epoch %d", self._elector.epoch)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._label.claim(self.leads))
                tasks.create_task(self._explain_forever())
                tasks.create_task(self._plan_forever())
        finally:
            self._leading = False
            self._metrics.is_leader.set(0)
            self._metrics.show_queue({}, 0)
            self._reasons.revise(NO_NOTICES)

    async def _plan_forever(self) -> None:
        await self._adopt()
        was_asked = True  # the first round shows how the world is
        while True:
            await self._cluster.in_touch()
            self._cluster.changed.clear()
            self._cluster.pressing.clear()
            is_asked = self._cluster.awaits_decision(epoch=self._elector.epoch)
            if is_asked or was_asked:  # one round more than asked for takes back what the last one showed
                result, notices, lasted_s = await self._decide()
                await self._act(result, notices)
                await asyncio.sleep(COALESCE_S + min(lasted_s, PAUSE_LIMIT_S))
                await self._something_to_do(result)
            else:
                await self._cluster.changed.wait()
            was_asked = is_asked
            if not self._settling_since_s and self._again_s is None:
                await self._cluster.gathered()

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _read_snapshot(self) -> CycleSnapshot:
        now_s = time.time()
        return CycleSnapshot(
            world=self._cluster.world(now_s=now_s),
            foreign=self._cluster.guard.ledger.pods(),
            epoch=self._elector.epoch,
            now_s=now_s,
        )

    async def _decide(self) -> tuple[CycleResult, PendingNotices, float]:
        started_s = time.perf_counter()
        result, notices = await asyncio.to_thread(
            self._runner.run, self._read_snapshot(), self._cluster.state.job_json_by_id, self._config.policy
        )
        lasted_s = time.perf_counter() - started_s
        self._metrics.round_s.observe(lasted_s)
        return result, notices, lasted_s

    async def _review(self) -> tuple[PlacementReview, ...]:
        return await asyncio.to_thread(review_snapshot, self._read_snapshot())

    async def _something_to_do(self, result: CycleResult) -> None:
        """Wait for a change, or for the first moment at which time alone may change the answer."""
        now_s = time.monotonic()
        moments = [] if self._again_s is None else [self._again_s]
        if result.wake_s is not None:
            moments.append(now_s + max(0.0, result.wake_s - time.time()) + 0.001)
        moments += [since_s + self._config.settle_limit_s for since_s in self._settling_since_s.values()]
        expiry_s = self._cluster.next_expiry_in_s()
        if expiry_s is not None and (self._settling_since_s or result.leaves_jobs_waiting):
            moments.append(now_s + expiry_s + 0.001)
        timeout_s = max(COALESCE_S, min(moments) - now_s) if moments else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._cluster.changed.wait()

    # --- acting -------------------------------------------------------------------------------------------------------

    async def _adopt(self) -> None:
        """Before anything is decided: take over the plans of earlier leaders, or drop them."""
        while rulings := [
            ruling for ruling in await self._review() if ruling.fate in (PlacementAction.ADOPT, PlacementAction.DROP)
        ]:
            self._cluster.changed.clear()
            results = await asyncio.gather(*(self._carry_out(ruling) for ruling in rulings))
            self._learn(results)
            await asyncio.sleep(max(COALESCE_S, (self._again_s or 0.0) - time.monotonic()))
            if Written.STALE in results:  # the job may be gone, and the watch has not told yet
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._cluster.changed.wait(), _RETRY_S[-1])

    async def _act(self, result: CycleResult, notices: PendingNotices) -> None:
        """Write what the round came to; then release what was committed, judged by how the world is by now."""
        self._show(result, notices)
        self._forget_settled(result.reviews)
        writes: list[Coroutine[Any, Any, Written]] = [self._carry_out(ruling) for ruling in result.reviews]
        writes += [self._commit(start, result) for start in result.decision.starts]
        writes += self._orders.writes(result)
        results = await asyncio.gather(*writes)
        if result.decision.starts and Written.DONE in results:
            await self._cluster.in_touch()
            results += await asyncio.gather(*(self._carry_out(ruling) for ruling in await self._review()))
        self._learn(results)

    def _learn(self, results: list[Written]) -> None:
        """Set when to try again what did not work; what is merely stale brings a change of its own."""
        self._again_s = None
        if Written.FAILED in results or Written.LAPSED in results:
            self._failures = min(self._failures + 1, len(_RETRY_S) - 1)
            self._again_s = time.monotonic() + _RETRY_S[self._failures]
        elif Written.CONFLICT in results:
            self._again_s = time.monotonic() + _RETRY_S[0]
        else:
            self._failures = 0

    def _forget_settled(self, rulings: tuple[PlacementReview, ...]) -> None:
        settling = (each.job.placement for each in rulings if each.awaits_in_flight)
        plan_ids = {plan.plan_id for plan in settling if plan is not None}
        self._settling_since_s = {id_: since_s for id_, since_s in self._settling_since_s.items() if id_ in plan_ids}

    async def _commit(self, start: Start, result: CycleResult) -> Written:
        placement = placement_from_start(
            start,
            plan_id=uuid.uuid4().hex[:16],
            epoch=self._elector.epoch,
            now_s=time.time(),
            config=self._config.policy,
        )
        body = {"placement": placement_json(placement)}  # without `pending`: it waits no more
        written = await self._writer.write(start.job, lambda _status: body, decided_on=result.decided_on[start.job])
        if written is Written.DONE:
            self._metrics.commits.inc()
        return written

    async def _carry_out(self, ruling: PlacementReview) -> Written:
        plan = ruling.job.placement
        assert plan is not None
        if ruling.awaits_in_flight:
            now_s = time.monotonic()
            waited_s = now_s - self._settling_since_s.setdefault(plan.plan_id, now_s)
            if is_given_up(ruling, waited_s=waited_s, limit_s=self._config.settle_limit_s):
                return await self._drop(
                    ruling, "pods outside Coda stayed in flight to its nodes for too long", "IN_FLIGHT"
                )
        if ruling.fate is PlacementAction.SETTLE:
            return Written.NEEDLESS
        if ruling.fate is PlacementAction.DROP:
            return await self._drop(ruling, *_cause_of(ruling))
        epoch, released = self._elector.epoch, ruling.fate is PlacementAction.RELEASE
        if released:
            after = released_placement(plan, epoch=epoch, now_s=time.time(), config=self._config.policy)
        else:
            after = adopted_placement(plan, epoch=epoch)
        body = {"placement": placement_json(after)}
        written = await self._writer.write(ruling.job.id, lambda _status: body, decided_on=ruling.job)
        if written is Written.DONE:
            (self._metrics.releases if released else self._metrics.adoptions).inc()
            log.info("%s: plan of attempt %d %s", ruling.job.id, plan.attempt, "released" if released else "adopted")
        return written

    async def _drop(self, ruling: PlacementReview, sentence: str, label: str) -> Written:
        written = await self._writer.write(ruling.job.id, lambda _status: {}, decided_on=ruling.job)
        if written is Written.DONE:
            self._metrics.dropped_plans.labels(label).inc()
            log.info("%s: plan of attempt %d dropped: %s", ruling.job.id, ruling.job.attempt, sentence)
        return written

    # --- reasons ------------------------------------------------------------------------------------------------------

    def _show(self, result: CycleResult, notices: PendingNotices) -> None:
        self._metrics.show_queue(result.jobs_by_code, result.gpus_wanted)
        removals = (PendingNotice(job=job, refusal=None, urgent=True) for job in sorted(self._cluster.stale_pending))
        self._reasons.revise(notices, removals)
        self._reasons_changed.set()

    async def _explain_forever(self) -> None:
        failures = 0
        while True:
            self._reasons_changed.clear()
            notices, more_in_s = self._reasons.take(time.monotonic())
            if notices:
                results = await asyncio.gather(*(self._explain(notice) for notice in notices))
                failed = Written.FAILED in results or Written.LAPSED in results
                failures = min(failures + 1, len(_RETRY_S) - 1) if failed else 0
                if failed or Written.CONFLICT in results:
                    await asyncio.sleep(_RETRY_S[failures])
            elif more_in_s is None or more_in_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(more_in_s):
                        await self._reasons_changed.wait()

    async def _explain(self, notice: PendingNotice) -> Written:
        """Write one reason, if the job still waits (or remove it, if it still does not)."""

        def change(status: Json) -> Json | None:
            kept: Json = {"placement": status["placement"]} if status.get("placement") else {}
            if notice.refusal is None:
                return kept if status.get("pending") and status.get("phase") != "Queued" else None
            job = self._cluster.state.job(notice.job)
            if job is None or not is_waiting(job) or notice_for(notice.refusal, {"status": status}) is None:
                return None
            return kept | {"pending": pending_for(notice.refusal, status, time.time())}

        async with self._reason_slots:
            written = await self._writer.write(notice.job, change)
        if written is Written.DONE:
            self._metrics.pending_writes.inc()
        elif written in (Written.CONFLICT, Written.FAILED, Written.LAPSED):
            self._reasons.put_back(notice)
        return written


def _cause_of(review: PlacementReview) -> tuple[str, str]:
    """Why a placement is dropped, as a sentence and as a metric's label."""
    why = review.why
    if isinstance(why, PlacementDefect):
        return str(why), why.flaw.name
    return (why.value, why.name) if why is not None else ("", "")
