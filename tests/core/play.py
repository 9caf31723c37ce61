"""A cluster played through: what a plan says is done, jobs come and end, and every plan is made with a memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.history import FinishedRun
from coda.model import Decision, Job, JobId, Node, Phase, World
from coda.model.decision import StopCause
from coda.placements import placement_from_start
from coda.policy import PolicyConfig
from coda.policy.reclaim import times_reclaimed
from coda.promises import PromiseBook
from tests.builders import world


class Play:
    """Nodes, live jobs, and the clock. `plans`: every plan made, with the world it was made for; `times_s`: when."""

    def __init__(self, config: PolicyConfig, nodes: Iterable[Node], **parts: object) -> None:
        self.config = config
        self.nodes = tuple(nodes)
        self.parts = parts
        self.now_s = 0.0
        self.job_by_id: dict[JobId, Job] = {}
        self.plans: list[tuple[World, Decision]] = []
        self.times_s: list[float] = []
        self._memory = PlannerCache()
        self.book = PromiseBook()
        self.reclaimed: dict[str, float] = {}

    def world(self) -> World:
        return world(self.nodes, self.job_by_id.values(), reclaimed=dict(self.reclaimed), **self.parts)  # type: ignore[arg-type]  # parts of a world

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.job_by_id[job.id] = replace(job, queued_s=self.now_s, as_of_s=self.now_s)

    def end(self, job_id: JobId) -> None:
        job = self.job_by_id.pop(job_id)
        ran_s = job.served_s + self.now_s - job.as_of_s
        self.book.run_times.add(FinishedRun(job.user, job.category, job.replicas * job.request.gpus, ran_s))

    def running(self) -> list[JobId]:
        return [job.id for job in self.job_by_id.values() if job.phase is Phase.RUNNING]

    def decide(self) -> Decision:
        """One plan, carried out at once."""
        now, book = self.world(), self.book.copied()
        plan = decide(now, self.config, self.now_s, self._memory, book=self.book)
        assert plan == decide(now, self.config, self.now_s, book=book)
        self.plans.append((now, plan))
        self.times_s.append(self.now_s)
        for start in plan.starts:
            job = self.job_by_id.pop(start.job)
            plan_id = f"{job.uid}-{start.attempt}"
            placed = placement_from_start(start, plan_id=plan_id, epoch=0, now_s=self.now_s, config=self.config)
            bound = frozenset(range(job.replicas))
            self.job_by_id[job.id] = replace(
                job, phase=Phase.RUNNING, placement=placed, bound=bound, as_of_s=self.now_s
            )
        for stop in plan.stops:
            self._stop(stop.job, stop.cause)
        return plan

    def _stop(self, job_id: JobId, cause: StopCause) -> None:
        job = self.job_by_id.pop(job_id)
        assert job.phase is Phase.RUNNING
        ran_s = self.now_s - job.as_of_s
        kept_s = 0.0 if cause is StopCause.RECLAIM else ran_s
        if cause is StopCause.RECLAIM:
            self.reclaimed[f"{job_id}-{job.attempt}"] = self.now_s
            job = replace(job, reclaimed=times_reclaimed(job, self.now_s, self.config.reclaim))
        self.job_by_id[job_id] = replace(
            job,
            phase=Phase.QUEUED,
            attempt=job.attempt + 1,
            placement=None,
            bound=frozenset(),
            returned=cause is not StopCause.PREEMPT,
            served_s=job.served_s + kept_s,
            remaining_s=None if job.remaining_s is None else job.remaining_s - kept_s,
            as_of_s=self.now_s,
            waiting_s=self.now_s,
        )

    def settle(self) -> Decision:
        """Plans until one stops nobody; the last."""
        for _ in range(100):
            plan = self.decide()
            if not plan.stops:
                return plan
        raise AssertionError("the plans never come to rest")
