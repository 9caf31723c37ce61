"""What the planner keeps of the cluster: nothing of what is gone, and nobody's word about another's job."""

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
