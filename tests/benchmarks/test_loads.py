import pytest

from coda_kube.objects.names import GPU, LABEL_JOB_UID, SCHEDULER
from rig.loads import foreign_pods, gang_json, gang_sizes, plain_pods


@pytest.mark.parametrize("pods", [1, 8, 100, 1000, 1001])
def test_gang_sizes_add_up_and_are_the_same_every_time(pods: int) -> None:
    sizes = gang_sizes(pods)
    assert sum(sizes) == pods
    assert all(8 <= size <= 64 for size in sizes[:-1])
    assert gang_sizes(pods) == sizes


def test_plain_pods_are_a_gangs_pods_but_neither_pinned_nor_owned() -> None:
    pods = plain_pods(gang_json("gang", 3, gpus=8))
    assert [pod["metadata"]["name"] for pod in pods] == ["gang-1-0", "gang-1-1", "gang-1-2"]
    for pod in pods:
        assert pod["spec"]["schedulerName"] == SCHEDULER
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "4", GPU: "8"}
        assert "affinity" not in pod["spec"]
        assert "ownerReferences" not in pod["metadata"]
        assert LABEL_JOB_UID not in pod["metadata"]["labels"]


def test_plain_pods_run_as_long_as_the_gangs() -> None:
    gang = gang_json("gang", 1, run_s=2.5)
    notes = gang["spec"]["template"]["metadata"]["annotations"]
    assert plain_pods(gang)[0]["metadata"]["annotations"] == notes != {}


def test_every_second_foreign_pod_wants_a_gpu_and_none_names_a_scheduler() -> None:
    pods = foreign_pods(4)
    assert [GPU in pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods] == [False, True, False, True]
    assert not any("schedulerName" in pod["spec"] for pod in pods)
