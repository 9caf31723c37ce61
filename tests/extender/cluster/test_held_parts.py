"""What a replica holds of pods and nodes is enough for whoever reads it later, and small."""

from __future__ import annotations

import asyncio
import copy
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coda_extender.cluster import cluster as module
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.protocol import Question
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_PLAN, ANNOTATION_PLANNED, GATE
from coda_kube.objects.pods.cpu_job import cpu_job_id
from coda_kube.objects.pods.scheduler_refusals import refusal_from_json
from coda_kube.objects.read import pod_from_json
from tests.extender.cpu_pods import OWNER
from tests.extender.fake_api import FakeApi
from tests.extender.objects import given_up, job_json, node_json, placement, pod_json, rank_json

NAMES = ("n1", "n2")
CPU_JOB = cpu_job_id("default", "web")
FOREIGN = pod_json("foreign")
SETTLED = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
SAID: tuple[Json, ...] = (
    {},
    SETTLED,
    given_up(),
    given_up(message="0/2 nodes are available: 2 node(s) had disk pressure."),
    given_up("SchedulerError"),
)


def daemon(node: str | None, *, needs_disk: bool = False, **more: Any) -> Json:
    term: Json = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    if needs_disk:
        term["matchExpressions"] = [{"key": "disk", "operator": "Exists"}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "uid-log", "controller": True}
    tolerations = [{"key": "coda.scheduler/pool", "operator": "Exists"}]
    spec = {"affinity": {"nodeAffinity": required}, "tolerations": tolerations} | more
    return pod_json("log", node=node, metadata={"ownerReferences": [owner]}, spec=spec)


def cpu_job(node: str | None, *, gated: bool) -> Json:
    notes = {} if gated else {ANNOTATION_PLAN: "p", ANNOTATION_PLANNED: "2026-01-01T00:00:00Z"}
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": notes, "ownerReferences": [OWNER]}
    spec: Json = {"affinity": affinity} | ({"schedulingGates": [{"name": GATE}]} if gated else {})
    return pod_json("web", node=node, metadata=metadata, spec=spec)


MAKERS: tuple[Callable[[str | None], Json], ...] = (
    lambda node: pod_json("foreign", cpu="4", node=node, metadata={"ownerReferences": [OWNER]}),
    daemon,
    lambda node: daemon(node, nodeSelector={"disk": "fast"}),
    lambda node: daemon(node, needs_disk=True),
    lambda node: rank_json("gang", 0, "n1", node=node, gpus=1),
    lambda node: cpu_job(node, gated=node is None),
    lambda node: cpu_job(node, gated=False),
)


def node_of(name: str, gpus: int) -> Json:
    node = node_json(name, gpus=gpus, cpu=8)
    node["spec"]["taints"] = [{"key": "coda.scheduler/pool", "value": "true", "effect": "NoSchedule"}]
    return node


def job_of(phase: str) -> Json:
    return job_json("gang", gpus=1, phase=phase, placement=placement("n1"))


def pod_of(item: Json, uid: str, said: Json, *, ended: bool = False, deleted: bool = False) -> Json:
    item = copy.deepcopy(item)
    item["metadata"]["uid"] += uid
    item["status"] |= copy.deepcopy(said) | ({"phase": "Succeeded"} if ended else {})
    if deleted:
        item["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    return item


rarely = st.sampled_from([False, False, False, True])
pods = st.builds(
    lambda make, node, uid, said, ended, deleted: pod_of(make(node), uid, said, ended=ended, deleted=deleted),
    st.sampled_from(MAKERS),
    st.sampled_from([None, "n1"]),
    st.sampled_from(["a", "a", "a", "b"]),
    st.sampled_from(SAID),
    rarely,
    rarely,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), pods),
        st.tuples(st.just("drop"), st.sampled_from(["foreign", "log", "gang-1-0", "web"])),
        st.tuples(st.just("ask"), pods),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 3.0, 31.0])),
        st.tuples(st.just("nodes"), st.builds(node_of, st.sampled_from(NAMES), st.integers(0, 2))),
        st.tuples(st.just("trainingjobs"), st.sampled_from(["Queued", "Launched", "Succeeded"]).map(job_of)),
    ),
    max_size=14,
)


