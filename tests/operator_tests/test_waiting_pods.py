"""An uninstallation lets waiting pods go until none comes any more, and nobody holds it up."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

from coda.errors import Conflict
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_operator.uninstall.waiting_pods import QUIET_S, free_waiting_pods
from tests.operator_tests.test_uninstall import IGNORING, pod
from tests.virtual_time import VirtualLoop


class Cluster(Client):
    """Pods that wait. What is evicted is gone; `again` comes back after each look."""

    def __init__(self, *pods: Json, again: Json | None = None, job: Json | None = None) -> None:
        self.pods = {item["metadata"]["name"]: copy.deepcopy(item) for item in pods}
        self.again = again
        self.job = job
        self.done: list[str] = []
        self.refused: dict[str, Exception] = {}
        for item in self.pods.values():
            item["metadata"] |= {"uid": "u", "resourceVersion": "1"}

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 0) -> AsyncIterator[Json]:
        assert query == {"fieldSelector": "spec.schedulerName=coda,status.phase=Pending"}
        if self.again is not None:
            self.pods[self.again["metadata"]["name"]] = self.again
        yield {"items": copy.deepcopy(list(self.pods.values()))}

    async def get(self, path: str, query: Any = None) -> Json:
        assert self.job is not None
        return self.job

    async def create(self, path: str, body: Json, query: Any = None) -> Json:
        name = body["metadata"]["name"]
        if query is not None:
            self.done.append(f"try {name}")
            if name in self.refused:
                raise self.refused[name]
        elif path.endswith("/eviction"):
            if (error := self.refused.pop(name, None)) is not None:
                raise error
            assert body["deleteOptions"]["preconditions"] == {"uid": "u", "resourceVersion": "1"}
            self.done.append(f"evict {name}")
            del self.pods[name]
        else:
            self.done.append(f"make {name} for {body['spec']['schedulerName']}")
        return body

    async def patch(self, path: str, body: Any, content_type: str = "") -> Json:
        name = path.rpartition("/")[2]
        if "/jobs/" in path:
            self.done.append(f"limit {body['spec']['backoffLimit']}")
        else:
            self.done.append(f"let {name} go")
            self.pods[name]["spec"]["schedulingGates"] = body["spec"]["schedulingGates"]
        return {}


def named(name: str, owner: str = "", **spec: Any) -> Json:
    item = pod(owner, **spec)
    item["metadata"] |= {"name": name, "uid": "u", "resourceVersion": "1"}
    for each in item["metadata"]["ownerReferences"]:
        each["name"] = "owner"
    return item


def freed(cluster: Cluster, *, within_s: float = 60.0) -> tuple[list[str], float]:
    """What was done, and how long it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(free_waiting_pods(cluster, within_s=within_s))
        return cluster.done, runner.get_loop().time()


def test_a_bare_pod_is_made_anew_only_if_the_new_one_would_be_taken() -> None:
    done, took_s = freed(Cluster(named("a")))
    assert done == ["try a-again", "evict a", "make a for default-scheduler"]
    assert QUIET_S <= took_s < QUIET_S + 2
    cluster = Cluster(named("a"))
    cluster.refused["a-again"] = Rejected(403, "Forbidden", "a webhook says no")
    assert freed(cluster)[0] == ["try a-again", "let a go"]


def test_a_job_that_counts_may_fail_as_often_more_as_it_loses_pods() -> None:
    job = {"metadata": {"namespace": "n", "name": "owner", "uid": "u1"}, "spec": {"backoffLimit": 2}}
    done, _ = freed(Cluster(named("a", "batch/v1/Job"), named("b", "batch/v1/Job"), job=job))
    assert done == ["limit 4", "evict a", "evict b"]
    ignoring = {**job, "spec": IGNORING}
    assert freed(Cluster(named("a", "batch/v1/Job"), job=ignoring))[0] == ["evict a"]


def test_a_pod_that_changed_is_looked_at_again() -> None:
    cluster = Cluster(named("a", "apps/v1/ReplicaSet"))
    cluster.refused["a"] = Conflict("bound meanwhile")
    assert freed(cluster)[0] == ["evict a"]


def test_whoever_makes_pods_again_and_again_holds_it_up_for_a_while_only() -> None:
    done, took_s = freed(Cluster(again=named("a", "apps/v1/ReplicaSet")), within_s=20)
    assert 20 <= took_s < 21
    assert len(done) > 10
