"""A guard on three nodes, told of objects one by one."""

from __future__ import annotations

from typing import Any

from coda_extender.guard.guard import Guard
from coda_extender.protocol import Answer, Preemption, Question
from coda_kube.api.watch_cache import version_of
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.read import id_of, pod_from_json
from tests.extender.objects import job_json, node_json


class Known:
    """A guard and what it knows, without caches: objects are told as they come."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.settled = 0
        self.in_touch = True
        self.state = ClusterState()
        self.guard = Guard(
            self.state,
            in_flight_limit_s=30.0,
            clock=lambda: self.now_s,
            in_touch=lambda: self.in_touch,
            on_settled=self._count,
        )
        self.version = 0

    def _count(self) -> None:
        self.settled += 1

    def node(self, name: str, **how: Any) -> None:
        self.state.on_node(None, node_json(name, **how))
        self.guard.node_changed(name)

    def job(self, *args: Any, **how: Any) -> None:
        item = job_json(*args, **how)
        item["metadata"]["namespace"] = "default"
        self.state.on_job(None, item)
        self.guard.job_changed(id_of(item))

    def pod(self, old: Any, new: Any) -> None:
        self.version += 1
        if new is not None:
            new["metadata"]["resourceVersion"] = str(self.version)
        key = f"default/{(new or old)['metadata']['name']}"
        before = self.state.pod_by_id.get(key)
        self.state.on_pod(old, new)
        self.guard.pod_changed(before, self.state.pod_by_id.get(key), old, new)

    def ask(self, pod: Any, *names: str) -> Answer:
        return self.guard.filter(Question(pod=pod_from_json(pod), pod_version=version_of(pod), names=list(names)))

    def scores(self, pod: Any, *names: str) -> dict[str, int]:
        return self.guard.scores(Question(pod=pod_from_json(pod), pod_version=0, names=list(names)))

    def evictable_nodes(self, pod: Any, **uids_by_node: tuple[str, ...]) -> list[str]:
        violations = dict.fromkeys(uids_by_node, 0)
        asked = Preemption(pod=pod_from_json(pod), uids_by_node=uids_by_node, budget_violations_by_node=violations)
        return self.guard.evictable_nodes(asked)