class Seen:
    """A replica that is told of one change after the other, and what everybody reads of it then."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.version = 0
        self.cluster = ExtenderCluster(FakeApi(), in_flight_limit_s=30.0, clock=lambda: self.now_s)
        self.caches = {cache.plural: cache for cache in self.cluster.caches()}
        for name in NAMES:
            self.take("nodes", node_of(name, 2))

    def take(self, kind: str, what: Any) -> None:
        self.version += 1
        if kind == "wait":
            self.now_s += what
        elif kind == "drop":
            self.caches["pods"].drop(self.versioned({"metadata": {"name": what, "namespace": "default"}}))
        elif kind == "ask":
            pod = self.versioned(what)
            question = Question(pod=pod_from_json(pod), pod_version=version_of(pod), names=list(NAMES))
            self.cluster.guard.filter(question)
        else:
            self.caches[kind].put(self.versioned(what, namespaced=kind != "nodes"))

    def versioned(self, item: Json, *, namespaced: bool = True) -> Json:
        item = copy.deepcopy(item)
        item["metadata"] |= {"resourceVersion": str(self.version)} | ({"namespace": "default"} if namespaced else {})
        return item

    def everything(self) -> object:
        item = self.cluster.pod_item(CPU_JOB)
        return (
            self.cluster.held_back(),
            self.cluster.guard.in_flight.pods(),
            self.cluster.state.snapshot(),
            item and of_a_cpu_job(item),
        )


def of_a_cpu_job(item: Json) -> object:
    """What its writers read, and who posts Events on it and its owner."""
    metadata = item["metadata"]
    return (
        {name: metadata.get(name) for name in ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")},
        metadata["ownerReferences"],
        item["spec"].get("affinity"),
        refusal_from_json(item),
    )


async def told(changes: list[tuple[str, Any]]) -> list[object]:
    """What is read after each change."""
    seen, read = Seen(), []
    for kind, what in changes:
        seen.take(kind, what)
        read.append(seen.everything())
    return read


@given(steps)
@example([("pods", daemon("n1")), ("drop", "log")])
@example([("pods", daemon("n1", needs_disk=True)), ("drop", "log")])
@example([("pods", daemon("n1", nodeSelector={"disk": "fast"})), ("drop", "log")])
@example([("pods", FOREIGN | {"status": given_up()}), ("ask", FOREIGN), ("pods", FOREIGN | {"status": given_up()})])
@example([("pods", cpu_job("n1", gated=False)), ("pods", pod_of(cpu_job(None, gated=True), "a", {}, deleted=True))])
def test_who_holds_parts_knows_what_one_knows_who_holds_everything(changes: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "part_of_pod", lambda pod, **_: pod)
        patch.setattr(module, "metadata_only", lambda item: item)
        wanted = asyncio.run(told(changes))
    assert asyncio.run(told(changes)) == wanted


def large(item: Json) -> Json:
    """The object with as much in it that nobody reads later as real ones have: 10 KiB as JSON."""
    for container in item.get("spec", {}).get("containers", ()):
        container["env"] = [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(100)]
    names = [f"registry.example.com/ml/image-{number}" for number in range(100)]
    item["status"] |= {"images": [{"names": [name], "sizeBytes": 10**9} for name in names]}
    item["metadata"]["annotations"] = {f"example.com/{number}": "x" * 20 for number in range(100)}
    return item


@pytest.mark.parametrize(
    ("kind", "make", "most_kib"),
    [
        pytest.param("pods", lambda: pod_json("foreign", node="n1"), 3, id="a foreign pod"),
        pytest.param("pods", lambda: daemon("n1"), 7, id="a pod of a DaemonSet"),
        pytest.param("pods", lambda: cpu_job("n1", gated=False), 6, id="a CPU job"),
        pytest.param("nodes", lambda: node_json("n1"), 4, id="a node"),
    ],
)
async def test_what_is_held_of_each_is_small(kind: str, make: Callable[[], Json], most_kib: float) -> None:
    seen, count = Seen(), 200
    tracemalloc.start()
    try:
        for number in range(count):
            item = orjson.loads(orjson.dumps(large(make())))
            item["metadata"]["name"] += f"-{number}"
            item["metadata"]["uid"] = f"uid-{number}"
            seen.take(kind, item)
            del item
        taken_kib = tracemalloc.get_traced_memory()[0] / 1024 / count
    finally:
        tracemalloc.stop()
    assert taken_kib < most_kib
