"""The record of one finished job: what the history store keeps of it for good."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda.history.run_times import FinishedRun
from coda.model.trial_run import TrialOutcome


class Ending(Enum):
    """How a job ended; spelled as in the store."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"  # its user deleted it before it had ended


WAIT_NOT_RECORDED: Final = "NotRecorded"
"""The only cause, of 0 seconds, of an imported job whose source does not say how long it waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """One finished job. `uid` and `attempt` tell two records apart. Times are seconds since 1970, 0 for never.

    Seconds from `queued_s` to `ended_s` are in `waits` or in `held_s`, none in both and none in neither."""

    uid: str
    attempt: int  # in which it ended
    namespace: str
    owner: str  # its user: who asked for it, else its namespace
    name: str
    category: str  # empty: the user did not say
    model: str  # the job's label app.kubernetes.io/name; empty without it
    replicas: int
    gpus_per_replica: int
    cores_asked: int | None  # per rank; None: automatic
    cores_tuned: int | None  # per rank, the answer of the allocator's search; None: it found none, or was cut short
    cores_given: int  # per rank, at its end; 0: it was never accepted
    ending: Ending
    reason: str  # the status' one word for it
    failure_class: str  # empty: not known
    queued_s: float
    started_s: float  # when all ranks had started for the first time
    ended_s: float
    waits: tuple[tuple[str, float], ...]  # cause and seconds, by cause
    held_s: float  # with its GPUs, of all attempts
    run_s: float  # of these, with all ranks started
    idle_gpu_s: float | None  # of `held_gpu_s`, GPUs that computed nothing; None: not measured
    failures: int  # attempts that the job itself ended
    lost_s: float = 0.0  # of `held_s`, work that stops for other jobs threw away
    trial: str = ""  # what came of its trial, as in the status; empty: it had none
    trial_s: float = 0.0  # how long the trial had its one GPU; not in `held_s`
    summed_gpu_s: float | None = None  # GPU-seconds as they were summed while it lived; None: nobody did
    summed_lost_gpu_s: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.replicas * self.gpus_per_replica

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds that the job had GPUs for, at the size of each attempt, while the pods of a stopped one end, too.

        Of a record that has no sum: as if it always had the size that it had at its end."""
        return self.held_s * self.gpus if self.summed_gpu_s is None else self.summed_gpu_s

    @property
    def lost_gpu_s(self) -> float:
        """GPU-seconds of work that stops for other jobs threw away, at the size that it had at each stop."""
        return self.lost_s * self.gpus if self.summed_lost_gpu_s is None else self.summed_lost_gpu_s

    @property
    def trial_saved_gpu_s(self) -> float:
        """GPU-seconds that its trial saved: the gang would have failed as late, with all its GPUs, at least once."""
        return self.trial_s * (self.gpus - 1) if self.trial == TrialOutcome.FAILED.value else 0.0

    @property
    def wait_s(self) -> float:
        """Seconds that it waited, of all causes."""
        return sum(seconds for _, seconds in self.waits)

    @property
    def wait_is_known(self) -> bool:
        """False for an imported job whose source does not say it."""
        return all(cause != WAIT_NOT_RECORDED for cause, _ in self.waits)


RECORDED_REASON_CHARACTERS: Final = 128
"""Longer words are cut. Our choice: Kubernetes' reasons have a tenth of it."""


def worked_s(held_s: float, run_s: float, lost_s: float) -> float:
    """Return how long a job ran in all its attempts, without the work that stops for other jobs threw away.

    Work is lost since the launch of an attempt, before all its ranks had started: it is a part of `held_s`. Attempts
    that failed count in full. Planner and simulator leave them out where the job does not resume, which no record
    says (docs/decisions/0046)."""
    return max(1.0, min(run_s, held_s - lost_s))


def run_of(job: FinishedJob) -> FinishedRun | None:
    """Return what the job teaches about run times; None if it did not run, or was deleted before its end."""
    if job.ending is Ending.DELETED or job.run_s <= 0:
        return None
    taught_s = worked_s(job.held_s, job.run_s, job.lost_s)
    return FinishedRun(owner=job.owner, category=job.category, gpus=job.gpus, run_s=taught_s)
