"""The log of a run: one entry per job, one piece per stretch of time with the same holdings, and the usage trail.

All metrics of a run are computed from it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from coda.history.delay_causes import DelayCause, delay_cause
from coda.history.time_spent import Doing, TimeSpent, begun, moved_on
from coda.model.decision import Refusal, StopCause
from coda.model.job import JobId
from coda_sim.workload.gangs import Gang


class Piece(NamedTuple):
    """A job held these cores and GPUs on these nodes from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    attempt: int
    nodes: tuple[tuple[int, int], ...]  # node number and ranks there
    cores: int  # per rank
    work_s: float  # done in it, seconds of the recorded run time
    busy_gpu_s: float
    kept: bool  # False: the work was thrown away later


class Restart(NamedTuple):
    """A stopped job held its GPUs and cores again from `start_s` to `end_s`, and did nothing yet."""

    start_s: float
    end_s: float
    cores: int  # of all its ranks


@dataclass(slots=True)
class JobEntry:
    """The history of one job. `end_s` None: it was refused, and `refusal` says why."""

    gang: Gang
    pieces: list[Piece] = field(default_factory=list)
    end_s: float | None = None
    refusal: str = ""
    aborts: int = 0
    migrations: int = 0
    preemptions: int = 0
    tuning_steps: int = 0
    victim_s: float = 0.0  # time below 95 % of its undisturbed utilisation
    victim_lost_s: float = 0.0  # work that it would have done in that time without its neighbours
    restarts: list[Restart] = field(default_factory=list)  # that took time
    spent: TimeSpent | None = None  # what its waits were booked as, of a GPU job, if the run books delays

    @property
    def start_s(self) -> float | None:
        """The time of the first start."""
        return self.pieces[0].start_s if self.pieces else None

    def count_stop(self, cause: StopCause) -> None:
        """Count a stop of the job."""
        self.aborts += cause is StopCause.RECLAIM
        self.migrations += cause is StopCause.MIGRATE
        self.preemptions += cause in (StopCause.PREEMPT, StopCause.FAIR_SHARE)

    def cut_restart(self, now_s: float) -> None:
        """End the last restart at `now_s` if the job was stopped again in the middle of it."""
        if self.restarts and self.restarts[-1].end_s > now_s:
            self.restarts[-1] = self.restarts[-1]._replace(end_s=now_s)

    def discard_work(self, lost_s: float) -> None:
        """Mark so much of the work as lost, the last first. A piece of which a part is lost becomes two."""
        for index in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[index]
            if lost_s <= 0:
                return
            if not piece.kept:
                continue
            if piece.work_s <= lost_s + 1e-6:  # sums of floats
                self.pieces[index] = piece._replace(kept=False)
            else:
                self.pieces[index : index + 1] = _cut(piece, 1.0 - lost_s / piece.work_s)
            lost_s -= piece.work_s


class DelayBook:
    """Books every second of every GPU job's wait, by the same rules as the operator. It does nothing if it is off.

    O(refusals) for each cycle, of which those that stay the same cost one comparison."""

    def __init__(self, *, is_on: bool) -> None:
        self.explain: int | None = None if is_on else 0
        """How many refusals each cycle has to explain; None: all."""
        self._is_on = is_on
        self._entries: dict[JobId, JobEntry] = {}
        self._told: dict[JobId, Refusal] = {}

    def wait(self, job: JobId, entry: JobEntry, now_s: float) -> None:
        """The job waits from now on; the cycle of the same time says why."""
        if self._is_on and entry.gang.gpus:
            self._entries[job] = entry
            self._move(job, Doing.WAITING, DelayCause.CODA, now_s)

    def book(self, refusals: Iterable[Refusal], now_s: float) -> None:
        """These jobs wait from now on for these reasons."""
        if not self._is_on:
            return
        for refusal in refusals:
            job = refusal.job
            if self._told.get(job) is not refusal and job in self._entries:
                self._told[job] = refusal
                self._move(job, Doing.WAITING, delay_cause(refusal.reason), now_s)

    def start(self, job: JobId, now_s: float) -> None:
        """The job has its GPUs."""
        self._move(job, Doing.RUNNING, None, now_s)

    def end(self, job: JobId, now_s: float) -> None:
        """The job is done."""
        self._move(job, Doing.ENDED, None, now_s)
        self._entries.pop(job, None)

    def _move(self, job: JobId, doing: Doing, cause: DelayCause | None, now_s: float) -> None:
        entry = self._entries.get(job)
        if entry is None:
            return
        if doing is not Doing.WAITING or cause is DelayCause.CODA:
            self._told.pop(job, None)
        spent = entry.spent
        entry.spent = begun(doing, cause, now_s) if spent is None else moved_on(spent, doing, cause, now_s)


def _cut(piece: Piece, share: float) -> list[Piece]:
    """The piece as two, the first with this share of its time and work; the second is lost."""
    cut_s, work_s, busy = piece.start_s + share * (piece.end_s - piece.start_s), piece.work_s, piece.busy_gpu_s
    first = piece._replace(end_s=cut_s, work_s=work_s * share, busy_gpu_s=busy * share)
    rest = 1.0 - share
    return [first, piece._replace(start_s=cut_s, work_s=work_s * rest, busy_gpu_s=busy * rest, kept=False)]


class UsageTrail:
    """The usage of the whole cluster from each time to the next, in columns."""

    def __init__(self) -> None:
        self.at_s = array("d")
        self.held_gpus = array("l")
        self.held_cores = array("l")
        self.busy_gpus = array("d")
        self.useful_gpus = array("d")  # GPU-seconds of recorded work done per second
        self.waiting_gpu_jobs = array("l")
        self.idle_by_cause = (array("l"), array("l"), array("l"))  # idle GPUs by cause: cores, memory, policy

    def __len__(self) -> int:
        return len(self.at_s)

    def append(
        self,
        now_s: float,
        held: tuple[int, int],
        busy_gpus: float,
        useful_gpus: float,
        waiting: int,
        idle: tuple[int, int, int],
    ) -> None:
        """Add the usage from `now_s` on. `held`: GPUs and cores. `idle`: GPUs, in the order of `idle_by_cause`."""
        self.at_s.append(now_s)
        self.held_gpus.append(held[0])
        self.held_cores.append(held[1])
        self.busy_gpus.append(busy_gpus)
        self.useful_gpus.append(useful_gpus)
        self.waiting_gpu_jobs.append(waiting)
        cores, memory, policy = self.idle_by_cause
        cores.append(idle[0])
        memory.append(idle[1])
        policy.append(idle[2])


CAUSES = ("cores", "scatter", "memory", "quota")
"""Why GPUs are idle while a GPU job waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """One run. `entries` in order of submission."""

    entries: tuple[JobEntry, ...]
    trail: UsageTrail
    end_s: float
    gpus: int
    cores: int
    node_names: tuple[str, ...]
    cycles: int  # of the planner
    throttles: int = 0
    promised_gpu_s: float = 0.0  # kept idle for promises to GPU jobs
    promised_most_gpu_s: float = 0.0  # for one of them
