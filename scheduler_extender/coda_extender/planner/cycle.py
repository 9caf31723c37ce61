"""Asks the planner process for decisions and reviews, and starts another one if it gives no answer.

While a question is open, the event loop does everything else. A process that hangs, dies or fails is killed and
replaced, each time after a longer pause; the new one is told the whole cluster. If no process answers several times
in a row, the leader gives up its Lease: another replica may do better.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Final, Protocol

from coda.cycle import CycleResult
from coda.model import Job, JobId
from coda.model.decision import Decision, Denial, Grant, Start, Stop
from coda.placements import InFlight, PlacementReview
from coda_extender.metrics import Metrics
from coda_extender.planner.snapshot_feed import SnapshotFeed
from coda_extender.planner_process import AnswerEnd, ChangedRefusals, Kind, Message, Orders, Question, ReviewOf
from coda_extender.planner_process.process import ProcessFailed
from coda_kube.objects.pods.cpu_job import pod_id_of

log = logging.getLogger(__name__)

START_AGAIN_S: Final = (0.1, 1.0, 5.0)
"""Pauses before the next process is started. After the last of them fails too, the Lease is given up."""


JUDGED_EVERY_S: Final = 2.0  # whether pods in flight starve the head of the queue; our choice


class Decider(Protocol):
    """A `PlannerProcess`, or what tests have in its place."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def ask(self, question: Iterable[Message]) -> AsyncIterator[Message]:
        """Yield the messages of the answer. Raises ProcessFailed."""

    def kill(self) -> None:
        """End it."""


StartProcess = Callable[[], Awaitable[Decider]]


class CycleRunner:
    """One process, one question at a time. `on_refusals` is called for changed refusals as they arrive, and
    `on_new_process` before a new process tells of all of them."""

    def __init__(
        self,
        new_feed: Callable[[], SnapshotFeed],
        start: StartProcess,
        metrics: Metrics,
        *,
        answer_limit_s: float,
        start_again_s: tuple[float, ...],
        on_refusals: Callable[[ChangedRefusals], None],
        on_new_process: Callable[[], None],
        in_flight: Callable[[], tuple[InFlight, ...]],
        now_s: Callable[[], float],
    ) -> None:
        self._new_feed = new_feed
        self._start = start
        self._metrics = metrics
        self._answer_limit_s = answer_limit_s
        self._start_again_s = start_again_s
        self._on_refusals = on_refusals
        self._on_new_process = on_new_process
        self._process: Decider | None = None
        self._feed = new_feed()
        self._in_flight = InFlightTime(in_flight)
        self._now_s = now_s

    async def decide(self, epoch: int) -> CycleResult:
        """Run one cycle on what the caches know now. Refusals are told beside it, and are not in the result.

        Raises ProcessFailed when several processes in a row gave no answer."""
        return await self._ask(Kind.CYCLE, epoch)

    async def review(self, epoch: int) -> tuple[PlacementReview, ...]:
        """Review the placements that are not in force yet. Raises as `decide`."""
        return (await self._ask(Kind.REVIEW, epoch)).reviews

    def stop(self) -> None:
        """End the process, until the next question."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            self._metrics.watch_planner_process(None)

    async def _ask(self, kind: Kind, epoch: int) -> CycleResult:
        for pause_s in (*self._start_again_s, None):
            try:
                async with asyncio.timeout(self._answer_limit_s):
                    return await self._exchange(kind, epoch)
            except TimeoutError:
                failure = ProcessFailed("hung", f"the planner process gave no answer in {self._answer_limit_s:g} s")
            except ProcessFailed as failed:
                failure = failed
            self._metrics.planner_processes_lost.labels(failure.cause).inc()
            log.error("%s; another one is started", failure)
            if pause_s is None:
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError("the last pause is None")

    async def _exchange(self, kind: Kind, epoch: int) -> CycleResult:
        answer: list[Start | Stop | Grant | Denial | ReviewOf] = []
        try:
            process = self._process or await self._new_process()
            now_s = self._now_s()
            changes: Iterable[Message] = self._feed.changes()
            in_flight_for_s = self._in_flight.lasts_s() if kind is Kind.CYCLE else 0.0
            question = chain(changes, [Question(kind, epoch, now_s, in_flight_for_s)])
            end = AnswerEnd()
            async for message in process.ask(question):
                if isinstance(message, ChangedRefusals):
                    self._on_refusals(message)
                elif isinstance(message, Orders):
                    answer += message.items
                elif isinstance(message, AnswerEnd):
                    end = message
            return _result(answer, end, self._feed.job_by_id)
        except BaseException:  # also a cancelled question: what comes next on the stream answers nothing
            self.stop()
            raise

    async def _new_process(self) -> Decider:
        self._process = process = await self._start()
        self._feed = self._new_feed()
        self._on_new_process()
        self._metrics.watch_planner_process(process.pid)
        return process


class InFlightTime:
    """Since when every cycle has seen foreign pods in flight that may land on several nodes."""

    def __init__(self, pods: Callable[[], tuple[InFlight, ...]], clock: Callable[[], float] = time.monotonic) -> None:
        self._pods = pods
        self._clock = clock
        self._none_s = clock()
        self._told_s = clock()

    def lasts_s(self) -> float:
        """How long; 0 too if a cycle was told a moment ago: what it does with it costs as much as the cycle."""
        now_s = self._clock()
        if all(pod.nodes is not None and len(pod.nodes) == 1 for pod in self._pods()):
            self._none_s = now_s
        if now_s < self._told_s + JUDGED_EVERY_S:
            return 0.0
        self._told_s = now_s
        return now_s - self._none_s


def by_kind(result: CycleResult) -> tuple[CycleResult, CycleResult]:
    """Return the starts and stops of gangs and those of CPU jobs apart. Only gangs have anything else."""
    decision = result.decision
    starts = [start for start in decision.starts if pod_id_of(start.job) is not None]
    stops = [stop for stop in decision.stops if pod_id_of(stop.job) is not None]
    if not starts and not stops:
        return result, replace(result, decision=Decision())
    gangs = replace(
        decision,
        starts=tuple([start for start in decision.starts if pod_id_of(start.job) is None]),
        stops=tuple([stop for stop in decision.stops if pod_id_of(stop.job) is None]),
    )
    pods = Decision(starts=tuple(starts), stops=tuple(stops))
    return replace(result, decision=gangs), replace(result, decision=pods)


def _result(
    answer: list[Start | Stop | Grant | Denial | ReviewOf], end: AnswerEnd, job_by_id: dict[JobId, Job]
) -> CycleResult:
    decision = Decision(
        starts=tuple([item for item in answer if isinstance(item, Start)]),
        stops=tuple([item for item in answer if isinstance(item, Stop)]),
        grants=tuple([item for item in answer if isinstance(item, Grant) and item.by is None]),
        returns=tuple([item for item in answer if isinstance(item, Grant) and item.by is not None]),
        denials=tuple([item for item in answer if isinstance(item, Denial)]),
        postponed=end.postponed,
        faults=end.faults,
    )
    return CycleResult(
        decision=decision,
        reviews=tuple(
            [
                PlacementReview(
                    job=job_by_id[item.job], action=item.action, defect=item.defect, awaits_stops=item.awaits_stops
                )
                for item in answer
                if isinstance(item, ReviewOf)
            ]
        ),
        decided_on={item.job: job_by_id[item.job] for item in answer if not isinstance(item, ReviewOf)},
        jobs_by_code=end.jobs_by_code,
        gpus_wanted=end.gpus_wanted,
        gpus_unmatched=end.gpus_unmatched,
        wake_s=end.wake_s,
        apart=end.apart,
    )
