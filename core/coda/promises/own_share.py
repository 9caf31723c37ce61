"""What a promised job may take of what is free on a node: a CPU job that may not borrow has its array's cores only."""

from __future__ import annotations

from coda.cache.world_index import WorldIndex
from coda.model.job import Job, JobId
from coda.model.resources import Resources


class OwnShare:
    """The part of each node that is for one job. Without arrays, for GPU jobs and for borrowers, all that is free is.

    The rule is that of `OwnCores`, by which the job starts: else nodes would be kept on which it may not."""

    def __init__(self, index: WorldIndex, job: Job) -> None:
        self._arrays = None if job.request.gpus or job.may_borrow else index.arrays

    @property
    def is_limited(self) -> bool:
        """True if not all that is free is for the job."""
        return self._arrays is not None

    def of(self, number: int, free: Resources, given_m: int = 0) -> Resources:
        """Return what the job may take of what is, or will be, free on a node. `given_m`: of these, the millicores that
        its array gets back until then, see `given_m`."""
        if self._arrays is None:
            return free
        return free.with_cpu(min(free.cpu_m, self._arrays.own_left_m(number) + given_m))

    def has_from(self, number: int, holder: JobId) -> bool:
        """True if what this job leaves on a node is for the job."""
        return self._arrays is None or self._arrays.holds_own(number, holder)

    def given_m(self, number: int, holder: JobId, amount: Resources) -> int:
        """Return the millicores that the array gets back on a node when a job ends there that holds this amount."""
        return amount.cpu_m if self._arrays is not None and self._arrays.holds_own(number, holder) else 0
