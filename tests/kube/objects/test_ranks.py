"""Which pods are ranks: those of the live placement, by name, labels and node. Others are pods like any."""

from typing import Any

import pytest

from coda.cycle import decide
from coda.model import JobId
from coda.model.capacity import withheld
from coda.placements import review_placements
from coda.policy import PolicyConfig
from coda_kube.cluster_state import ClusterState
from tests.extender.objects import job_json, node_json, placement, rank_json

Item = dict[str, Any]
MINE = JobId("default/mine")


def seen(*pods: Item, victims: int = 2, **job: Any) -> ClusterState:
    """Three nodes of eight GPUs, a job of the attacker's, and a job that waits for whole nodes."""
    state = ClusterState()
    for name in ("n1", "n2", "n3"):
        state.on_node(None, node_json(name))
    for item in (job_json("mine", **job), job_json("victim", replicas=victims)):
        item["metadata"] |= {"namespace": "default", "resourceVersion": "1"}
        state.on_job(None, item)
    for pod in pods:
        pod["metadata"]["namespace"] = "default"
        state.on_pod(None, pod)
    return state


def named(pod: Item, name: str) -> Item:
    return pod | {"metadata": pod["metadata"] | {"name": name, "uid": name}}


RUNNING: Item = {"phase": "Running", "placement": placement("n1", plan="plan")}


@pytest.mark.parametrize(
    ("forged", "job"),
    [
        pytest.param(rank_json("mine", 7, "n2", gpus=0), RUNNING, id="a rank that the job does not have"),
        pytest.param(rank_json("mine", 0, "n2", gpus=0), RUNNING, id="another node"),
        pytest.param(named(rank_json("mine", 0, "n1", gpus=0), "other"), RUNNING, id="another name"),
        pytest.param(rank_json("mine", 0, "n2", plan="", gpus=0), RUNNING, id="no placement"),
        pytest.param(rank_json("mine", 0, "n2", plan="made-up", gpus=0), RUNNING, id="another placement"),
        pytest.param(rank_json("mine", 0, "n2", attempt=2, gpus=0), RUNNING, id="another attempt"),
        pytest.param(rank_json("mine", 0, "n2", gpus=0), {}, id="of a job that waits"),
        pytest.param(rank_json("mine", 0, "n2", gpus=0), RUNNING | {"phase": "Succeeded"}, id="of a finished job"),
    ],
)
def test_a_forged_rank_withholds_nothing(forged: Item, job: Item) -> None:
    """The victim needs every other node. A running job has its own: its rank is not seen, or is this pod."""
    own = {"n1": 8} if job.get("phase") == "Running" else {}
    state = seen(forged, victims=3 - len(own), **(job or {"queuedTime": "2100-01-01T00:00:00Z"}))
    world = state.snapshot()
    assert {node: held.gpus for node, held in withheld(world).items()} == own
    assert {start.job for start in decide(world, PolicyConfig(), 2e9).starts} == {"default/victim"}


def test_forged_ranks_of_a_job_that_waits_keep_only_this_job_waiting() -> None:
    state = seen(rank_json("mine", 0, "n2", gpus=0), victims=3, queuedTime="2100-01-01T00:00:00Z")
    decision = decide(state.snapshot(), PolicyConfig(), 2e9)
    assert [start.job for start in decision.starts] == ["default/victim"]
    assert [(refusal.job, refusal.code.value) for refusal in decision.refusals] == [(MINE, "RollingBack")]


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(rank_json("mine", 0, "n3", node="n3", gpus=0), id="bound elsewhere"),
        pytest.param(rank_json("mine", 0, "n1", node="n1", plan="x", gpus=0), id="of no placement"),
        pytest.param(named(rank_json("mine", 0, "n1", node="n1", gpus=0), "x"), id="of another name"),
    ],
)
def test_a_forged_bound_pod_confirms_no_rank(forged: Item) -> None:
    """Otherwise the capacity of the rank would be given away before the rank is bound."""
    state = seen(forged, placement=placement("n1"))
    job = state.job(MINE)
    assert job is not None
    assert job.bound == frozenset()
    world = state.snapshot()
    assert [sorted(start.nodes) for start in decide(world, PolicyConfig(), 2e9).starts] == [["n2", "n3"]]
    assert review_placements(world, epoch=1, now_s=1.7e9) == ()


def test_a_forged_rank_is_counted_where_it_runs() -> None:
    state = seen(rank_json("mine", 5, "n2", node="n2", gpus=8), **RUNNING)
    assert state.use.of("n2").gpus == 8


def test_capacity_under_forged_ranks_is_not_expected_to_be_left() -> None:
    stop = {"cause": "Migrate", "by": "default/x", "time": "2026-01-01T00:00:00Z"}
    state = seen(
        rank_json("mine", 0, "n1", node="n1", attempt=2),
        rank_json("mine", 0, "n2", node="n2", attempt=1),
        rank_json("mine", 1, "n3", node="n3", attempt=2),
        phase="Running",
        attempt=2,
        placement=placement("n1", attempt=2) | {"stop": stop},
    )
    assert state.snapshot().leaving.keys() == {"n1"}


ENDED: Item = rank_json("mine", 0, "n2", node="n2") | {"status": {"phase": "Succeeded"}}


@pytest.mark.parametrize(
    ("lives_on", "job", "ending"),
    [
        pytest.param(rank_json("mine", 0, "n2", node="n2"), {"attempt": 2}, ("n2",), id="an earlier attempt"),
        pytest.param(
            rank_json("mine", 0, "n1", node="n1"), RUNNING | {"phase": "Failed"}, ("n1",), id="a finished job"
        ),
        pytest.param(rank_json("mine", 0, "n1", node="n1"), RUNNING, (), id="its rank"),
        pytest.param(rank_json("mine", 0, "n2"), {"attempt": 2}, (), id="a pod without a node"),
        pytest.param(ENDED, {"attempt": 2}, (), id="a pod that has ended"),
    ],
)
def test_it_is_known_where_pods_run_on_that_are_no_ranks_any_more(
    lives_on: Item, job: Item, ending: tuple[str, ...]
) -> None:
    state = seen(lives_on, **(job | {"phase": job.get("phase", "Queued").replace("Failed", "Running")}))
    now = job_json("mine", **job)
    now["metadata"] |= {"namespace": "default", "resourceVersion": "2"}
    state.on_job(state.job_json_by_id[MINE], now)
    known = state.job(MINE)
    assert known is not None
    assert known.ending == ending
    state.on_pod(lives_on, None)
    again = state.job(MINE)
    assert again is None if job.get("phase") == "Failed" else again is not None and again.ending == ()


@pytest.mark.parametrize("phase", ["Launched", "Starting", "Running"])
def test_a_rank_whose_pod_has_ended_holds_nothing_whatever_the_job_was_last_said_to_do(phase: str) -> None:
    """A rank may end before the operator says that it runs. Its node is free then, and its user holds it no more."""
    pods = [rank_json("mine", 0, "n1", node="n1"), rank_json("mine", 1, "n2", node="n2")]
    pods[0]["status"] = {"phase": "Failed"}
    job = seen(*pods, phase=phase, replicas=2, placement=placement("n1", "n2")).job(MINE)
    assert job is not None
    assert (job.gone, job.bound) == (frozenset({0}), frozenset({0, 1}))
