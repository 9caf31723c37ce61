"""What the planner knows of a job beyond its object: a write that is under way, and what cannot be written.

A placement counts from the moment its write is sent, because the write may be stored although no answer comes. This may
be lost: a new leader learns it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coda.model import Job, JobId, Placement
from coda.model.job import WriteTrouble
from coda.model.seats import in_its_class


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    version: int  # of the object that it changes: another one shows what came of it
    placement: Placement | None  # None: the placement of the object counts until then


class JobAssumptions:
    """Changes jobs as they are read. `with_job` is called for every new version of a job."""

    def __init__(self) -> None:
        self._write_by_job: dict[JobId, _Write] = {}
        self._trouble_by_job: dict[JobId, tuple[str, WriteTrouble]] = {}  # with the uid: a later job is another one
        self._void_plan_by_job: dict[JobId, str] = {}

    def begin_write(self, job: JobId, version: int, placement: Placement | None) -> None:
        """A write of this placement to this version of the job is under way."""
        self._write_by_job[job] = _Write(version=version, placement=placement)

    def end_write(self, job: JobId, version: int) -> bool:
        """The write to that version changed nothing. False if it is not the last one."""
        write = self._write_by_job.get(job)
        if write is None or write.version != version:
            return False
        del self._write_by_job[job]
        return True

    def is_writing(self, job: JobId) -> bool:
        """True while a write may still be stored."""
        return job in self._write_by_job

    def set_unwritable(self, job: JobId, uid: str, trouble: WriteTrouble | None) -> None:
        """Leave the job of that uid out of decisions; None: no longer."""
        if trouble is None:
            self._trouble_by_job.pop(job, None)
        else:
            self._trouble_by_job[job] = (uid, trouble)

    def set_void(self, job: JobId, plan_id: str) -> None:
        """That placement can neither come into force nor be removed: it does not count, unless a pod is bound all the
        same."""
        self._void_plan_by_job[job] = plan_id

    def forget(self, job: JobId) -> None:
        """The job is gone."""
        for known in (self._write_by_job, self._trouble_by_job, self._void_plan_by_job):
            known.pop(job, None)

    def with_job(self, job: Job, version: int) -> Job:
        """Return the job as the planner must see it; `version` is that of its object."""
        uid, unwritable = self._trouble_by_job.get(job.id, ("", None))
        placement, unwritable = job.placement, unwritable if uid == job.uid else None
        write = self._write_by_job.get(job.id)
        if write is not None and version != write.version:  # an older one is a restored backup's
            del self._write_by_job[job.id]
        elif write is not None:
            placement, unwritable = write.placement or placement, unwritable or WriteTrouble.SLOW
        void = self._void_plan_by_job.get(job.id)
        if void is not None and placement is not None:
            if placement.plan_id == void and not job.bound:
                placement = None
            else:  # kube-scheduler was quicker: it is in force
                del self._void_plan_by_job[job.id]
        if placement is job.placement and unwritable is job.unwritable:
            return in_its_class(job)
        return in_its_class(replace(job, placement=placement, unwritable=unwritable))
