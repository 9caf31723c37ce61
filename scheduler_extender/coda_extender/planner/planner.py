"""The planner: the replica that holds the Lease decides, writes placements, and says why jobs wait.

A cycle runs when something changed and a job awaits a decision, never by a timer alone. It decides in a thread, so
that filter calls are answered meanwhile. The planner may be killed anywhere: the next leader finds all that was
written, and decides the rest again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from coda.cycle import CycleResult, CycleSnapshot, review_snapshot
from coda.placements import PlacementAction, PlacementReview
from coda.policy import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.metrics import Metrics
from coda_extender.planner.cycle import CycleRunner
from coda_extender.planner.leader_label import LeaderLabel
from coda_extender.planner.pending_reasons import NO_NOTICES
from coda_extender.planner.placement_orders import PlacementOrders
from coda_extender.planner.placement_writer import PlacementWriter
from coda_extender.planner.reason_writer import ReasonWriter
from coda_extender.planner.status_writer import RETRY_S, StatusWriter, Written
from coda_kube.api.client import Client
from coda_kube.api.lease import Elector, lead

log = logging.getLogger(__name__)

COALESCE_S: Final = 0.003  # changes come in bursts; a cycle sees all of one
PAUSE_LIMIT_S: Final = 0.25  # after a cycle its own length is left to filter answers, at most this


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
        self._runner = CycleRunner()
        writer = StatusWriter(client, cluster, metrics, self.leads, at_once=config.writes_at_once)
        self._placements = PlacementWriter(
            writer, elector, metrics, config.policy, settle_limit_s=config.settle_limit_s
        )
        self._orders = PlacementOrders(writer, metrics, config.policy)
        self._reasons = ReasonWriter(writer, cluster.state, metrics, at_once=max(1, config.writes_at_once // 2))
        self._is_leading = False
        self._failures = 0
        self._retry_at_s: float | None = None  # monotonic: run a cycle then though nothing may have changed

    def leads(self) -> bool:
        """True while this replica plans and answers, and nobody else can have taken over."""
        return self._is_leading and self._elector.held()

    async def run(self) -> None:
        """Be a candidate, and plan while leading, until cancelled."""
        await self._cluster.wait_until_synced()
        while True:
            try:
                await lead(self._elector, lambda: asyncio.create_task(self._lead(), name="planner"))
            except Exception:  # outermost loop: a bug in one cycle must not end planning
                log.exception("the planner failed and starts anew")
                self._metrics.errors.inc()
                await asyncio.sleep(RETRY_S[-1])

    async def _lead(self) -> None:
        await self._cluster.wait_until_in_touch()  # an outage may have ended a moment ago: first see what it hid
        self._cluster.guard.take_over(self._config.scheduler_names, self._config.takeover_limit_s)
        self._placements.forget_waits()
        self._is_leading = True
        self._metrics.is_leader.set(1)
        log.info("leading, epoch %d", self._elector.epoch)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._label.claim(self.leads))
                tasks.create_task(self._reasons.run())
                tasks.create_task(self._plan_forever())
        finally:
            self._is_leading = False
            self._metrics.is_leader.set(0)
            self._metrics.show_queue({}, 0)
            self._reasons.replace_notices(NO_NOTICES)

    async def _plan_forever(self) -> None:
        await self._take_over_placements()
        was_asked = True  # the first cycle shows how the world is
        while True:
            await self._cluster.wait_until_in_touch()
            self._cluster.changed.clear()
            self._cluster.urgent.clear()
            is_asked = self._cluster.awaits_decision(epoch=self._elector.epoch)
            if is_asked or was_asked:  # one cycle more than asked for clears what the last one showed
                result, lasted_s = await self._run_cycle()
                await asyncio.sleep(COALESCE_S + min(lasted_s, PAUSE_LIMIT_S))
                await self._wait_for_work(result)
            else:
                await self._cluster.changed.wait()
            was_asked = is_asked
            if not self._placements.give_up_times_s() and self._retry_at_s is None:
                await self._cluster.gather_changes()

    async def _run_cycle(self) -> tuple[CycleResult, float]:
        """Read, decide, write; then read again and release. Returns the result, and how long steps 1 and 2 took."""
        # 1. Read: one snapshot of everything that a decision may depend on.
        started_s = time.perf_counter()
        snapshot = self._read_snapshot()
        # 2. Decide, in a thread.
        result, notices = await asyncio.to_thread(
            self._runner.run, snapshot, self._cluster.state.job_json_by_id, self._config.policy
        )
        lasted_s = time.perf_counter() - started_s
        self._metrics.cycle_s.observe(lasted_s)
        # 3. Show the queue. The wait reasons are written beside everything else.
        self._metrics.show_queue(result.jobs_by_code, result.gpus_wanted)
        self._reasons.replace_notices(notices, self._cluster.stale_pending)
        # 4. Write: follow up on reviewed placements, commit new ones, order stops, answer wishes.
        self._placements.forget_waits(but_for=result.reviews)
        writes: list[Coroutine[Any, Any, Written]] = [*self._placements.follow_ups(result.reviews)]
        writes += self._placements.commits(result)
        writes += self._orders.writes(result)
        results = await asyncio.gather(*writes)
        # 5. Read again, and release what was committed if it still fits beside everything in flight.
        if result.decision.starts and Written.DONE in results:
            await self._cluster.wait_until_in_touch()
            results += await asyncio.gather(*self._placements.follow_ups(await self._review()))
        self._set_retry(results)
        return result, lasted_s

    async def _take_over_placements(self) -> None:
        """Before the first cycle: adopt the placements of earlier leaders, or drop them."""
        actions = (PlacementAction.ADOPT, PlacementAction.DROP)
        while reviews := [review for review in await self._review() if review.action in actions]:
            self._cluster.changed.clear()
            results = await asyncio.gather(*self._placements.follow_ups(reviews))
            self._set_retry(results)
            await asyncio.sleep(max(COALESCE_S, (self._retry_at_s or 0.0) - time.monotonic()))
            if Written.STALE in results:  # the job may be gone, and the watch has not said so yet
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._cluster.changed.wait(), RETRY_S[-1])

    async def _review(self) -> tuple[PlacementReview, ...]:
        return await asyncio.to_thread(review_snapshot, self._read_snapshot())

    def _read_snapshot(self) -> CycleSnapshot:
        now_s = time.time()
        return CycleSnapshot(
            world=self._cluster.world(now_s=now_s),
            foreign=self._cluster.guard.in_flight.pods(),
            epoch=self._elector.epoch,
            now_s=now_s,
        )

    async def _wait_for_work(self, result: CycleResult) -> None:
        """Wait for a change, or for the first moment at which time alone may change the answer."""
        now_s = time.monotonic()
        moments_s = self._placements.give_up_times_s()
        if self._retry_at_s is not None:
            moments_s.append(self._retry_at_s)
        if result.wake_s is not None:
            moments_s.append(now_s + max(0.0, result.wake_s - time.time()) + 0.001)
        expiry_in_s = self._cluster.next_expiry_in_s()
        if expiry_in_s is not None and (self._placements.give_up_times_s() or result.leaves_jobs_waiting):
            moments_s.append(now_s + expiry_in_s + 0.001)
        timeout_s = max(COALESCE_S, min(moments_s) - now_s) if moments_s else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._cluster.changed.wait()

    def _set_retry(self, results: list[Written]) -> None:
        """Set when to try again what did not work. A stale write needs no retry: its job's change causes a cycle."""
        self._retry_at_s = None
        if Written.FAILED in results or Written.LAPSED in results:
            self._failures = min(self._failures + 1, len(RETRY_S) - 1)
            self._retry_at_s = time.monotonic() + RETRY_S[self._failures]
        elif Written.CONFLICT in results:
            self._retry_at_s = time.monotonic() + RETRY_S[0]
        else:
            self._failures = 0
