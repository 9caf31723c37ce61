"""A replay as its JSON tells it, and the same jobs simulated with the moments that it took.

A live job is queued a moment after it was sent, placed a moment after there is room, and holds that room for a moment
longer than it runs. In virtual time the first two are a later submission, and the last two a longer run. Jobs queue in
the order in which they are sent.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from coda.errors import InvalidInput
from coda.policy import Component
from coda_sim.engine import COSTS_BY_SETTING, CostSetting, Simulation
from coda_sim.runs import PARTS_BY_POLICY, config_of, simulation_config_of
from coda_sim.traces import JobKind, RecordedStatus, Row
from coda_sim.workload import ClusterShape, Gang, JobModelConfig, JobModelDraws, profile_set, shape_from_text
from coda_sim.workload.model_profiles import RECORDED
from rig.agreeing import Start, Starts

STRETCH: Final = (0.5, 1.5)
"""A moment of a draw is between these times what it was: how long it takes hangs on what else the machine does."""


NOT_REPLAYED: Final = frozenset({Component.ALLOCATOR, Component.ELIMINATOR})
"""What no replay has: its jobs ask for the cores of their rows, and nobody throttles them. Nor do GPU jobs resume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Real seconds that a job's way through the live cluster took beside waiting and running."""

    queued_s: float  # from sending to being queued
    held_s: float  # for which it had its nodes longer than it ran; 0 for a job that was stopped
    placed_s: float | None  # from being queued to being placed, where it never waited for room


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A job that ran in a replay. Times in trace seconds, but for `lag`."""

    name: str
    job_id: str
    gang: Gang
    start_s: float
    nodes: tuple[str, ...]  # of each rank
    attempts: int
    stops: int  # of a CPU job that borrowed
    waited_again_s: float  # after these
    said_why: tuple[str, ...]  # the codes of its reasons
    lag: Lag

    @property
    def submit_s(self) -> float:
        return self.gang.row.submit_s

    @property
    def work_s(self) -> float:
        return self.gang.row.duration_s

    @property
    def gpus(self) -> int:
        return self.gang.gpus

    @property
    def user(self) -> str:
        """Its namespace: shares are fair between those."""
        return self.gang.row.user

    @property
    def all_waits_s(self) -> float:
        return self.start_s - self.submit_s + self.waited_again_s


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a replay on a local cluster showed of the jobs that ran."""

    shape: ClusterShape
    policy: str
    costs: CostSetting
    speed: float
    jobs: tuple[LiveJob, ...]

    @cached_property
    def job_by_id(self) -> Mapping[str, LiveJob]:
        return {job.job_id: job for job in self.jobs}

    @cached_property
    def starts(self) -> Starts:
        return {job.job_id: Start(submit_s=job.submit_s, start_s=job.start_s) for job in self.jobs}


def replayed_from_json(written: Mapping[str, Any]) -> Replayed:
    """What `coda replay --local --out` wrote. Raises InvalidInput for a replay on another cluster."""
    if not written.get("racks"):
        raise InvalidInput("no replay on a local cluster: only there are racks and policy known")
    speed = written["speed"]
    return Replayed(
        shape=replace(shape_from_text(written["cluster"]), racks=written["racks"]),
        policy=written["runs"][0]["policy"],
        costs=CostSetting(written["costs"]),
        speed=speed,
        jobs=tuple(_job(job, speed) for job in _as_sent(written["jobs"]) if job["outcome"] == "finished"),
    )


