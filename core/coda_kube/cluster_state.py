"""The cluster as the planner keeps it: the caches report changes, and the planner takes frozen `World`s.

Only what changed is read again. The use of a node is a running sum over its pods. A job is read when its object
changes; its ranks are read after a change of its pods, when somebody asks. `changes` says which values changed, for a
reader that keeps a copy: it reads them by `value`, or all of them by `items`. `snapshot` copies everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from coda.change_log import ChangeLog
from coda.cycle import Part
from coda.model import FINISHED, Job, JobId, Node, Phase, Placement, Resources, World
from coda.model.job import WriteTrouble
from coda.model.seats import wants_other_shares
from coda.policy.priorities import PriorityRule
from coda.snapshots import VersionedMap
from coda_kube.api.watch_cache import key_of, version_of
from coda_kube.cpu_jobs import CpuJobs
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.cpu_job import pod_id_of
from coda_kube.objects.read import (
    Owner,
    Pod,
    id_of,
    is_settled,
    job_from_json,
    pod_from_json,
    unreadable_job,
    with_ranks,
)
from coda_kube.quotas.array_quotas import array_quota_from_json
from coda_kube.quotas.array_sums import ArraySums
from coda_kube.quotas.resource_quotas import quota_from_json
from coda_kube.quotas.virtual_clusters import VirtualClusters
from coda_kube.state.gang_pods import GangPods, LeftRanks
from coda_kube.state.job_assumptions import JobAssumptions
from coda_kube.state.local_times import LocalTimes
from coda_kube.state.node_gpus import NodeGpus
from coda_kube.state.node_use import NodeUse
from coda_kube.state.short_nodes import ShortNodes
from coda_kube.state.stopped_attempts import StoppedAttempts

log = logging.getLogger(__name__)

_KEPT: Final = (Part.NODES, Part.USED, Part.JOBS, Part.QUOTAS, Part.TENANTS, Part.ARRAYS)
"""The parts of a planner's snapshot that are kept here and not found when asked for."""

_STARTING: Final = frozenset({Phase.QUEUED, Phase.LAUNCHED})


