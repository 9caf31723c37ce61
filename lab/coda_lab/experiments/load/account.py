"""What became of every submitted job and foreign pod. Fed with what is seen and done; talks to nobody.

A job ends once: finished or failed by its status, deleted if it is gone after the test asked for that, lost if it is
gone otherwise. A job still open when the run ends is stuck. Any end outside its plan is a problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from coda.model import Phase
from coda_kube.objects.json_types import Json
from coda_lab.experiments.load.plans import Act, End, JobPlan, PodPlan

_ENDS: Final = {Phase.SUCCEEDED.value: End.SUCCEEDED, Phase.FAILED.value: End.FAILED}


@dataclass(slots=True, kw_only=True)
class JobEntry:
    """The record of one job."""

    plan: JobPlan
    status: Json = field(default_factory=dict)  # as last seen
    end: End | None = None
    is_gone: bool = False
    is_lost: bool = False
    deletion_asked: bool = False
    asked_anew: int = 0  # resumed, or edited: each may cost an attempt that did not end by itself
    stopped: set[int] = field(default_factory=set)  # attempts that the planner ordered to stop: they count as no end
    restores: int = 0  # of etcd, to a time when it was there: each may take back its end, so that it ends again

    @property
    def is_open(self) -> bool:
        """True while its end is still to come."""
        return self.end is None and not self.is_lost


@dataclass(slots=True, kw_only=True)
class PodEntry:
    """The record of one foreign pod. `end`: Succeeded, or why it failed."""

    plan: PodPlan
    end: str | None = None
    is_gone: bool = False
    deletion_asked: bool = False


class Account:
    """Jobs and foreign pods by name. `changed` is called after each end."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.jobs: dict[str, JobEntry] = {}
        self.pods: dict[str, PodEntry] = {}
        self._open_jobs: dict[str, JobEntry] = {}  # the open ones: few of thousands
        self._open_pods: dict[str, PodEntry] = {}
        self._ended_jobs: list[JobEntry] = []  # until taken
        self._ended_pods: list[PodEntry] = []
        self.roll_backs: Counter[str] = Counter()
        self.changed = changed
        self._takes_back = False

    @contextmanager
    def taking_back(self) -> Iterator[None]:
        """While the block lasts, whatever vanishes was taken back by a restore of etcd: nobody lost it."""
        self._takes_back = True
        try:
            yield
        finally:
            self._takes_back = False

    def take_back(self, jobs: Iterable[str], pods: Iterable[str]) -> None:
        """Write down that these, if they were open, never happened."""
        for name in sorted(jobs):
            entry = self.jobs[name]
            entry.is_gone = True
            if entry.end is None and not entry.is_lost:
                entry.end = End.DELETED if entry.deletion_asked else End.TAKEN_BACK
                self._end_job(entry)
        for name in sorted(pods):
            pod = self.pods[name]
            pod.is_gone = True
            if pod.end is None:
                pod.end = End.TAKEN_BACK.value
                self._end_pod(pod)

    def add_job(self, plan: JobPlan) -> JobEntry:
        """Write down a job that is about to be submitted."""
        entry = self.jobs[plan.name] = self._open_jobs[plan.name] = JobEntry(plan=plan)
        return entry

    def add_pod(self, plan: PodPlan) -> PodEntry:
        """Write down a foreign pod that is about to be submitted."""
        entry = self.pods[plan.name] = self._open_pods[plan.name] = PodEntry(plan=plan)
        return entry

    def take_ended(self) -> tuple[list[JobEntry], list[PodEntry]]:
        """The jobs and foreign pods that have ended since the last call."""
        ended, self._ended_jobs, self._ended_pods = (self._ended_jobs, self._ended_pods), [], []
        return ended

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        entry = self.jobs.get((new or old or {})["metadata"]["name"])
        if entry is None:
            return
        if new is None:
            entry.is_gone = True
            if entry.end is None and self._takes_back and not entry.deletion_asked:
                entry.end = End.TAKEN_BACK
            elif entry.end is None:
                entry.end = End.DELETED if entry.deletion_asked else None
                entry.is_lost = not entry.deletion_asked
            self._end_job(entry)
            return
        before, entry.status = entry.status, new.get("status") or {}
        if entry.status.get("phase") == Phase.RESTARTING.value and before.get("phase") != Phase.RESTARTING.value:
            self.roll_backs[str(entry.status.get("reason"))] += 1
        placement = entry.status.get("placement") or {}
        if placement.get("stop"):
            entry.stopped.add(int(placement["attempt"]))
        if last := entry.status.get("lastStop"):  # ordered and done while the API server could not be watched
            entry.stopped.add(int(last["attempt"]))
        end = _ENDS.get(str(entry.status.get("phase")))
        if end is not None and entry.end is None:
            entry.end = end
            self._end_job(entry)

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Listener for `WatchCache`."""
        entry = self.pods.get((new or old or {})["metadata"]["name"])
        if entry is None:
            return
        if new is None:
            entry.is_gone = True
            entry.end = entry.end or (End.TAKEN_BACK.value if self._takes_back else "vanished")
            self._end_pod(entry)
            return
        status = new.get("status") or {}
        if entry.end is None and status.get("phase") in ("Succeeded", "Failed"):
            entry.end = "Succeeded" if status["phase"] == "Succeeded" else str(status.get("reason") or "Failed")
            self._end_pod(entry)

    def _end_job(self, entry: JobEntry) -> None:
        if self._open_jobs.pop(entry.plan.name, None) is not None:
            self._ended_jobs.append(entry)
        self.changed()

    def _end_pod(self, entry: PodEntry) -> None:
        if self._open_pods.pop(entry.plan.name, None) is not None:
            self._ended_pods.append(entry)
        self.changed()

    @property
    def open_gpus(self) -> int:
        """The GPUs of the open jobs."""
        return sum(entry.plan.gpus for entry in self._open_jobs.values())

    @property
    def open_jobs(self) -> int:
        """The number of open jobs."""
        return len(self._open_jobs)

    @property
    def open_pods(self) -> Collection[PodEntry]:
        """The number of open foreign pods."""
        return self._open_pods.values()

    def problems(self) -> tuple[str, ...]:
        """A sentence for each job or foreign pod with an end outside its plan; call it at the very end of a run."""
        found = [sentence for name in self.jobs for sentence in _job_problems(name, self.jobs[name])]
        found += [f"foreign pod {name} never ended" for name, entry in self.pods.items() if entry.end is None]
        found += [
            f"foreign pod {name} vanished before it ended"
            for name, entry in self.pods.items()
            if entry.end == "vanished"
        ]
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        entries = self.jobs.values()
        ends = Counter(entry.end for entry in entries)
        failed = Counter(str(entry.status.get("reason")) for entry in entries if entry.end is End.FAILED)
        seen = [entry.status for entry in entries]
        return {
            "submitted": len(self.jobs),
            "pods": sum(entry.plan.replicas for entry in entries),
            "succeeded": ends[End.SUCCEEDED],
            "failed": ends[End.FAILED],
            "failed_by_reason": dict(sorted(failed.items())),
            "deleted_by_the_test": ends[End.DELETED],
            "taken_back": ends[End.TAKEN_BACK],
            "lost": sum(entry.is_lost for entry in entries),
            "stuck": self.open_jobs,
            "acts": dict(sorted(Counter(entry.plan.act.value for entry in entries if entry.plan.act).items())),
            "attempts": sum(int(status.get("attempt") or 1) for status in seen),
            "own_failures": sum(int(status.get("failures") or 0) for status in seen),
            "disruptions": sum(int(status.get("disruptions") or 0) for status in seen),
            "roll_backs_by_reason": dict(sorted(self.roll_backs.items())),
        }

    def pods_as_json(self) -> dict[str, Any]:
        """For the report: the foreign pods."""
        ends = Counter(entry.end or "open" for entry in self.pods.values())
        return {"submitted": len(self.pods), "ends": dict(sorted(ends.items()))}


def _job_problems(name: str, entry: JobEntry) -> Iterator[str]:
    status = entry.status
    phase, reason, message = (status.get(key) for key in ("phase", "reason", "message"))
    if entry.is_lost:
        yield f"job {name} is lost: it vanished while it was {phase}, and nobody asked for that"
        return
    if entry.end is None:
        pending = status.get("pending") or {}
        why = pending.get("message") if phase == Phase.QUEUED.value else message
        yield f"job {name} never ended: it is {phase or 'not accepted'} in attempt {status.get('attempt')}: {why}"
        return
    if entry.end is End.TAKEN_BACK:
        return
    if entry.plan.failing_rank is None and int(status.get("failures") or 0):
        many = status["failures"]
        yield f"job {name} counts {many} failures of its own, and no rank of it fails: {reason}: {message}"
    if entry.end not in entry.plan.ends:
        yield f"job {name} {entry.end.value}, which nothing in it asked for: {reason}: {message}"
    counted = sum(int(status.get(key) or 0) for key in ("failures", "disruptions"))
    if int(status.get("attempt") or 1) > 1 + counted + len(entry.stopped) + entry.asked_anew:
        yield (
            f"job {name} ran to attempt {status.get('attempt')}, but counts {counted} ended attempts, "
            f"was ordered to stop {len(entry.stopped)} times, and resumed or edited {entry.asked_anew} times"
        )
    if entry.plan.act is not Act.SUSPEND and phase == Phase.SUSPENDED.value:
        yield f"job {name} is suspended, and nobody asked for that"
