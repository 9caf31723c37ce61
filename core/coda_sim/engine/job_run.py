"""One job inside a simulation: what it is, how much of its work is done, and where it runs.

Work is counted in seconds of the recorded run time: a job is done when `done_s` reaches `work_s`.
"""

from __future__ import annotations

from math import floor, inf
from typing import Final

from coda.history.cpu_jobs import CpuUse
from coda.history.division import FollowedPast, HeldSpan
from coda.model.constraints import NodeConstraints
from coda.model.decision import StopCause
from coda.model.job import RETURNING, Job, JobId, Phase
from coda.model.resources import Resources
from coda.policy.preemption_rules import unsaved_s
from coda.replacing import replace
from coda_sim.engine.log import Piece
from coda_sim.workload.gangs import Gang
from coda_sim.workload.job_models import JobModel

_NO_CONSTRAINTS: Final = NodeConstraints()  # one object for all jobs


class JobRun:
    """A job from its submission to its end. Mutable; owned by one simulation."""

    __slots__ = (
        "attempt",
        "bandwidth_bytes_per_s",
        "busy_gpu_s",
        "busy_gpus",
        "cores",
        "done_s",
        "due_cores",
        "gang",
        "gpus",
        "is_profiled",
        "is_restarting",
        "is_victim",
        "job",
        "limit",
        "lost_pace",
        "model",
        "nodes",
        "pace",
        "piece_done_s",
        "piece_from_s",
        "resizes",
        "saved_done_s",
        "since_s",
        "told_factor",
        "version",
        "victim_lost_s",
        "victim_s",
        "wishes",
        "work_s",
        "working_cores",
    )

    job: Job  # as the planner sees it, from its submission on

    def __init__(self, gang: Gang, model: JobModel, told_factor: float = 1.0) -> None:
        self.gang = gang
        self.model = model
        self.gpus = gang.gpus
        self.work_s = gang.row.duration_s
        self.told_factor = told_factor  # of its run times, as the planner is told
        self.done_s = 0.0  # work that counts
        self.saved_done_s = 0.0  # of it, what its last regular save has
        self.attempt = 0  # starts so far
        self.is_profiled = True  # the cores at which it is fastest are known
        self.is_restarting = False  # it has its nodes, and does nothing yet
        self.nodes: tuple[tuple[int, int], ...] = ()  # node number and ranks there; empty: not running
        self.cores = gang.cpus_per_replica  # per rank, held while it runs
        self.working_cores = self.cores  # per rank, that its pods can use now: fewer in the middle of a resize
        self.due_cores = 0  # per rank, that it had before some were taken back; 0: it has them
        self.resizes = 0  # begun so far
        self.pace = 0.0  # work per second, now
        self.busy_gpus = 0.0  # now
        self.bandwidth_bytes_per_s = 0  # of a CPU job: wanted now on all its nodes
        self.limit = 1.0  # share of its bandwidth that a throttle leaves it
        self.is_victim = False  # below 95 % of its undisturbed utilisation, now
        self.victim_s = 0.0  # total time as a victim
        self.lost_pace = 0.0  # work per second that contention takes from a victim, now
        self.victim_lost_s = 0.0  # total work lost as a victim
        self.since_s = 0.0  # up to when the work is counted
        self.piece_from_s = 0.0  # since when it has these nodes and cores
        self.piece_done_s = 0.0  # work done since then
        self.busy_gpu_s = 0.0  # busy GPU-seconds since then
        self.wishes = 0  # made so far
        self.version = 0  # events added for an older version are void

    def submit(self, cores: int, *, is_resumable: bool, is_tunable: bool) -> None:
        """Submit the job; each of its ranks asks for `cores`."""
        self.job = job_from_gang(self.gang, cores, self.told_factor, is_resumable=is_resumable, is_tunable=is_tunable)

    def set_request(self, cores: int) -> None:
        """Set the cores that each rank asks for, as the planner sees it, and remove its wish."""
        request = with_cores(self.job.request, cores)
        self.job = replace(self.job, request=request, cpus_per_replica=cores, wish=None)

    def teach(self, past: FollowedPast, now_s: float) -> None:
        """The job ends: what it used counts for the division of the arrays."""
        if self.gpus:
            past.add(self._held_span(now_s))
        else:
            past.add_cpu(now_s, self._cpu_use(now_s))

    def _held_span(self, now_s: float) -> HeldSpan:
        """Return what its last attempt held; it must run."""
        assert self.job.placement is not None
        cores = self.held_cores if self.job.tunable else 0
        category = self.model.profile.category.value if self.model.profile else ""
        return HeldSpan(self.job.placement.committed_s, now_s, self.gpus, cores, category)

    def _cpu_use(self, now_s: float) -> CpuUse:
        """Return what its last attempt used, as a CPU job; it must run."""
        placement = self.job.placement
        assert placement is not None
        core_s = (now_s - placement.committed_s) * self.held_cores
        lacked_s = max(0.0, placement.committed_s - max(self.job.queued_s, self.job.waiting_s))
        return CpuUse(
            jobs=1,
            core_s=core_s,
            borrowed_core_s=core_s if placement.borrows else 0.0,
            lacked_core_s=lacked_s * self.held_cores,
        )

    @property
    def held_cores(self) -> int:
        """The cores on all its nodes."""
        return self.cores * self.gang.replicas

    def set_working_cores(self, *, takes_time: bool) -> bool:
        """Let its pods use the cores that it holds; if more cores take time, only `end_resize` does. True if it must.

        Fewer cores work at once: a lower limit is one write to the kernel."""
        self.resizes += 1
        if takes_time and self.cores > self.working_cores:
            return True
        self.working_cores = self.cores
        return False

    def begin_piece(self, now_s: float) -> None:
        """Begin a stretch of time with the present nodes and cores."""
        self.piece_from_s = now_s
        self.piece_done_s = self.busy_gpu_s = 0.0

    def piece(self, now_s: float) -> Piece:
        """Return what the job did since `begin_piece`."""
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

    def requeue(self, cause: StopCause, cores: int, now_s: float, *, restart_s: float, reclaimed: int) -> None:
        """Make the stopped job wait again, as the planner sees it. `cores`: what each rank asks for next time, or
        what it had before some were taken back. `reclaimed`: as `Job.reclaimed`, with this stop.

        What it has left includes its restart, so that it is as long while it waits as when it runs again: else it could
        go before the job that it was stopped for."""
        job, began = self.job, self.job.placement
        cores, self.due_cores = max(cores, self.due_cores), 0
        own = job.cpus_per_replica if cores == self.cores else cores
        self.is_restarting = False
        self.job = replace(
            job,
            phase=Phase.QUEUED,
            attempt=job.attempt + 1,
            placement=None,
            bound=frozenset(),
            returned=cause in RETURNING,
            reclaimed=reclaimed,
            lost_s=unsaved_s(job, now_s),
            wish=None,
            served_s=job.served_s + (now_s - began.committed_s if began else 0.0),
            remaining_s=(self.work_s - self.done_s) * self.told_factor + restart_s,
            as_of_s=now_s,
            waiting_s=now_s,
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
                self.victim_lost_s += passed_s * self.lost_pace
            self.since_s = now_s

    def save(self, every_s: float, now_s: float) -> bool:
        """Note the last of its regular saves up to now; True if it is another one.

        They count from the begin of the attempt. Between the save and now it had the pace that it has now."""
        placement = self.job.placement
        if placement is None or not self.job.resumable or not self.gpus:
            return False
        began_s = placement.committed_s
        saved_s = began_s + floor((now_s - began_s) / every_s) * every_s
        if saved_s <= max(self.job.saved_s, began_s):
            return False
        self.advance(now_s)
        self.saved_done_s = max(self.saved_done_s, self.done_s - (now_s - saved_s) * self.pace)
        self.job = replace(self.job, saved_s=saved_s)
        return True

    def unsaved_s(self, every_s: float, now_s: float) -> float:
        """Return the work that is lost if it is stopped now, after counting it up to now; inf: all of it."""
        self.advance(now_s)
        if not self.job.resumable:
            return inf
        if not every_s or not self.gpus:
            return 0.0
        self.save(every_s, now_s)
        return self.done_s - self.saved_done_s

    def end_s(self, now_s: float) -> float:
        """Return when the job is done if nothing changes; its pace must not be 0."""
        return now_s + (self.work_s - self.done_s) / self.pace


def with_cores(request: Resources, cores: int) -> Resources:
    """Return the request of a rank with `cores`; the same object if it has them already."""
    cpu_m = cores * 1000
    if request.cpu_m == cpu_m:
        return request
    return Resources(gpus=request.gpus, cpu_m=cpu_m, memory_bytes=request.memory_bytes)


def job_from_gang(
    gang: Gang, cores: int, told_factor: float = 1.0, *, is_resumable: bool = False, is_tunable: bool = False
) -> Job:
    """Return the job as the planner sees it at submission; each rank asks for `cores`.

    Its remaining time is known: the recorded run time, times `told_factor`. It passes as real time does if the job has
    what it asked for.
    """
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
        constraints=_NO_CONSTRAINTS,
        queued_s=row.submit_s,
        user=row.user,
        virtual_cluster=row.virtual_cluster,
        remaining_s=row.duration_s * told_factor,
        as_of_s=row.submit_s,
        resumable=is_resumable,
        tunable=is_tunable,
    )