def _as_sent(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(jobs, key=lambda job: (job["trace"]["submit_s"], job["name"]))


def _job(job: Mapping[str, Any], speed: float) -> LiveJob:
    moments, trace = job["reported"], job["trace"]
    reasons = tuple(sorted({reason["code"] for reason in job["reasons"]}))
    held_s = 0.0 if job["stops"] else moments["freed_s"] - moments["placed_s"] - job["run_s"]
    # By the planner's clock, which is the replay's: both are on this machine.
    start_s = trace["submit_s"] + (moments["placed_s"] - job["submitted_s"] + job["lag_s"]) * speed
    return LiveJob(
        name=job["name"],
        job_id=job["job_id"],
        gang=_gang(job),
        start_s=start_s,
        nodes=tuple(job["nodes"]),
        attempts=job["attempts"],
        stops=job["stops"],
        waited_again_s=job["waited_again_s"] * speed,
        said_why=reasons,
        lag=Lag(
            queued_s=max(0.0, moments["queued_s"] - job["submitted_s"] + job["lag_s"]),
            held_s=max(0.0, held_s),
            placed_s=None if reasons else moments["placed_s"] - moments["queued_s"],
        ),
    )


def _gang(job: Mapping[str, Any]) -> Gang:
    row = Row(
        line=job["line"],
        job_id=job["name"],  # as the live planner knows it: the last tie-break
        user=job["namespace"],
        virtual_cluster="",
        submit_s=job["trace"]["submit_s"],
        duration_s=job["trace"]["work_s"],
        gpus=job["gpus"],
        cpus=None,
        memory_gib=None,
        nodes_requested=None,
        status=RecordedStatus.PASSED,
        kind=JobKind(job["kind"]),
    )
    return Gang(
        row=row,
        replicas=job["replicas"],
        gpus_per_replica=job["gpus"] // job["replicas"],
        cpus_per_replica=job["cpus_per_replica"],
        changes=(),
    )


class Simulator:
    """Simulates the jobs of a replay."""

    def __init__(self, replayed: Replayed) -> None:
        self._replayed = replayed
        self._placed_s = [job.lag.placed_s for job in replayed.jobs if job.lag.placed_s is not None] or [0.0]
        self._profiles = profile_set(RECORDED)
        absent = [part.value for part in PARTS_BY_POLICY[replayed.policy] if part in NOT_REPLAYED]
        config = config_of(replayed.policy, absent, racks=replayed.shape.racks)
        costs = replace(COSTS_BY_SETTING[replayed.costs], resuming_gpu_jobs=0.0)
        self._setting = simulation_config_of(config, replayed.shape, self._profiles, costs)

    def starts(self) -> Starts:
        """As if a live cluster took no moment for anything."""
        return self._simulated([job.gang for job in self._replayed.jobs])

    def starts_of_draws(self, draws: int) -> list[Starts]:
        """With moments like the replay's, drawn so often. The same every time."""
        return [self._simulated(self._lagging(random.Random(draw))) for draw in range(draws)]

    def starts_of_any(self, draws: int) -> list[Starts]:
        """With any moments from nothing to somewhat longer than the longest of the replay, drawn so often: the plain
        simulation is the first. What all of these agree about hangs on no moment. The same every time."""
        return [self.starts(), *(self._simulated(self._lagging_anyhow(random.Random(draw))) for draw in range(draws))]

    def _lagging(self, rng: random.Random) -> list[Gang]:
        gangs = []
        for job in self._replayed.jobs:
            queued_s = job.lag.queued_s * rng.uniform(*STRETCH) + rng.choice(self._placed_s)
            held_s = job.lag.held_s * rng.uniform(*STRETCH) + rng.choice(self._placed_s)
            gangs.append(self._late(job, queued_s, held_s))
        return _in_order(gangs)

    def _lagging_anyhow(self, rng: random.Random) -> list[Gang]:
        jobs, longest_s = self._replayed.jobs, max(self._placed_s)
        queued_s = STRETCH[1] * (max(job.lag.queued_s for job in jobs) + longest_s)
        held_s = STRETCH[1] * (max(job.lag.held_s for job in jobs) + longest_s)
        return _in_order([self._late(job, rng.uniform(0, queued_s), rng.uniform(0, held_s)) for job in jobs])

    def _late(self, job: LiveJob, queued_s: float, held_s: float) -> Gang:
        row, speed = job.gang.row, self._replayed.speed
        late = replace(row, submit_s=row.submit_s + queued_s * speed, duration_s=row.duration_s + held_s * speed)
        return replace(job.gang, row=late)

    def _simulated(self, gangs: list[Gang]) -> Starts:
        traits = JobModelDraws(self._profiles, JobModelConfig(), seed=0)
        log = Simulation(self._setting, gangs, traits).run()
        job_by_name = {job.name: job for job in self._replayed.jobs}
        started = ((job_by_name[entry.gang.row.job_id], entry.start_s) for entry in log.entries)
        return {
            job.job_id: Start(submit_s=job.submit_s, start_s=start_s) for job, start_s in started if start_s is not None
        }


def _in_order(gangs: Iterable[Gang]) -> list[Gang]:
    """None is submitted before one that stands before it."""
    last_s, ordered = 0.0, []
    for gang in gangs:
        last_s = max(last_s, gang.row.submit_s)
        ordered.append(replace(gang, row=replace(gang.row, submit_s=last_s)))
    return ordered
