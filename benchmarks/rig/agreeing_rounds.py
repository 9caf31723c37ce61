"""Whether each round of a replay started what the planner's `decide` starts in that very situation.

Unlike a whole simulation this does not drift: each round is asked about what ran and waited live just then, so that one
moment that came late spoils no later round. What exactly the planner had seen is known to some milliseconds only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Final

from coda.cycle import decide
from coda.history import FinishedRun
from coda.model import NOTHING, Job, JobId, Node, Phase, Placement, PlacementState, Resources, World
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from coda_sim.engine import job_from_gang, nodes_of_shape
from coda_sim.runs import config_of
from rig.agreeing import rounds
from rig.replayed import LiveJob, Replayed

BEFORE_S: Final = 0.15
"""Real seconds: a round's commits follow its snapshot within this, also on a machine that has stalled."""

AFTER_S: Final = 0.03
"""Real seconds: the planner may have seen a pod end so much earlier than the replay did."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The rounds of a replay of GPU jobs of which none was stopped: they hang on who ran, who waited and who had ended.

    A promise that an earlier round made is not known here. Nor is the order of CPU jobs: a pod says to the second only
    when it was made."""

    replayed: Replayed
    round_s: float  # as of `rounds`, in real seconds

    def alike(self) -> tuple[int, int]:
        """How many rounds started, from one of the situations they may have seen, the same jobs on the same nodes; and
        how many there were. O(rounds x jobs)."""
        numbers = sorted({*self._number_by_job.values()})
        return sum(self._is_alike(number) for number in numbers), len(numbers)

    def _is_alike(self, number: int) -> bool:
        started = [job for job in self.replayed.jobs if self._number_by_job[job.job_id] == number]
        began_s = min(job.start_s for job in started)
        nodes_by_job = {self._job_by_id[job.job_id].id: _counted_from_1(job.nodes) for job in started}
        return any(self._starts(number, seen_s) == nodes_by_job for seen_s in self._moments(began_s))

    def _moments(self, began_s: float) -> Iterator[float]:
        """Up to when what happened may have been seen: the likeliest first."""
        speed = self.replayed.speed
        happened = {*(self._queued_s(job) for job in self.replayed.jobs), *self._freed_s_by_job.values()}
        yield began_s
        before = (moment_s for moment_s in happened if began_s - BEFORE_S * speed < moment_s <= began_s)
        yield from (moment_s - 1e-6 for moment_s in sorted(before, reverse=True))
        yield from sorted(moment_s for moment_s in happened if began_s < moment_s <= began_s + AFTER_S * speed)

    def _starts(self, number: int, seen_s: float) -> Mapping[JobId, tuple[str, ...]]:
        plan = decide(self._world(number, seen_s), self._config, seen_s, book=self._book(seen_s))
        return {start.job: start.nodes for start in plan.starts}

    def _world(self, number: int, seen_s: float) -> World:
        """Before that round: what was started earlier and has not ended, and who waits."""
        used: dict[str, Resources] = {}
        jobs: list[Job] = []
        for live in self.replayed.jobs:
            job = self._job_by_id[live.job_id]
            if self._number_by_job[live.job_id] >= number:
                if self._queued_s(live) <= seen_s:
                    jobs.append(job)
            elif self._freed_s_by_job[live.job_id] > seen_s:
                jobs.append(_running(job, live))
                for node in _counted_from_1(live.nodes):
                    used[node] = used.get(node, NOTHING) + job.request
        return World(nodes=self._nodes, used=used, jobs=tuple(jobs))

    def _book(self, seen_s: float) -> PromiseBook:
        """What the planner expected of each job when it came, by the jobs that had ended by then."""
        book = PromiseBook()
        for moment_s, came, live in self._happenings:
            if moment_s > seen_s:
                break
            job = self._job_by_id[live.job_id]
            if came:
                book.expected.run_s(job)
            else:
                gpus, run_s = job.replicas * job.request.gpus, moment_s - live.start_s
                book.run_times.add(FinishedRun(job.user, job.category, gpus, run_s))
        return book

    def _queued_s(self, job: LiveJob) -> float:
        return job.submit_s + job.lag.queued_s * self.replayed.speed

    @cached_property
    def _config(self) -> PolicyConfig:
        return config_of(self.replayed.policy, racks=self.replayed.shape.racks)

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        return nodes_of_shape(self.replayed.shape)

    @cached_property
    def _happenings(self) -> list[tuple[float, str, LiveJob]]:
        """Every end, and every job that came, with its id, in their order."""
        ends = ((self._freed_s_by_job[live.job_id], "", live) for live in self.replayed.jobs)
        comes = ((self._queued_s(live), live.job_id, live) for live in self.replayed.jobs)
        return sorted([*ends, *comes], key=itemgetter(0, 1))

    @cached_property
    def _number_by_job(self) -> Mapping[str, int]:
        return rounds(self.replayed.starts, self.round_s * self.replayed.speed)

    @cached_property
    def _freed_s_by_job(self) -> Mapping[str, float]:
        speed = self.replayed.speed
        return {job.job_id: job.start_s + job.work_s + job.lag.held_s * speed for job in self.replayed.jobs}

    @cached_property
    def _job_by_id(self) -> Mapping[str, Job]:
        """Each as it waits."""
        return {
            live.job_id: replace(job_from_gang(live.gang, live.gang.cpus_per_replica), queued_s=self._queued_s(live))
            for live in self.replayed.jobs
        }


def _running(job: Job, live: LiveJob) -> Job:
    placement = Placement(
        attempt=1,
        plan_id=job.uid,
        epoch=0,
        generation=job.generation,
        state=PlacementState.RELEASED,
        nodes=_counted_from_1(live.nodes),
        cpus_per_replica=live.gang.cpus_per_replica,
        committed_s=live.start_s,
        bind_deadline_s=live.start_s,
    )
    ranks = frozenset(range(job.replicas))
    return replace(job, phase=Phase.RUNNING, attempt=1, placement=placement, bound=ranks, as_of_s=live.start_s)


def _counted_from_1(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """By the simulator's names: a local cluster counts its nodes from 0, the simulator from 1."""
    return tuple(f"node-{int(name.rpartition('-')[2]) + 1:04}" for name in nodes)
