"""The cluster as the planner keeps it: the caches report changes, and the planner takes frozen `World`s.

Only what changed is read again. The use of a node is a running sum over its pods. A job is read when its object
changes; its ranks are read after a change of its pods, when somebody asks. `changes` says which values changed, for a
reader that keeps a copy: it reads them by `value`, or all of them by `items`. `snapshot` copies everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from coda.change_log import ChangeLog
from coda.cycle import Part
from coda.model import FINISHED, NOTHING, Job, JobId, Node, Phase, Placement, Resources, World
from coda.model.job import WriteTrouble
from coda.model.live_placement import open_wish
from coda.model.world import Quota
from coda.placements.wait_limits import is_leaving
from coda.policy.priorities import PriorityRule
from coda.snapshots import VersionedMap
from coda_kube.api.watch_cache import key_of, version_of
from coda_kube.job_assumptions import JobAssumptions
from coda_kube.local_times import LocalTimes
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import (
    Owner,
    Pod,
    id_of,
    is_rank_of,
    job_from_json,
    node_from_json,
    pod_from_json,
    quota_from_json,
    unreadable_job,
    with_ranks,
)

log = logging.getLogger(__name__)

_KEPT: Final = (Part.NODES, Part.USED, Part.JOBS, Part.QUOTAS)
"""The parts of a planner's snapshot that are kept here and not found when asked for."""

_FINISHED: Final = frozenset(phase.value for phase in FINISHED)
_STARTING: Final = frozenset({Phase.QUEUED, Phase.LAUNCHED})

_LOGGED: Final = 10_000  # changes of a part; a reader that missed more reads all of it


def is_settled(job: Json) -> bool:
    """True for a finished TrainingJob of which nothing is to be written any more: jobs stay for weeks."""
    status = job.get("status") or {}
    return status.get("phase") in _FINISHED and not status.get("pending")


class _StoppedAttempt(NamedTuple):
    placement: Placement
    ordered_s: float  # when the order was seen


