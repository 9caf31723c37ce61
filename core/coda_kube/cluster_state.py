"""The cluster as the planner keeps it: fed with changes by the caches, read as a frozen `World`.

Only what changed is read again: a node's use is a running sum over its pods; a job is read when its object changed, and
its ranks, after changes of its pods, once somebody asks. `snapshot` costs a few tuple and dict copies, O(nodes +
blocks of unfinished jobs), and two of them share the jobs that did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from coda.model.job import FINISHED, Job, JobId, Phase
from coda.model.live_placement import open_wish
from coda.model.resources import NOTHING, Resources
from coda.model.world import Node, Quota, World
from coda.snapshots import VersionedMap
from coda_kube.api.watch_cache import key_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import (
    Owner,
    Pod,
    id_of,
    job_from_json,
    node_from_json,
    pod_cpu_of,
    pod_from_json,
    quota_from_json,
    ranks_of,
)

_STARTING: Final = frozenset({Phase.QUEUED, Phase.LAUNCHED})

_OVERDUE_S: Final = 60.0
"""A pod that should have been gone for so long is not counted on to go. Our choice: a kubelet takes seconds."""


class ClusterState:
    """Nodes, pods, jobs and quotas of one cluster. Methods named `on_*` are listeners for `watching.Cache`."""

    def __init__(self) -> None:
        self.version = 0  # grows with every change that a decision may depend on
        self.pod_by_id: dict[str, Pod] = {}
        self.job_json_by_id: dict[JobId, Json] = {}
        self._node_by_name: dict[str, Node] = {}
        self._used_by_node: dict[str, Resources] = {}
        self._quota_by_id: dict[str, Quota] = {}
        self._pods_by_owner: dict[Owner, dict[str, Pod]] = {}  # by id of the pod
        self._jobs: VersionedMap[JobId, Job] = VersionedMap()
        self._starting_by_id: dict[JobId, Job] = {}  # those of the above that may await a decision
        self._stopped_by_owner: dict[Owner, int] = {}  # the last attempt of a job that was ordered to stop
        self._outdated: set[JobId] = set()  # jobs whose pods changed after their ranks were read

    def on_node(self, old: Json | None, new: Json | None) -> None:
        """A node came, changed or went. Heartbeats alone change nothing."""
        if new is None:
            self._node_by_name.pop(key_of(old or {}), None)
            self.version += 1
            return
        node = node_from_json(new)
        if self._node_by_name.get(node.name) != node:
            self._node_by_name[node.name] = node
            self.version += 1

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went."""
        after = pod_from_json(new) if new is not None else None  # first: if it cannot be read, what was known stays
        before = self.pod_by_id.pop(key_of(old or new or {}), None)
        if after is not None:
            self.pod_by_id[after.id] = after
        if before == after:
            return
        self._count(before, -1)
        self._count(after, +1)
        self._file(before, None)
        self._file(after, after)
        if before is not None and before.member is not None and before.member.owner not in self._pods_by_owner:
            self._stopped_by_owner.pop(before.member.owner, None)  # nothing of it is left to go
        self._outdated.update([pod.member.job for pod in (before, after) if pod is not None and pod.member is not None])
        self.version += 1

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """A TrainingJob came, changed or went."""
        job = id_of(new or old or {})
        if new is None:
            gone = self.job_json_by_id.pop(job, None)
            if gone is not None and (owner := (job, gone["metadata"]["uid"])) not in self._pods_by_owner:
                self._stopped_by_owner.pop(owner, None)
        else:
            self.job_json_by_id[job] = new
        if self._read_job(job):
            self.version += 1

    def on_quota(self, old: Json | None, new: Json | None) -> None:
        """A ResourceQuota came, changed or went."""
        key = key_of(new or old or {})
        quota = quota_from_json(new) if new is not None else None
        if quota == self._quota_by_id.get(key):
            return
        if quota is None:
            self._quota_by_id.pop(key, None)
        else:
            self._quota_by_id[key] = quota
        self.version += 1

    def job(self, job: JobId) -> Job | None:
        """The job as it is; None when unknown, finished or not accepted yet."""
        if job in self._outdated:
            self._outdated.remove(job)
            self._read_ranks(job)
        return self._jobs.get(job)

    def job_but_for_ranks(self, job: JobId) -> Job | None:
        """The job as its object says; which of its pods are there and bound may be out of date."""
        return self._jobs.get(job)

    def starting(self) -> Iterable[Job]:
        """The jobs that are queued, launched, or want other cores: no other awaits a decision."""
        self._catch_up()
        return self._starting_by_id.values()

    def node(self, name: str) -> Node | None:
        """The node of that name, if there is one."""
        return self._node_by_name.get(name)

    def used(self, node: str) -> Resources:
        """What the bound pods of a node that have not ended ask for."""
        return self._used_by_node.get(node, NOTHING)

    def live_pods(self, owner: Owner, attempt: int) -> Iterator[str]:
        """The ids of an attempt's pods that have not ended. O(pods of the job)."""
        for pod in self._pods_by_owner.get(owner, {}).values():
            if pod.member is not None and pod.member.attempt == attempt and not pod.ended:
                yield pod.id

    def is_stopped(self, owner: Owner, attempt: int) -> bool:
        """True for an attempt that was ordered to stop, as long as pods of it are seen."""
        return attempt <= self._stopped_by_owner.get(owner, 0)

    def snapshot(self, in_flight: Mapping[str, Resources] | None = None, *, now_s: float = 0.0) -> World:
        """The world now; `in_flight` is what else must not be given away. Without a time no pod is overdue."""
        self._catch_up()
        return World(
            nodes=tuple(self._node_by_name.values()),
            used=dict(self._used_by_node),
            in_flight=dict(in_flight or {}),
            leaving=self._leaving(now_s),
            jobs=self._jobs.roster(),
            quotas=tuple(self._quota_by_id.values()),
        )

    def _leaving(self, now_s: float) -> dict[str, Resources]:
        """Per node, the part of what is used that ordered stops will free. O(pods of the jobs that were stopped).

        Told by the pods alone: the job may have ended, gone or taken its next turn before they are seen to go."""
        leaving: dict[str, Resources] = {}
        for owner, attempt in [*self._stopped_by_owner.items()]:
            pods = self._pods_by_owner.get(owner, {}).values()
            left = [pod for pod in pods if pod.member and pod.member.attempt <= attempt and not pod.ended]
            for pod in left:
                if pod.node is not None and (pod.gone_by_s is None or now_s < pod.gone_by_s + _OVERDUE_S):
                    leaving[pod.node] = leaving.get(pod.node, NOTHING) + pod.request
            if not left:
                del self._stopped_by_owner[owner]
        return leaving

    def _count(self, pod: Pod | None, sign: int) -> None:
        if pod is None or pod.node is None or pod.ended:
            return
        used = self._used_by_node.pop(pod.node, NOTHING)
        used = used + pod.request if sign > 0 else used - pod.request
        if used.pods:  # every pod asks for a place
            self._used_by_node[pod.node] = used

    def _file(self, pod: Pod | None, entry: Pod | None) -> None:
        """Set or, with no `entry`, remove a gang's pod among those of its job."""
        if pod is None or pod.member is None:
            return
        pods = self._pods_by_owner.setdefault(pod.member.owner, {})
        if entry is not None:
            pods[pod.id] = entry
        else:
            pods.pop(pod.id, None)
        if not pods:
            del self._pods_by_owner[pod.member.owner]

    def _read_job(self, job: JobId) -> bool:
        """Read a job again; True when the planner's view of it changed."""
        self._outdated.discard(job)
        item, before = self.job_json_by_id.get(job), self._jobs.get(job)
        pods = self._pods_by_owner.get((job, item["metadata"]["uid"]), {}) if item is not None else {}
        self._keep(job, job_from_json(item, pods) if item is not None else None)
        return self._jobs.get(job) != before

    def _read_ranks(self, job: JobId) -> None:
        """Take over which pods of a job are there and bound."""
        known = self._jobs.get(job)
        if known is None:
            self._read_job(job)  # a finished one counts again while a pod of it waits for a node
            return
        pods = self._pods_by_owner.get((job, known.uid), {})
        bound, unbound = ranks_of(pods, known.attempt)
        pod_cpu_m = pod_cpu_of(pods, known.attempt, known.request) if known.wish is not None else {}
        if (bound, unbound, pod_cpu_m) != (known.bound, known.unbound, known.pod_cpu_m):
            self._keep(job, replace(known, bound=bound, unbound=unbound, pod_cpu_m=pod_cpu_m))

    def _catch_up(self) -> None:
        while self._outdated:
            self._read_ranks(self._outdated.pop())

    def _keep(self, job: JobId, after: Job | None) -> None:
        self._starting_by_id.pop(job, None)
        if after is not None and after.placement is not None and after.placement.stop is not None:
            self._stopped_by_owner[job, after.uid] = after.placement.attempt
        if after is None or (after.phase in FINISHED and not after.unbound):
            if job in self._jobs:
                self._jobs.drop(job)
        else:
            self._jobs.put(job, after)
            if after.phase in _STARTING or open_wish(after) is not None:
                self._starting_by_id[job] = after
