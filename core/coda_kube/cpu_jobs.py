"""The CPU jobs among the pods of a cluster, and the Jobs whose pods may be evicted at no price."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from coda.model import Job, JobId
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import MOST_RECLAIMED, cpu_job_id, heir_of, ignores_disruptions
from coda_kube.objects.read import Pod, job_from_pod
from coda_kube.refused_nodes import RefusedNodes
from coda_kube.returned_places import Record, ReturnedPlaces


class CpuJobs:
    """Reads them from their pods. Every method is O(1), but for `note_batch_job`: O(pods of the Job).

    `now_s`: the API server's time. A pod that somebody else's gate holds off queues from when that gate is seen gone:
    else anybody could save up waiting time. After a restart it queues from its creation."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._held_off: set[str] = set()  # uids of pods with Coda's gate and others
        self._queued_s: dict[str, float] = {}  # since when those wait for Coda alone, by uid
        self._pod_by_job: dict[JobId, Pod] = {}
        self._jobs_by_controller: dict[str, set[JobId]] = {}  # by its uid
        self._ignoring: set[str] = set()  # uids of the Jobs that ignore disruptions
        self.places = ReturnedPlaces()
        self.refused = RefusedNodes()  # by `controller_of`
        self._evicted: set[str] = set()  # uids of the pods whose eviction was asked for, until they are gone

    def __contains__(self, job: JobId) -> bool:
        return job in self._pod_by_job

    def note_pod(self, before: Pod | None, after: Pod | None) -> JobId | None:
        """A pod came, changed or went. Returns the CPU job that it is or was."""
        pod = next((one for one in (after, before) if one is not None and one.cpu_job is not None), None)
        if pod is None:
            return None
        namespace, _, name = pod.id.partition("/")
        job = cpu_job_id(namespace, name)
        if (known := self._pod_by_job.pop(job, None)) is not None:
            self._set_controller(job, known, is_there=False)
            if known.uid != pod.uid or pod is before or pod.ended:
                self._evicted.discard(known.uid)
            if known.uid != pod.uid:
                self._forget_gates(known.uid)
        is_there = pod is after and not pod.ended
        if is_there:
            self._pod_by_job[job] = pod
            self._set_controller(job, pod, is_there=True)
        if not is_there or not pod.gated:
            self.places.leave(pod.uid)
            self._forget_gates(pod.uid)
        elif pod.cpu_job is not None and not pod.cpu_job.is_waiting:
            self._held_off.add(pod.uid)
            self._queued_s.pop(pod.uid, None)
        elif pod.uid in self._held_off:
            self._held_off.discard(pod.uid)
            self._queued_s[pod.uid] = self._now_s()
        return job

    def _forget_gates(self, uid: str) -> None:
        self._held_off.discard(uid)
        self._queued_s.pop(uid, None)

    def renew(self, pod: Pod) -> None:
        """The pod has another version, and nothing that counts has changed."""
        if pod.cpu_job is not None:
            self.note_pod(None, pod)

    def note_batch_job(self, old: Json | None, new: Json | None) -> Collection[JobId]:
        """A Job came, changed or went. Returns the CPU jobs that are to be read again."""
        metadata = (new or old or {})["metadata"]
        uid = metadata["uid"]
        if new is None:
            self.refused.forget_owner(f"{metadata['namespace']}/{uid}")
        ignores = new is not None and ignores_disruptions(new)
        if ignores == (uid in self._ignoring):
            return ()
        (self._ignoring.add if ignores else self._ignoring.discard)(uid)
        return tuple(self._jobs_by_controller.get(uid, ()))

    def unbound(self) -> list[tuple[JobId, Pod]]:
        """The released pods that are not bound yet. O(CPU jobs)."""
        pods = self._pod_by_job.items()
        return [(job, pod) for job, pod in pods if not (pod.gated or pod.node or pod.terminating)]

    def load_places(self, record: Record) -> list[JobId]:
        """Begin with these places. Returns the waiting CPU jobs that are to be read again, the newest first.

        O(pods of the owners with places, now or before)."""
        owners = self.places.owners()
        self.places.load(record)
        return self._waiting_of(owners | self.places.owners())

    def add_places(self, record: Record) -> list[JobId]:
        """Add these places. Returns the waiting CPU jobs that are to be read again, as `load_places` does."""
        self.places.add_all(record)
        return self._waiting_of(record.keys())

    def _waiting_of(self, owners: Collection[str]) -> list[JobId]:
        jobs = [job for owner in owners for job in self._jobs_by_controller.get(owner, ())]
        pods = [(job, self._pod_by_job[job]) for job in jobs]
        waiting = [(-pod.cpu_job.created_s, job) for job, pod in pods if pod.gated and pod.cpu_job is not None]
        return [job for _, job in sorted(waiting)]

    def set_evicted(self, job: JobId, *, is_evicted: bool) -> None:
        """Count the job as stopped from now on, or no longer. Read it again after this."""
        if (pod := self._pod_by_job.get(job)) is not None:
            (self._evicted.add if is_evicted else self._evicted.discard)(pod.uid)

    def pod(self, job: JobId) -> Pod:
        """The pod that is this CPU job. Raises KeyError."""
        return self._pod_by_job[job]

    def owner_of(self, job: JobId) -> str:
        """The uid of its controller; empty without one, or without the pod."""
        pod = self._pod_by_job.get(job)
        return pod.cpu_job.controller[1] if pod is not None and pod.cpu_job is not None else ""

    def jobs_of(self, owner: str) -> Collection[JobId]:
        """The CPU jobs of the controller of this uid, of every namespace that claims it."""
        return self._jobs_by_controller.get(owner, ())

    def of_controllers(self, controllers: Collection[str]) -> list[JobId]:
        """The CPU jobs of these, each as `controller_of` has it. O(pods of these)."""
        jobs = [job for one in controllers for job in self.jobs_of(one.partition("/")[2])]
        return [job for job in jobs if controller_of(self._pod_by_job[job]) in controllers]

    def version_of(self, job: JobId) -> int:
        """The resourceVersion of its pod. Raises KeyError."""
        cpu_job = self._pod_by_job[job].cpu_job
        return cpu_job.version if cpu_job is not None else 0

    def read(self, job: JobId) -> Job | None:
        """The job as its pod says now; None without one."""
        pod = self._pod_by_job.get(job)
        if pod is None:
            return None
        job_now = job_from_pod(pod, is_evicted=pod.uid in self._evicted, ignored_disruptions=self._ignoring)
        if job_now is None or not pod.gated or pod.cpu_job is None:
            return job_now
        if (queued_s := self._queued_s.get(pod.uid, 0.0)) > job_now.queued_s:
            job_now = replace(job_now, queued_s=queued_s)
        if avoided := self.refused.avoided_by(controller_of(pod)):
            job_now = replace(job_now, avoid=avoided)
        place = self.places.taken_by(pod.uid, heir_of(pod.cpu_job), created_s=pod.cpu_job.created_s)
        if place is None:
            return job_now
        job_now = replace(job_now, queued_s=place.queued_s, waiting_s=place.evicted_s, returned=True)
        return replace(job_now, reclaimed=min(place.times, MOST_RECLAIMED))

    def _set_controller(self, job: JobId, pod: Pod, *, is_there: bool) -> None:
        uid = pod.cpu_job.controller[1] if pod.cpu_job is not None else ""
        if not uid:
            return
        jobs = self._jobs_by_controller.setdefault(uid, set())
        (jobs.add if is_there else jobs.discard)(job)
        if not jobs:
            del self._jobs_by_controller[uid]


def controller_of(pod: Pod) -> str:
    """The namespace of a CPU job's pod and the uid of its controller: nobody can name that of another namespace.

    Empty for a bare pod: nobody makes another one in its place."""
    uid = pod.cpu_job.controller[1] if pod.cpu_job is not None else ""
    return f"{pod.id.partition('/')[0]}/{uid}" if uid else ""
