"""What the planner keeps of the cluster does not grow with what is gone."""

from coda_kube.state import ClusterState
from tests.extender.objects import pod_json


def test_a_node_without_pods_is_forgotten() -> None:
    state = ClusterState()
    for number in range(10):
        pod = pod_json(f"pod-{number}", node=f"node-{number}")
        state.on_pod(None, pod)
        state.on_pod(pod, None)
    assert state.snapshot().used == {}