class ClusterState:
    """Nodes, pods, jobs and quotas of one cluster. Methods named `on_*` are listeners of a `WatchCache`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        priorities: PriorityRule | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s`: the API server's time, with which the deadlines that jobs show are compared."""
        self._local_times = LocalTimes(now_s)
        self._priorities = priorities or PriorityRule()
        self._clock = clock
        self.version = 0  # grows with every change that a decision may depend on
        self.pod_by_id: dict[str, Pod] = {}
        self.pod_by_uid: dict[str, Pod] = {}
        self.job_json_by_id: dict[JobId, Json] = {}
        self.changes: Mapping[Part, ChangeLog[str]] = {part: ChangeLog(_LOGGED) for part in _KEPT}
        self._node_by_name: dict[str, Node] = {}
        self._used_by_node: dict[str, Resources] = {}
        self._quota_by_id: dict[str, Quota] = {}
        self._pods_by_owner: dict[Owner, dict[str, Pod]] = {}  # by id of the pod
        self._jobs: VersionedMap[JobId, Job] = VersionedMap()
        self._starting_by_id: dict[JobId, Job] = {}  # of `_jobs`, those that may await a decision
        self._stopped_by_owner: dict[Owner, _StoppedAttempt] = {}  # the last one that was ordered to stop
        self._deleted_s: dict[str, float] = {}  # since when pods are seen being deleted, by uid
        self._outdated: set[JobId] = set()  # jobs whose pods changed after their ranks were read
        self._assumptions = JobAssumptions()

    def on_node(self, old: Json | None, new: Json | None) -> None:
        """A node came, changed or went. A heartbeat changes nothing."""
        if new is None:
            name = key_of(old or {})
            self._node_by_name.pop(name, None)
            self._note(Part.NODES, name)
            return
        node = node_from_json(new)
        if self._node_by_name.get(node.name) != node:
            self._node_by_name[node.name] = node
            self._note(Part.NODES, node.name)

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went."""
        after = pod_from_json(new) if new is not None else None  # first: if it cannot be read, the old pod stays
        before = self.pod_by_id.pop(key_of(old or new or {}), None)
        if before is not None:
            self.pod_by_uid.pop(before.uid, None)
        if after is not None:
            self.pod_by_id[after.id] = self.pod_by_uid[after.uid] = after
        if before == after:
            return
        self._note_deletion(before, after)
        self._add_use(before, -1)
        self._add_use(after, +1)
        self._set_member(before, None)
        self._set_member(after, after)
        if before is not None and before.member is not None and before.member.owner not in self._pods_by_owner:
            self._stopped_by_owner.pop(before.member.owner, None)  # all its pods are gone
        self._outdated.update([pod.member.job for pod in (before, after) if pod is not None and pod.member is not None])
        self.version += 1

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """A TrainingJob came, changed or went. A settled one is not kept, and nobody need tell of its end."""
        job = id_of(new or old or {})
        if new is None:
            self._assumptions.forget(job)
            gone = self.job_json_by_id.pop(job, None)
            if gone is not None and (owner := (job, gone["metadata"]["uid"])) not in self._pods_by_owner:
                self._stopped_by_owner.pop(owner, None)
        else:
            self.job_json_by_id[job] = new
        if self._read_job(job):
            self.version += 1
        if new is not None and is_settled(new) and ((read := self._jobs.get(job)) is None or read.phase in FINISHED):
            del self.job_json_by_id[job]
            self._assumptions.forget(job)

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
        self._note(Part.QUOTAS, key)

    def begin_write(self, job: JobId, placement: Placement | None) -> int:
        """Count the placement as written; None: only leave the job out of decisions meanwhile. Returns the version of
        the object that the write changes. It ends with a newer version, or by `end_write`."""
        version = version_of(self.job_json_by_id[job])
        self._assumptions.begin_write(job, version, placement)
        self._read_job(job)
        return version

    def end_write(self, job: JobId, version: int) -> None:
        """The write to that version changed nothing."""
        ordered_stop = self._jobs.get(job)
        if not self._assumptions.end_write(job, version) or job not in self.job_json_by_id:
            return
        if ordered_stop is not None and ordered_stop.placement is not None and ordered_stop.placement.stop is not None:
            self._stopped_by_owner.pop((job, ordered_stop.uid), None)  # it is set again if the object says so
        self._read_job(job)
        self.version += 1

    def is_writing(self, job: JobId) -> bool:
        """True while a write that began may still be stored."""
        return self._assumptions.is_writing(job)

    def set_unwritable(self, job: JobId, trouble: WriteTrouble | None) -> None:
        """Leave the job out of decisions from now on, or no longer."""
        item = self.job_json_by_id.get(job)
        uid = item["metadata"]["uid"] if item is not None else ""
        self._assumptions.set_unwritable(job, uid, trouble if item is not None else None)
        if self._read_job(job):
            self.version += 1

    def void_placement(self, job: JobId, plan_id: str) -> None:
        """Count the placement no more, though the object shows it."""
        self._assumptions.set_void(job, plan_id)
        if self._read_job(job):
            self.version += 1

    def known_epoch(self) -> int:
        """The highest epoch of any placement; 1 if there is none, but jobs that somebody may lead; 0 without jobs."""
        epochs = [job.placement.epoch for job in self._jobs.roster() if job.placement is not None]
        return max(epochs, default=min(1, len(self.job_json_by_id)))

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

    def used(self, node: str) -> Resources:
        """The sum of the requests of a node's bound pods that have not ended."""
        return self._used_by_node.get(node, NOTHING)

    def value(self, part: Part, key: str) -> Any:
        """The value of a part now; None without one. Jobs are as of the last `read_outdated_ranks`."""
        if part is Part.JOBS:
            return self._jobs.get(JobId(key))
        return self._dict_of(part).get(key)

    def items(self, part: Part) -> list[tuple[str, Any]]:
        """All keys and values of a part now. O(values)."""
        return [*(self._jobs if part is Part.JOBS else self._dict_of(part)).items()]

    def forget_pod(self, key: str) -> None:
        """Keep an ended pod no more: nothing is left to decide about it. Unknown pods are ignored."""
        pod = self.pod_by_id.pop(key, None)
        if pod is not None:
            self.pod_by_uid.pop(pod.uid, None)
        self._set_member(pod, None)

    def ended_pods(self, owner: Owner) -> list[str]:
        """The ids of a job's pods that have ended. O(pods of the job)."""
        return [pod.id for pod in self._pods_by_owner.get(owner, {}).values() if pod.ended]

    def live_pods(self, owner: Owner, attempt: int) -> Iterator[str]:
        """The ids of an attempt's pods that have not ended. O(pods of the job)."""
        for pod in self._pods_by_owner.get(owner, {}).values():
            if pod.member is not None and pod.member.attempt == attempt and not pod.ended:
                yield pod.id

    def is_stopped(self, owner: Owner, attempt: int) -> bool:
        """True for an attempt that was ordered to stop, while pods of it are seen."""
        stopped = self._stopped_by_owner.get(owner)
        return stopped is not None and attempt <= stopped.placement.attempt

    def snapshot(self, in_flight: Mapping[str, Resources] | None = None) -> World:
        """The world now. `in_flight`: more capacity that must not be given away."""
        self.read_outdated_ranks()
        return World(
            nodes=tuple(self._node_by_name.values()),
            used=dict(self._used_by_node),
            in_flight=dict(in_flight or {}),
            leaving=self.leaving(),
            jobs=self._jobs.roster(),
            quotas=tuple(self._quota_by_id.values()),
        )

    def leaving(self) -> dict[str, Resources]:
        """Per node, the part of its use that ordered stops will free. O(pods of the stopped jobs).

        Only the pods are asked: the job may end, be deleted or start its next attempt before they are seen to go. And
        only ranks of the placement that was stopped: whoever forges labels frees nothing."""
        leaving: dict[str, Resources] = {}
        now_s = self._clock()
        for owner, (placement, ordered_s) in [*self._stopped_by_owner.items()]:
            pods = self._pods_by_owner.get(owner, {}).values()
            left = [pod for pod in pods if not pod.ended and is_rank_of(pod, placement)]
            for pod in left:
                deleted_s = self._deleted_s.get(pod.uid)
                if pod.node and is_leaving(now_s, ordered_s=ordered_s, deleted_s=deleted_s, grace_s=pod.grace_s):
                    leaving[pod.node] = leaving.get(pod.node, NOTHING) + pod.request
            if not left:
                del self._stopped_by_owner[owner]
        return leaving

    def _note_deletion(self, before: Pod | None, after: Pod | None) -> None:
        if after is not None and after.terminating:
            self._deleted_s.setdefault(after.uid, self._clock())
        elif after is not None:
            self._deleted_s.pop(after.uid, None)  # a restored backup took the deletion back
        if before is not None and (after is None or after.uid != before.uid):
            self._deleted_s.pop(before.uid, None)

    def _dict_of(self, part: Part) -> Mapping[str, Any]:
        if part is Part.NODES:
            return self._node_by_name
        return self._used_by_node if part is Part.USED else self._quota_by_id

    def _note(self, part: Part, key: str) -> None:
        self.version += 1
        self.changes[part].add(key)

    def _add_use(self, pod: Pod | None, sign: int) -> None:
        if pod is None or pod.node is None or pod.ended:
            return
        used = self._used_by_node.pop(pod.node, NOTHING)
        used = used + pod.request if sign > 0 else used - pod.request
        if used.pods:  # every pod asks for a place
            self._used_by_node[pod.node] = used
        self.changes[Part.USED].add(pod.node)

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
        try:
            after = job_from_json(item, pods) if item is not None else None
        except Exception as error:  # whatever is wrong with one job, the others are planned
            log.warning("job %s cannot be read: %s: %s", job, type(error).__name__, error)
            after = before if before is not None and _holds_something(before) else unreadable_job(item or {}, error)
        if item is not None and after is not None:
            after = self._with_priority(after)
            seen, after = after, self._local_times.applied(self._assumptions.with_job(after, version_of(item)))
            if after.placement is not seen.placement:
                after = with_ranks(after, pods)
        if after is None:
            self._local_times.forget(job)
        elif after == before:
            return False
        self._set_job(job, after)
        return self._jobs.get(job) != before

    def _with_priority(self, job: Job) -> Job:
        counts = self._priorities.priority(job.namespace, job.priority)
        return job if counts == job.priority else replace(job, priority=counts)

    def _read_ranks(self, job: JobId) -> None:
        """Read again which pods of a job exist and are bound."""
        known = self._jobs.get(job)
        if known is None:
            self._read_job(job)
            return
        pods = self._pods_by_owner.get((job, known.uid), {})
        after = with_ranks(known, pods)
        if after != known:
            self._set_job(job, after)

    def read_outdated_ranks(self) -> None:
        """Read the ranks of every job whose pods changed. O(pods of these jobs)."""
        while self._outdated:
            self._read_ranks(self._outdated.pop())

    def _set_job(self, job: JobId, after: Job | None) -> None:
        self._starting_by_id.pop(job, None)
        if after is not None and after.placement is not None:
            self._note_stop((job, after.uid), after.placement)
        if after is None or (after.phase in FINISHED and not after.unbound):
            if job in self._jobs:
                self._jobs.drop(job)
                self.changes[Part.JOBS].add(job)
        else:
            self._jobs.put(job, after)
            self.changes[Part.JOBS].add(job)
            if after.phase in _STARTING or open_wish(after) is not None:
                self._starting_by_id[job] = after

    def _note_stop(self, owner: Owner, placement: Placement) -> None:
        """Note an order to stop, or that there is none any more: its write was overtaken, or a backup was restored."""
        known = self._stopped_by_owner.get(owner)
        is_known = known is not None and known.placement.plan_id == placement.plan_id
        if placement.stop is not None:
            ordered_s = known.ordered_s if known is not None and is_known else self._clock()
            self._stopped_by_owner[owner] = _StoppedAttempt(placement, ordered_s)
        elif is_known:
            del self._stopped_by_owner[owner]


def _holds_something(job: Job) -> bool:
    """True if forgetting the job would free what it holds or withholds."""
    return job.placement is not None or bool(job.bound or job.unbound)
