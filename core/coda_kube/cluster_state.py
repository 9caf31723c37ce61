"""The cluster as the planner keeps it: the caches report changes, and the planner takes frozen `World`s.

Only what changed is read again. The use of a node is a running sum over its pods. A job is read when its object
changes; its ranks are read after a change of its pods, when somebody asks. `snapshot` copies a few tuples and dicts,
O(nodes + blocks of unfinished jobs); two snapshots share the jobs that did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from coda.model import FINISHED, NOTHING, Job, JobId, Node, Phase, Resources, World
from coda.model.live_placement import open_wish
from coda.model.world import Quota
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
"""A pod that should have gone this long ago is not expected to go any more. Our choice: a kubelet takes seconds."""


class ClusterState:
    """Nodes, pods, jobs and quotas of one cluster. Methods named `on_*` are listeners of a `WatchCache`."""

    def __init__(self) -> None:
        self.version = 0  # grows with every change that a decision may depend on
        self.pod_by_id: dict[str, Pod] = {}
        self.job_json_by_id: dict[JobId, Json] = {}
        self._node_by_name: dict[str, Node] = {}
        self._used_by_node: dict[str, Resources] = {}
        self._quota_by_id: dict[str, Quota] = {}
        self._pods_by_owner: dict[Owner, dict[str, Pod]] = {}  # by id of the pod
        self._jobs: VersionedMap[JobId, Job] = VersionedMap()
        self._starting_by_id: dict[JobId, Job] = {}  # of `_jobs`, those that may await a decision
        self._stopped_by_owner: dict[Owner, int] = {}  # the last attempt that was ordered to stop
        self._outdated: set[JobId] = set()  # jobs whose pods changed after their ranks were read

    def on_node(self, old: Json | None, new: Json | None) -> None:
        """A node came, changed or went. A heartbeat changes nothing."""
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
        after = pod_from_json(new) if new is not None else None  # first: if it cannot be read, the old pod stays
        before = self.pod_by_id.pop(key_of(old or new or {}), None)
        if after is not None:
            self.pod_by_id[after.id] = after
        if before == after:
            return
        self._add_use(before, -1)
        self._add_use(after, +1)
        self._set_member(before, None)
        self._set_member(after, after)
        if before is not None and before.member is not None and before.member.owner not in self._pods_by_owner:
            self._stopped_by_owner.pop(before.member.owner, None)  # all its pods are gone
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
        self._read_outdated_ranks()
        return self._starting_by_id.values()

    def node(self, name: str) -> Node | None:
        """The node of that name; None if there is none."""
        return self._node_by_name.get(name)

    def used(self, node: str) -> Resources:
        """The sum of the requests of a node's bound pods that have not ended."""
        return self._used_by_node.get(node, NOTHING)

    def live_pods(self, owner: Owner, attempt: int) -> Iterator[str]:
        """The ids of an attempt's pods that have not ended. O(pods of the job)."""
        for pod in self._pods_by_owner.get(owner, {}).values():
            if pod.member is not None and pod.member.attempt == attempt and not pod.ended:
                yield pod.id

    def is_stopped(self, owner: Owner, attempt: int) -> bool:
        """True for an attempt that was ordered to stop, while pods of it are seen."""
        return attempt <= self._stopped_by_owner.get(owner, 0)

    def snapshot(self, in_flight: Mapping[str, Resources] | None = None, *, now_s: float = 0.0) -> World:
        """The world now. `in_flight`: more capacity that must not be given away. With `now_s` 0 no pod is overdue."""
        self._read_outdated_ranks()
        return World(
            nodes=tuple(self._node_by_name.values()),
            used=dict(self._used_by_node),
            in_flight=dict(in_flight or {}),
            leaving=self._leaving(now_s),
            jobs=self._jobs.roster(),
            quotas=tuple(self._quota_by_id.values()),
        )

    def _leaving(self, now_s: float) -> dict[str, Resources]:
        """Per node, the part of its use that ordered stops will free. O(pods of the stopped jobs).

        Only the pods are asked: the job may end, be deleted or start its next attempt before they are seen to go."""
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

    def _add_use(self, pod: Pod | None, sign: int) -> None:
        if pod is None or pod.node is None or pod.ended:
            return
        used = self._used_by_node.pop(pod.node, NOTHING)
        used = used + pod.request if sign > 0 else used - pod.request
        if used.pods:  # every pod asks for a place
            self._used_by_node[pod.node] = used

    def _set_member(self, pod: Pod | None, entry: Pod | None) -> None:
        """Set a gang's pod among those of its job, or remove it if there is no `entry`."""
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
        """Read a job again. True if the planner's view of it changed."""
        self._outdated.discard(job)
        item, before = self.job_json_by_id.get(job), self._jobs.get(job)
        pods = self._pods_by_owner.get((job, item["metadata"]["uid"]), {}) if item is not None else {}
        self._set_job(job, job_from_json(item, pods) if item is not None else None)
        return self._jobs.get(job) != before

    def _read_ranks(self, job: JobId) -> None:
        """Read again which pods of a job exist and are bound."""
        known = self._jobs.get(job)
        if known is None:
            self._read_job(job)  # a finished job counts while a pod of it waits for a node
            return
        pods = self._pods_by_owner.get((job, known.uid), {})
        bound, unbound = ranks_of(pods, known.attempt)
        pod_cpu_m = pod_cpu_of(pods, known.attempt, known.request) if known.wish is not None else {}
        if (bound, unbound, pod_cpu_m) != (known.bound, known.unbound, known.pod_cpu_m):
            self._set_job(job, replace(known, bound=bound, unbound=unbound, pod_cpu_m=pod_cpu_m))

    def _read_outdated_ranks(self) -> None:
        while self._outdated:
            self._read_ranks(self._outdated.pop())

    def _set_job(self, job: JobId, after: Job | None) -> None:
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