class ClusterState:
    """Nodes, pods, jobs and quotas of one cluster. Methods named `on_*` are listeners of a `WatchCache`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        priorities: PriorityRule | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s`: the API server's time, with which the deadlines that jobs show are compared."""
        self.local_times = LocalTimes(now_s)
        self._priorities = priorities or PriorityRule()
        self.version = 0  # grows with every change that a decision may depend on
        self.pod_by_id: dict[str, Pod] = {}
        self.pod_by_uid: dict[str, Pod] = {}
        self.job_json_by_id: dict[JobId, Json] = {}
        # A reader that missed more changes of a part reads all of it.
        self.changes: Mapping[Part, ChangeLog[str]] = {part: ChangeLog(10_000) for part in _KEPT}
        self._node_by_name: dict[str, Node] = {}
        self.use = NodeUse(self.changes[Part.USED].add)
        self.short_nodes = ShortNodes(clock, now_s)
        self._values_by_part: Mapping[Part, dict[str, Any]] = {
            Part.NODES: self._node_by_name,
            Part.USED: self.use.by_name,
            Part.QUOTAS: {},
            Part.ARRAYS: {},
        }
        self.gang_pods = GangPods()
        self._left = LeftRanks(self.gang_pods, lambda job, left: self._set_job(job, left and self._with_rules(left)))
        self._jobs: VersionedMap[JobId, Job] = VersionedMap()
        self._starting_by_id: dict[JobId, Job] = {}  # of `_jobs`, those that may await a decision
        self.cpu_jobs = CpuJobs(now_s)
        self.tenants = VirtualClusters(now_s, lambda name: self._note(Part.TENANTS, name))
        self.arrays = ArraySums()
        self._outdated: set[JobId] = set()  # jobs whose pods changed after their ranks were read
        self.gpus = NodeGpus(self.pod_by_uid, self._outdated.add)
        self._stopped = StoppedAttempts(self.gang_pods, clock, now_s)
        self._assumptions = JobAssumptions()

    def on_node(self, old: Json | None, new: Json | None) -> None:
        """A node came, changed or went. A heartbeat changes nothing."""
        name = key_of(new or old or {})
        node, lacks_otherwise = self.short_nodes.note(name, new)
        self._set(Part.NODES, name, node)
        if lacks_otherwise:
            self._note(Part.NODES, name)
        if new is None:
            self.read_jobs(self.cpu_jobs.of_controllers(self.cpu_jobs.refused.forget_node(name)))

    def end_short_nodes(self) -> list[str]:
        """Count nodes that have lacked devices for too long with what they offer. Returns their names."""
        nodes = self.short_nodes.pop_over()
        for node in nodes:
            self._set(Part.NODES, node.name, node)
        return [node.name for node in nodes]

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went."""
        after = pod_from_json(new) if new is not None else None  # first: if it cannot be read, the old pod stays
        before = self.pod_by_id.pop(key_of(old or new or {}), None)
        if before is not None:
            self.pod_by_uid.pop(before.uid, None)
        if after is not None:
            self.pod_by_id[after.id] = self.pod_by_uid[after.uid] = after
        self._left.note_pod(key_of(old or new or {}), after, new)
        if before == after:
            if after is not None:
                self.cpu_jobs.renew(after)
            return
        self.gpus.note_pods(before, after)
        self.use.change(before, after)
        self.gang_pods.set(before, None)
        self.gang_pods.set(after, after)
        self._stopped.note_pod(before, after)
        if (cpu_job := self.cpu_jobs.note_pod(before, after)) is not None:
            self._read_job(cpu_job)
        else:
            members = [pod.member for pod in (before, after) if pod is not None]
            self._outdated.update([member.job for member in members if member is not None])
        self.version += 1

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """A TrainingJob came, changed or went. A settled one is not kept, and nobody need tell of its end."""
        job = id_of(new or old or {})
        if new is None:
            self._assumptions.forget(job)
            gone = self.job_json_by_id.pop(job, None)
            if gone is not None:
                self._stopped.forget_if_gone((job, gone["metadata"]["uid"]))
        else:
            self.job_json_by_id[job] = new
        if self._read_job(job):
            self.version += 1
        if new is not None and is_settled(new) and ((read := self._jobs.get(job)) is None or read.phase in FINISHED):
            del self.job_json_by_id[job]
            self._assumptions.forget(job)

    def on_batch_job(self, old: Json | None, new: Json | None) -> None:
        """A Job came, changed or went: its pods may, or may not, have cores that they must give back."""
        self.read_jobs(self.cpu_jobs.note_batch_job(old, new))

    def on_node_profile(self, old: Json | None, new: Json | None) -> None:
        """A NodeProfile came, changed or went: who has which GPU whole, and who has no room beside them."""
        self.version += self.gpus.note_profile(key_of(new or old or {}), new)

    def on_quota(self, old: Json | None, new: Json | None) -> None:
        """A ResourceQuota came, changed or went."""
        self._set(Part.QUOTAS, key_of(new or old or {}), quota_from_json(new) if new is not None else None)

    def on_array_quota(self, old: Json | None, new: Json | None) -> None:
        """An ArrayQuota came, changed or went."""
        self._set(Part.ARRAYS, key_of(new or old or {}), array_quota_from_json(new) if new is not None else None)

    def on_virtual_cluster(self, old: Json | None, new: Json | None) -> None:
        """A VirtualCluster came, changed or went. Its namespaces' jobs count for it as `read_tenants` comes to them."""
        before = self.tenants.get(name := key_of(new or old or {}))
        self.tenants.note(old, new)
        if self.tenants.get(name) != before:  # else it is its status, which we write ourselves
            self._note(Part.TENANTS, name)

    def read_tenants(self, most: int = 1 << 62) -> bool:
        """Let so many jobs count for the tenants that their namespaces have now. True if others are left."""
        for job in self.tenants.pop_outdated(self._jobs.roster, most):
            known = self._jobs.get(job)
            if known is not None and known.virtual_cluster != (tenant := self.tenants.tenant_of(known.namespace)):
                self._set_job(job, replace(known, virtual_cluster=tenant))
                self.version += 1
        return self.tenants.has_outdated()

    def begin_write(self, job: JobId, placement: Placement | None) -> int:
        """Count the placement as written; None: only leave the job out of decisions meanwhile. Returns the version of
        the object that the write changes. It ends with a newer version, or by `end_write`."""
        version = self._version_of(job)
        self._assumptions.begin_write(job, version, placement)
        self._read_job(job)
        return version

    def end_write(self, job: JobId, version: int) -> None:
        """The write to that version changed nothing."""
        ordered_stop = self._jobs.get(job)
        if not self._assumptions.end_write(job, version) or not self.knows(job):
            return
        if ordered_stop is not None and ordered_stop.placement is not None and ordered_stop.placement.stop is not None:
            self._stopped.forget((job, ordered_stop.uid))  # it is set again if the object says so
        self._read_job(job)
        self.version += 1

    def is_writing(self, job: JobId) -> bool:
        """True while a write that began may still be stored."""
        return self._assumptions.is_writing(job)

    def set_unwritable(self, job: JobId, trouble: WriteTrouble | None) -> None:
        """Leave the job out of decisions from now on, or no longer."""
        item = self.job_json_by_id.get(job)
        uid = item["metadata"]["uid"] if item is not None else ""
        if job in self.cpu_jobs:
            uid = self.cpu_jobs.pod(job).uid
        self._assumptions.set_unwritable(job, uid, trouble if uid else None)
        self.read_jobs((job,))

    def read_jobs(self, jobs: Iterable[JobId]) -> None:
        """Read these jobs again."""
        self.version += sum([self._read_job(job) for job in jobs])

    def set_evicted(self, job: JobId, *, is_evicted: bool) -> None:
        """Count a CPU job as stopped from now on, or no longer."""
        self.cpu_jobs.set_evicted(job, is_evicted=is_evicted)
        if not is_evicted and (known := self._jobs.get(job)) is not None:
            self._stopped.forget((job, known.uid))
        self.read_jobs((job,))

    def void_placement(self, job: JobId, plan_id: str) -> None:
        """Count the placement no more, though the object shows it."""
        self._assumptions.set_void(job, plan_id)
        self.read_jobs((job,))

    def knows(self, job: JobId) -> bool:
        """True while there is an object of the job."""
        return job in self.job_json_by_id or job in self.cpu_jobs

    def known_epoch(self) -> int:
        """The highest epoch of any placement; 1 if there is none, but jobs that somebody may lead; 0 without jobs."""
        epochs = [job.placement.epoch for job in self._jobs.roster() if job.placement is not None]
        return max([*epochs, min(1, len(self.job_json_by_id))])  # a CPU job's placement has none

    def job(self, job: JobId) -> Job | None:
        """The job now; None if it is unknown, finished or not accepted yet."""
        if job in self._outdated:
            self._outdated.remove(job)
            self._read_ranks(job)
        return self._jobs.get(job)

    def job_but_for_ranks(self, job: JobId) -> Job | None:
        """The job as its object says. Which of its pods exist and are bound may be out of date."""
        return self._jobs.get(job)

    def starting(self) -> Iterable[Job]:
        """The jobs that are queued, launched, or want other cores. No other job awaits a decision."""
        self.read_outdated_ranks()
        return self._starting_by_id.values()

    def node(self, name: str) -> Node | None:
        """The node of that name; None if there is none."""
        return self._node_by_name.get(name)

    def value(self, part: Part, key: str) -> Any:
        """The value of a part now; None without one. Jobs are as of the last `read_outdated_ranks`."""
        return self._jobs.get(JobId(key)) if part is Part.JOBS else self._dict_of(part).get(key)

    def items(self, part: Part) -> list[tuple[str, Any]]:
        """All keys and values of a part now. O(values)."""
        return [*(self._jobs if part is Part.JOBS else self._dict_of(part)).items()]

    def forget_pod(self, key: str) -> None:
        """Keep an ended pod no more: nothing is left to decide about it. Unknown pods are ignored."""
        if (pod := self.pod_by_id.pop(key, None)) is not None:
            self.pod_by_uid.pop(pod.uid, None)
            self.gang_pods.set(pod, None)
            self._stopped.note_pod(pod, None)

    def is_stopped(self, owner: Owner, attempt: int) -> bool:
        """True for an attempt that was ordered to stop, while pods of it are seen."""
        return self._stopped.is_stopped(owner, attempt)

    def snapshot(self, in_flight: Mapping[str, Resources] | None = None) -> World:
        """The world now. `in_flight`: more capacity that must not be given away, as what short nodes lack."""
        self.read_outdated_ranks()
        self.read_tenants()
        self.tenants.note_losses()
        return World(
            nodes=tuple(self._node_by_name.values()),
            used=dict(self.use.by_name),
            in_flight=dict(in_flight or {}),
            leaving=self.leaving(),
            jobs=self._jobs.roster(),
            quotas=tuple(self._values_by_part[Part.QUOTAS].values()),
            virtual_clusters=tuple(self.tenants.by_name().values()),
            array_quotas=tuple(self._values_by_part[Part.ARRAYS].values()),
            gpu_uses=self.gpus.uses(),
        )

    def leaving(self) -> dict[str, Resources]:
        """Per node, the part of its use that orders to stop or to give cores back will free. O(pods of these jobs)."""
        return self._stopped.leaving()

    def _dict_of(self, part: Part) -> Mapping[str, Any]:
        return self.tenants.by_name() if part is Part.TENANTS else self._values_by_part[part]

    def _set(self, part: Part, key: str, value: Any) -> None:
        """Keep a value that changed; None removes it."""
        values = self._values_by_part[part]
        if value != values.get(key):
            values[key] = value
            if value is None:
                del values[key]
            self._note(part, key)

    def _note(self, part: Part, key: str) -> None:
        self.version += 1
        self.changes[part].add(key)

    def _version_of(self, job: JobId) -> int:
        return self.cpu_jobs.version_of(job) if job in self.cpu_jobs else version_of(self.job_json_by_id[job])

    def _read_cpu_job(self, job: JobId) -> bool:
        before, after = self._jobs.get(job), self.cpu_jobs.read(job)
        if after is not None:
            pod = self.cpu_jobs.pod(job)
            after = self._as_written(after, {pod.id: pod})
        elif job not in self.cpu_jobs:
            self._assumptions.forget(job)
        if after != before:
            self._set_job(job, after)
        return after != before

    def _read_job(self, job: JobId) -> bool:
        """Read a job again. True if the planner's view of it changed."""
        self._outdated.discard(job)
        if pod_id_of(job) is not None:
            return self._read_cpu_job(job)
        item, before = self.job_json_by_id.get(job), self._jobs.get(job)
        uid: str | None = item["metadata"]["uid"] if item is not None else ""
        pods = self.gang_pods.of((job, uid or ""))
        try:
            after = job_from_json(item, pods) if item is not None else None
        except Exception as error:  # whatever is wrong with one job, the others are planned
            log.warning("job %s cannot be read: %s: %s", job, type(error).__name__, error)
            holds = before is not None and (before.placement is not None or before.bound or before.unbound)
            after = before if holds else unreadable_job(item or {}, error)  # forgetting it would free what it holds
            uid = uid if holds else None  # each of its pods accounts for itself
        if after is not None:
            after = self._as_written(after, pods)
        if after != before:
            self._set_job(job, after)
        return self._left.read(job, uid) or self._jobs.get(job) != before

    def _as_written(self, seen: Job, pods: Mapping[str, Pod]) -> Job:
        """The job with the rules and times that count for it, and with what was written and not seen yet."""
        after = self._assumptions.with_job(self._with_rules(seen), self._version_of(seen.id))
        after = with_ranks(after, pods) if after.placement is not seen.placement else after
        return self.local_times.applied(self.gpus.with_crowded(after, pods), is_known=seen.id in self._jobs)

    def _with_rules(self, job: Job) -> Job:
        """The job with the priority that counts, and its tenant."""
        priority = self._priorities.priority(job.namespace, job.priority)
        tenant = self.tenants.tenant_of(job.namespace)
        if priority == job.priority and tenant == job.virtual_cluster:
            return job
        return replace(job, priority=priority, virtual_cluster=tenant)

    def _read_ranks(self, job: JobId) -> None:
        """Read again which pods of a job exist and are bound."""
        known = self._jobs.get(job)
        if known is None:
            self._read_job(job)
            return
        pods = self.gang_pods.of((job, known.uid))
        if (after := self.gpus.with_crowded(with_ranks(known, pods), pods)) != known:
            self._set_job(job, after)
        self._left.read(job, None if known.unreadable else known.uid)

    def read_outdated_ranks(self) -> None:
        """Read the ranks of every job whose pods changed. O(pods of these jobs)."""
        while self._outdated:
            self._read_ranks(self._outdated.pop())

    def _set_job(self, job: JobId, after: Job | None) -> None:
        before = self._jobs.get(job)
        self._starting_by_id.pop(job, None)
        self._stopped.note_job(job, after)
        if after is not None and after.phase in FINISHED and not (after.unbound or after.ending):
            after = None
        if after is not None:
            self._jobs.put(job, after)
            if after.phase in _STARTING or wants_other_shares(after):
                self._starting_by_id[job] = after
        else:
            self.local_times.forget(job)
            if before is not None:
                self._jobs.drop(job)
        if before is not None or after is not None:
            self.tenants.count(before, after)
            self.arrays.count(before, after)
            self.changes[Part.JOBS].add(job)
