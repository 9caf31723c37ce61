"""What the planner keeps of the cluster: nothing of what is gone, and nobody's word about another's job."""

from collections.abc import Callable
from typing import Any

import pytest

from coda_kube.cluster_state import ClusterState
from coda_kube.objects.read import id_of
from tests.extender.objects import job_json, node_json, placement, pod_json, rank_json

STOP = {"cause": "Migrate", "by": "default/x", "time": "2026-01-01T00:00:00Z"}


def stopped_job(name: str) -> dict[str, Any]:
    job = job_json(name, phase="Running", placement=placement("n1") | {"stop": STOP})
    job["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    return job


def test_a_node_without_pods_is_forgotten() -> None:
    state = ClusterState()
    for number in range(10):
        pod = pod_json(f"pod-{number}", node=f"node-{number}")
        state.on_pod(None, pod)
        state.on_pod(pod, None)
    assert state.snapshot().used == {}


@pytest.mark.parametrize("gone_first", ["job", "pod"])
def test_an_order_to_stop_is_forgotten_once_job_and_pods_are_gone(gone_first: str) -> None:
    state, job = ClusterState(), stopped_job("guest")
    pod = rank_json("guest", 0, "n1", node="n1")
    pod["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    owner = (id_of(job), job["metadata"]["uid"])
    state.on_job(None, job)
    state.on_pod(None, pod)
    assert state.is_stopped(owner, 1)
    if gone_first == "pod":
        state.on_pod(pod, None)
    state.on_job(job, None)
    if gone_first == "job":
        state.on_pod(pod, None)
    assert not state.is_stopped(owner, 1)


def test_a_pod_of_another_namespace_is_no_rank_whatever_its_labels_say() -> None:
    """Otherwise anybody who may create pods could make the planner believe that capacity is about to be left."""
    state = ClusterState()
    for name in ("n1", "n2"):
        state.on_node(None, node_json(name))
    state.on_job(None, stopped_job("guest"))
    claimed = rank_json("guest", 0, "n2", node="n2")
    claimed["metadata"] |= {"namespace": "other", "name": "mine"}
    state.on_pod(None, claimed)
    assert state.snapshot().leaving == {}
    assert state.snapshot().used.keys() == {"n2"}


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(item: dict[str, Any]) -> None:
        for name in path[:-1]:
            item = item[name]
        item[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_set("status", "request", "resources", to={"memory": "lots"}), id="no quantity"),
        pytest.param(_set("status", "request", "cpusPerReplica", to=None), id="no cores"),
        pytest.param(_set("status", "request", "quota", to={"cpu": "x"}), id="no quota use"),
        pytest.param(_set("status", "request", "tolerations", to=7), id="no list"),
        pytest.param(_set("status", "request", "nodeSelectorTerms", to=[{"matchExpressions": [{}]}]), id="no key"),
        pytest.param(_set("status", "queuedTime", to="12345-01-01T00:00:00Z"), id="a year of five digits"),
        pytest.param(_set("status", "placement", to={"attempt": 1}), id="half a placement"),
        pytest.param(_set("spec", "replicas", to=None), id="no replicas"),
        pytest.param(_set("spec", to=None), id="no spec"),
    ],
)
def test_a_job_that_cannot_be_read_waits_and_says_so(spoil: Callable[[dict[str, Any]], None]) -> None:
    state, bad = ClusterState(), job_json("bad")
    bad["spec"]["cpusPerReplica"] = "auto"
    for item in (bad, job_json("good")):
        item["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    spoil(bad)
    state.on_job(None, bad)
    state.on_job(None, job_json("good") | {"metadata": job_json("good")["metadata"] | {"namespace": "default"}})
    told = {str(job.id): job.unreadable for job in state.snapshot().jobs}
    assert told["default/good"] == ""
    assert told["default/bad"].startswith("Coda cannot read the job (")


def test_a_job_that_cannot_be_read_any_more_keeps_what_it_holds() -> None:
    state, job = ClusterState(), job_json("bad", placement=placement("n1"))
    job["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
    state.on_job(None, job)
    before = state.job(id_of(job))
    broken = job | {"status": job["status"] | {"request": {"resources": {"cpu": "x"}}}}
    state.on_job(job, broken)
    assert state.job(id_of(job)) == before
    assert before is not None
    assert before.placement is not None
