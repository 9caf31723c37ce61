"""One job inside a simulation: what it is, how far its work is, and where it runs. What must not live here: when
anything happens (`engine`), and how fast a job is on its nodes (`pace`).

Work is counted in seconds of the recorded run time: a job is done when `done_s` reaches `work_s`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.model.constraints import NodeConstraints
from coda.model.decision import StopCause
from coda.model.job import Job, JobId, Phase
from coda.model.resources import Resources
from coda_sim.engine.log import Piece
from coda_sim.workload.gangs import Gang
from coda_sim.workload.job_models import JobModel

_NO_DEMAND: Final = NodeConstraints()  # of any node: the same for all jobs


class JobRun:
    """A job from its submission to its end. Mutable; owned by one engine."""

    __slots__ = (
        "attempt",
        "bandwidth_bytes_per_s",
        "busy_gpu_s",
        "busy_gpus",
        "cores",
        "done_s",
        "gang",
        "gpus",
        "is_restarting",
        "is_victim",
        "job",
        "limit",
        "nodes",
        "pace",
        "piece_done_s",
        "piece_from_s",
        "since_s",
        "traits",
        "version",
        "victim_s",
        "wishes",
        "work_s",
    )

    job: Job  # as the planner sees it, from its submission on

    def __init__(self, gang: Gang, traits: JobModel) -> None:
        self.gang = gang
        self.traits = traits
        self.gpus = gang.gpus
        self.work_s = gang.row.duration_s
        self.done_s = 0.0  # of the work, that counts
        self.attempt = 0  # starts so far
        self.is_restarting = False  # it has its nodes, and does nothing yet
        self.nodes: tuple[tuple[int, int], ...] = ()  # node number and ranks there; empty: not running
        self.cores = gang.cpus_per_replica  # per rank, held while it runs
        self.pace = 0.0  # work per second, now
        self.busy_gpus = 0.0  # now
        self.bandwidth_bytes_per_s = 0  # wanted now on all its nodes, of a CPU job
        self.limit = 1.0  # share of its bandwidth that a throttle leaves it
        self.is_victim = False  # below 95 % of its undisturbed utilisation, now
        self.victim_s = 0.0  # for how long it was
        self.since_s = 0.0  # up to when the work is counted
        self.piece_from_s = 0.0  # since when it has these nodes and cores
        self.piece_done_s = 0.0  # work done since then
        self.busy_gpu_s = 0.0  # busy GPU-seconds since then
        self.wishes = 0  # made so far
        self.version = 0  # what was foretold for an older one does not come true

    def submit(self, cores: int) -> None:
        """It is submitted, and its ranks ask for so many cores each."""
        self.job = job_from_gang(self.gang, cores)

    def ask(self, cores: int) -> None:
        """Its ranks ask for so many cores each from now on, as the planner sees it; it wishes for no others."""
        request = with_cores(self.job.request, cores)
        self.job = replace(self.job, request=request, cpus_per_replica=cores, wish=None)

    @property
    def held_cores(self) -> int:
        """On all its nodes."""
        return self.cores * self.gang.replicas

    def begin_piece(self, now_s: float) -> None:
        """It has these nodes and cores from now on."""
        self.piece_from_s = now_s
        self.piece_done_s = self.busy_gpu_s = 0.0

    def piece(self, now_s: float) -> Piece:
        """What it did with these nodes and cores, which end now."""
        return Piece(
            start_s=self.piece_from_s,
            end_s=now_s,
            attempt=self.attempt,
            nodes=self.nodes,
            cores=self.cores,
            work_s=self.piece_done_s,
            busy_gpu_s=self.busy_gpu_s,
            kept=True,
        )

    def wait_again(self, cause: StopCause, cores: int, now_s: float) -> None:
        """It was stopped: as the planner sees it from now on. `cores`: what its ranks ask for next time."""
        job, began = self.job, self.job.placement
        own = job.cpus_per_replica if cores == self.cores else cores
        self.is_restarting = False
        self.job = replace(
            job,
            phase=Phase.QUEUED,
            attempt=job.attempt + 1,
            placement=None,
            bound=frozenset(),
            returned=cause is not StopCause.PREEMPT,
            wish=None,
            served_s=job.served_s + (now_s - began.committed_s if began else 0.0),
            remaining_s=self.work_s - self.done_s,
            as_of_s=now_s,
            request=with_cores(job.request, own),
            cpus_per_replica=own,
        )

    def advance(self, now_s: float) -> None:
        """Count the work done up to `now_s` at the pace it had."""
        passed_s = now_s - self.since_s
        if passed_s > 0:
            done_s = passed_s * self.pace
            self.done_s += done_s
            self.piece_done_s += done_s
            self.busy_gpu_s += passed_s * self.busy_gpus
            if self.is_victim:
                self.victim_s += passed_s
            self.since_s = now_s

    def end_s(self, now_s: float) -> float:
        """When it is done if nothing changes; its pace must not be 0."""
        return now_s + (self.work_s - self.done_s) / self.pace


def with_cores(request: Resources, cores: int) -> Resources:
    """What a rank asks for with so many cores; the same object where it has them."""
    cpu_m = cores * 1000
    if request.cpu_m == cpu_m:
        return request
    return Resources(gpus=request.gpus, cpu_m=cpu_m, memory_bytes=request.memory_bytes)


def job_from_gang(gang: Gang, cores: int) -> Job:
    """The job as the planner sees it when it is submitted; each rank asks for so many cores.

    How long it will run is known: seconds of the recorded run time, which pass as seconds do where a job has what it
    asked for."""
    row = gang.row
    return Job(
        id=JobId(f"{row.virtual_cluster or 'jobs'}/{row.job_id}"),
        uid=row.job_id,
        phase=Phase.QUEUED,
        attempt=1,
        generation=1,
        replicas=gang.replicas,
        request=Resources(
            gpus=gang.gpus_per_replica,
            cpu_m=cores * 1000,
            memory_bytes=gang.memory_bytes_per_replica,
        ),
        cpus_per_replica=cores,
        constraints=_NO_DEMAND,
        queued_s=row.submit_s,
        user=row.user,
        virtual_cluster=row.virtual_cluster,
        remaining_s=row.duration_s,
        as_of_s=row.submit_s,
    )
