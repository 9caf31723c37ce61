"""The planner: the replica that holds the Lease decides, writes placements, and says why jobs wait.

A cycle runs when something changed and a job awaits a decision; without any change seldom, for the sake of deadlines.
It decides in a process of its own, so that filter calls are answered meanwhile. The planner may be killed anywhere: the
next leader finds all that was written, and decides the rest again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from coda.cycle import CycleResult
from coda.errors import CodaError, Outage
from coda.placements import PlacementAction, PlacementReview
from coda.policy import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cpu_jobs.pod_reasons import PodReasons
from coda_extender.cpu_jobs.pod_writer import PodWriter
from coda_extender.cpu_jobs.stuck_pods import StuckPods
from coda_extender.metrics import Metrics
from coda_extender.planner.cycle import START_AGAIN_S, CycleRunner, StartProcess, by_kind
from coda_extender.planner.leader_label import LeaderLabel
from coda_extender.planner.past_run_times import past_run_times
from coda_extender.planner.placement_orders import PlacementOrders
from coda_extender.planner.placement_writer import PlacementWriter
from coda_extender.planner.quota_status import QuotaStatus
from coda_extender.planner.reason_writer import ReasonWriter
from coda_extender.planner.snapshot_feed import SnapshotFeed
from coda_extender.planner.status_writer import RETRY_S, StatusWriter
from coda_extender.planner.write_failures import JobsLeftOut
from coda_extender.planner_process import ChangedRefusals
from coda_extender.planner_process.process import PlannerProcess
from coda_extender.standing_faults import StandingFaults
from coda_extender.written import Written
from coda_kube.api.client import Client
from coda_kube.api.lease import Elector, lead
from coda_kube.served_schema import ServedSchema

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 15.0  # without any change, look whether a deadline has passed; it costs no cycle
TAKE_OVER_S: Final = 5.0  # then plan beside what could not be adopted: its capacity stays withheld
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
    answer_limit_s: float = 60.0
    memory_bytes: int = 2 << 30  # of the planner process
    start_again_s: tuple[float, ...] = START_AGAIN_S
    hangs_s: float = 65.0  # a leader that does not go on for so long gives its Lease up; above `answer_limit_s`

    async def start_process(self, client: Client) -> PlannerProcess:
        """Start a process that decides by this policy, and knows how long jobs ran in the past."""
        past = await past_run_times(client)
        return await PlannerProcess.start(self.policy, memory_bytes=self.memory_bytes, past=past)


class PlannerHangs(CodaError):
    """Planning does not go on, for a reason that nobody has foreseen."""


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
        start_process: StartProcess | None = None,
    ) -> None:
        self.schema = ServedSchema(client)
        self._cluster = cluster
        self._elector = elector
        self._label = label
        self._metrics = metrics
        self._config = config
        self._now_s = (
            client.clock
        )  # the API server's time: what earlier leaders and the operator wrote is compared with it
        self._writer = writer = StatusWriter(client, cluster, metrics, self.leads, at_once=config.writes_at_once)
        self._left_out = JobsLeftOut(client, cluster, metrics)
        writer.on_end = self._left_out.note
        self._placements = PlacementWriter(
            writer,
            elector,
            metrics,
            config.policy,
            settle_limit_s=config.settle_limit_s,
            fits_at_once=cluster.fits_at_once,
        )
        self._orders = PlacementOrders(writer, metrics, config.policy, may_grow=cluster.may_grow)
        self._pods = PodWriter(
            client,
            cluster,
            metrics,
            config.policy,
            self.leads,
            at_once=config.writes_at_once,
            on_end=self._left_out.note,
            on_evicted=self._left_out.note_eviction,
            doubts=self._left_out.doubts,
        )
        self._pod_reasons = PodReasons(client, cluster)
        self._stuck = StuckPods(client, cluster, metrics, self.leads)
        self._quota_status = QuotaStatus(client, cluster, config.policy)
        self._reasons = ReasonWriter(writer, cluster.state, metrics, at_once=max(1, config.writes_at_once // 2))
        cluster.on_job_changed = self._reasons.note_job
        self._cycles = CycleRunner(
            lambda: SnapshotFeed(cluster.state, cluster.guard.in_flight, cluster.held_back, self._pods.reclaimed_s),
            start_process or partial(config.start_process, client),
            metrics,
            answer_limit_s=config.answer_limit_s,
            start_again_s=config.start_again_s,
            on_refusals=self._change_refusals,
            on_new_process=self._forget_answers,
            in_flight=cluster.guard.in_flight.pods,
            now_s=client.clock,
        )
        self._faults = StandingFaults(metrics)
        self._is_leading = False
        self._failures = 0
        self._progress_s: float | None = None  # monotonic: when planning last went on; None: this replica does not lead
        self._retry_at_s: float | None = None  # monotonic: run a cycle then though nothing may have changed

    def leads(self) -> bool:
        """True while this replica plans and answers, and nobody else can have taken over."""
        return self._is_leading and self._elector.held()

    def is_alive(self) -> bool:
        """False once this replica leads and planning has not gone on for `hangs_s`."""
        return self._progress_s is None or time.monotonic() - self._progress_s < self._config.hangs_s

    async def run(self) -> None:
        """Be a candidate, and plan while leading, until cancelled."""
        await self._cluster.wait_until_synced()
        while True:
            try:
                await self.schema.wait_until_complete()
                await lead(self._elector, lambda: asyncio.create_task(self._lead(), name="planner"))
            except Exception:  # outermost loop: a bug in one cycle must not end planning
                log.exception("the planner failed and starts anew")
                self._metrics.errors.inc()
                await asyncio.sleep(RETRY_S[-1])

    async def _lead(self) -> None:
        self._progress_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch_progress())
                await self._lead_until_lost()
                watching.cancel()
        finally:
            self._progress_s = None

    async def _watch_progress(self) -> None:
        """End planning that does not go on: then the Lease is given up, and another replica may do better."""
        while self.is_alive():
            await asyncio.sleep(self._config.hangs_s / 10)
        raise PlannerHangs(f"planning has not gone on for {self._config.hangs_s:g} s")

    async def _lead_until_lost(self) -> None:
        await self._cluster.wait_until_in_touch()  # an outage may have ended a moment ago: first see what it hid
        self._cluster.guard.take_over(self._config.scheduler_names, self._config.takeover_limit_s)
        self._placements.forget_waits()
        self._left_out.admit_all()
        await self._pods.take_over()
        self._is_leading = True
        self._metrics.is_leader.set(1)
        log.info("leading, epoch %d", self._elector.epoch)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._label.claim(self.leads))
                tasks.create_task(self._reasons.run())
                tasks.create_task(self._pod_reasons.run())
                tasks.create_task(self._stuck.run())
                tasks.create_task(self._quota_status.run())
                tasks.create_task(self._plan_forever())
                tasks.create_task(self._end_with_the_schema())
        finally:
            self._is_leading = False
            self._writer.cancel()
            self._pods.cancel()
            self._left_out.admit_all()
            self._metrics.is_leader.set(0)
            self._metrics.show_queue(None)
            self._faults.forget()
            self._cycles.stop()
            self._forget_reasons()

    async def _end_with_the_schema(self) -> None:
        """Raise Outage once the API server does not know every field any more."""
        await self.schema.wait_until_incomplete()
        raise Outage(self.schema.sentence)

    async def _plan_forever(self) -> None:
        await self._take_over_placements()
        was_asked, is_first = True, True  # the first cycle shows how the world is
        while True:
            await self._cluster.wait_until_in_touch()
            self._progress_s = time.monotonic()
            self._cluster.changed.clear()
            self._cluster.urgent.clear()
            self._left_out.admit_due()
            self._faults.say_again()
            is_asked = self._cluster.awaits_decision(epoch=self._elector.epoch, now_s=self._now_s())
            if is_asked or was_asked:  # one cycle more than asked for clears what the last one showed
                result, lasted_s = await self._run_cycle()
                if is_first and (vacant_s := self._elector.since_last_holder_s()) is not None:
                    self._metrics.takeover_s.observe(vacant_s)
                is_first = False
                await asyncio.sleep(COALESCE_S + min(lasted_s, PAUSE_LIMIT_S))
                await self._wait_for_work(result)
            else:
                await self._wait_for_change(LOOK_AGAIN_S)
            was_asked = is_asked
            if not self._placements.give_up_times_s() and self._retry_at_s is None:
                await self._cluster.gather_changes()

    async def _run_cycle(self) -> tuple[CycleResult, float]:
        """Read, decide, write; then read again and release. Returns the result, and how long steps 1 and 2 took."""
        # 1. and 2. Read one snapshot of everything that a decision may depend on, and decide, beside the event loop.
        started_s = time.perf_counter()
        result = await self._cycles.decide(self._elector.epoch)
        lasted_s = time.perf_counter() - started_s
        self._metrics.cycle_s.observe(lasted_s)
        self._progress_s = time.monotonic()
        self._faults.note(result)
        # 3. Show the queue. The wait reasons are written beside everything else.
        self._metrics.show_queue(result)
        self._reasons.remove_reasons(self._cluster.stale_pending)
        # 4. Write: follow up on reviewed placements, commit new ones, order stops, answer wishes. A placement with
        # nothing in its way is released by the same write. CPU jobs are released and evicted.
        self._placements.forget_waits(but_for=result.reviews)
        gangs, cpu_jobs = by_kind(result)
        writes: list[Coroutine[Any, Any, Written]] = [*self._placements.follow_ups(result.reviews)]
        writes += self._placements.commits(gangs)
        ordered, *results = await asyncio.gather(self._write_orders(gangs, cpu_jobs), *writes)
        results += ordered
        # 5. Read again, and release what was only committed if it fits beside everything in flight by now.
        if self._placements.pop_unreleased():
            await self._cluster.wait_until_in_touch()
            results += await asyncio.gather(*self._placements.follow_ups(await self._review()))
        self._set_retry(results)
        return result, lasted_s

    async def _write_orders(self, gangs: CycleResult, cpu_jobs: CycleResult) -> list[Written]:
        """Release and evict CPU jobs, stop gangs, answer wishes.

        A gang stops for a job only once the pods that leave for it were evicted: a disruption budget may keep one."""
        together = {stop.by for stop in cpu_jobs.decision.stops} & {stop.by for stop in gangs.decision.stops}
        if not together:
            return await asyncio.gather(*self._orders.writes(gangs), *self._pods.writes(cpu_jobs))
        results = await asyncio.gather(*self._pods.writes(cpu_jobs))
        if any(written is not Written.DONE for written in results):
            stops = tuple([stop for stop in gangs.decision.stops if stop.by not in together])
            gangs = replace(gangs, decision=replace(gangs.decision, stops=stops))
        return [*results, *await asyncio.gather(*self._orders.writes(gangs))]

    def _forget_answers(self) -> None:
        """Another planner process begins: that is progress, and it tells all reasons again."""
        self._forget_reasons()
        if self._progress_s is not None:
            self._progress_s = time.monotonic()

    def _change_refusals(self, changes: ChangedRefusals) -> None:
        self._reasons.change_refusals(changes)
        self._pod_reasons.change_refusals(changes)
        self._pods.waits.change_refusals(changes)

    def _forget_reasons(self) -> None:
        self._reasons.forget()
        self._pod_reasons.forget()

    async def _take_over_placements(self) -> None:
        """Before the first cycle: adopt the placements of earlier leaders, or drop them.

        Those that cannot be written keep their capacity, and are tried again in later cycles."""
        actions = (PlacementAction.ADOPT, PlacementAction.DROP)
        until_s = time.monotonic() + TAKE_OVER_S
        while reviews := [review for review in await self._review() if review.action in actions]:
            self._cluster.changed.clear()
            results = await asyncio.gather(*self._placements.follow_ups(reviews))
            self._set_retry(results)
            if time.monotonic() >= until_s:
                return
            await asyncio.sleep(max(COALESCE_S, (self._retry_at_s or 0.0) - time.monotonic()))
            if Written.STALE in results:  # the job may be gone, and the watch has not said so yet
                await self._wait_for_change(RETRY_S[2])

    async def _review(self) -> tuple[PlacementReview, ...]:
        return await self._cycles.review(self._elector.epoch)

    async def _wait_for_work(self, result: CycleResult) -> None:
        """Wait for a change, or for the first moment at which time alone may change the answer."""
        now_s = time.monotonic()
        moments_s = self._placements.give_up_times_s()
        if self._retry_at_s is not None:
            moments_s.append(self._retry_at_s)
        if result.wake_s is not None:
            moments_s.append(now_s + max(0.0, result.wake_s - self._now_s()) + 0.001)
        expiry_in_s = self._cluster.next_expiry_in_s()
        leaves_waiting = result.leaves_jobs_waiting or bool(result.decision.grants)  # a grant may be held back
        if expiry_in_s is not None and (self._placements.give_up_times_s() or leaves_waiting):
            moments_s.append(now_s + expiry_in_s + 0.001)
        if (admitted_s := self._left_out.next_s()) is not None:
            moments_s.append(admitted_s)
        await self._wait_for_change(max(COALESCE_S, min(moments_s) - now_s) if moments_s else LOOK_AGAIN_S)

    async def _wait_for_change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._cluster.changed.wait()

    def _set_retry(self, results: list[Written]) -> None:
        """Set when to try again what did not work. A stale write needs no retry: its job's change causes a cycle."""
        self._retry_at_s = None
        if not {Written.FAILED, Written.REFUSED, Written.LAPSED}.isdisjoint(results):
            self._failures = min(self._failures + 1, len(RETRY_S) - 1)
            self._retry_at_s = time.monotonic() + RETRY_S[self._failures]
        elif Written.CONFLICT in results:
            self._retry_at_s = time.monotonic() + RETRY_S[0]
        else:
            self._failures = 0
