"""The cluster as last seen, indexed so that a change makes the referee check only few nodes and jobs.

A scope is judged on its own: one node, or one job with its pods. Every change marks the scopes it touches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from typing import Literal, TypeVar

from coda_lab.checker.objects import JobSeen, NodeSeen, PodSeen

K = TypeVar("K")
V = TypeVar("V")

Scope = tuple[Literal["node", "job"], str]
"""("node", name) or ("job", uid)."""


class View:
    """Pods, nodes and jobs by identity. Not thread-safe; one loop writes and reads it."""

    def __init__(self, *, unsteady: frozenset[str] = frozenset()) -> None:
        self.pods: dict[str, PodSeen] = {}
        self.nodes: dict[str, NodeSeen] = {}
        self.jobs: dict[str, JobSeen] = {}
        self.unsteady = unsteady  # uids of jobs that changed while the snapshot was read: not judged
        self.changed: set[Scope] = set()
        self._pods_on: defaultdict[str, dict[str, PodSeen]] = defaultdict(dict)
        self._pods_of: defaultdict[str, dict[str, PodSeen]] = defaultdict(dict)
        self._pods_as: defaultdict[tuple[str, int | None, int | None], dict[str, PodSeen]] = defaultdict(dict)
        self._ranks_on: defaultdict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)  # node -> job uid -> ranks

    def put_pod(self, pod: PodSeen) -> None:
        """Take in a new or changed pod."""
        self.drop_pod(pod.uid)
        self.pods[pod.uid] = pod
        if pod.node is not None:
            self._pods_on[pod.node][pod.uid] = pod
        if pod.member is not None:
            self._pods_of[pod.member.job_uid][pod.uid] = pod
            self._pods_as[pod.member.job_uid, pod.member.attempt, pod.member.rank][pod.uid] = pod
        self._mark(pod)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        self._mark(pod)
        if pod.node is not None:
            _discard(self._pods_on, pod.node, uid)
        if pod.member is not None:
            _discard(self._pods_of, pod.member.job_uid, uid)
            _discard(self._pods_as, (pod.member.job_uid, pod.member.attempt, pod.member.rank), uid)

    def put_node(self, node: NodeSeen) -> None:
        """Take in a new or changed node."""
        self.nodes[node.name] = node
        self.changed.add(("node", node.name))

    def drop_node(self, name: str) -> None:
        """Forget a node that is gone."""
        self.nodes.pop(name, None)
        self.changed.add(("node", name))

    def put_job(self, job: JobSeen) -> None:
        """Take in a new or changed job."""
        self.drop_job(job.uid)
        self.jobs[job.uid] = job
        plan = job.current_plan
        if plan is None or not job.withholding:
            return
        ranks_by_node: defaultdict[str, list[int]] = defaultdict(list)
        for rank, node in enumerate(plan.nodes):
            ranks_by_node[node].append(rank)
        for node, ranks in ranks_by_node.items():
            self._ranks_on[node][job.uid] = tuple(ranks)
            self.changed.add(("node", node))

    def drop_job(self, uid: str) -> None:
        """Forget a job that is gone; its pods stay until they are gone too."""
        job = self.jobs.pop(uid, None)
        self.changed.add(("job", uid))
        if job is None or job.plan is None:
            return
        for node in set(job.plan.nodes):
            if uid in self._ranks_on.get(node, {}):
                _discard(self._ranks_on, node, uid)
                self.changed.add(("node", node))

    def pods_on(self, node: str) -> Iterable[PodSeen]:
        """The pods bound to `node`."""
        return self._pods_on.get(node, {}).values()

    def pods_of(self, job_uid: str) -> Iterable[PodSeen]:
        """All pods that claim to belong to the job."""
        return self._pods_of.get(job_uid, {}).values()

    def pods_as(self, job_uid: str, attempt: int, rank: int) -> Iterable[PodSeen]:
        """The pods that claim to be this rank of this attempt."""
        return self._pods_as.get((job_uid, attempt, rank), {}).values()

    def ranks_on(self, node: str) -> Iterable[tuple[JobSeen, tuple[int, ...]]]:
        """The jobs whose released placement withholds capacity on `node`, each with its ranks there."""
        return [(self.jobs[uid], ranks) for uid, ranks in self._ranks_on.get(node, {}).items()]

    def scopes(self) -> set[Scope]:
        """All scopes."""
        nodes: set[Scope] = {("node", name) for name in self.nodes}
        jobs: set[Scope] = {("job", uid) for uid in (*self.jobs, *self._pods_of)}
        return nodes | jobs

    def _mark(self, pod: PodSeen) -> None:
        if pod.node is not None:
            self.changed.add(("node", pod.node))
        if pod.member is None:
            return
        self.changed.add(("job", pod.member.job_uid))
        job, rank = self.jobs.get(pod.member.job_uid), pod.member.rank
        if job is not None and job.plan is not None and rank is not None and rank < len(job.plan.nodes):
            self.changed.add(("node", job.plan.nodes[rank]))


def _discard(index: MutableMapping[K, dict[str, V]], key: K, uid: str) -> None:
    entries = index[key]
    del entries[uid]
    if not entries:
        del index[key]
