"""The model of shared GPUs under the agent's coordinator, and what is told to the planner."""

from __future__ import annotations

import random
from typing import Any

import pytest

from coda.model.seats import SEAT, SHARING
from coda.sharing.config import FULL_SHARE
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU
from coda_lab.experiments.load.gpu_model import LONGEST_S, OnGpus, SharedNode
from coda_lab.experiments.load.shared_gpus import SharedGpus
from coda_lab.kubelets.nodes import node_specs

NODE = "node-0000"


def owner(number: int, gpu: int = 0) -> OnGpus:
    return OnGpus(uid=f"owner-{number}", job=f"owner-{number}", gpus=(gpu,), owns=True)


def guest(number: int, gpu: int = 0) -> OnGpus:
    return OnGpus(uid=f"guest-{number}", job=f"guest-{number}", gpus=(gpu,), owns=False)


def pass_time(node: SharedNode, pods: list[OnGpus], began_s: int, seconds: int) -> int:
    for second in range(began_s, began_s + seconds):
        node.see(pods, float(second))
        node.tick(float(second))
    return began_s + seconds


@pytest.mark.parametrize("seed", range(20))
def test_jobs_come_and_go_and_an_agent_is_killed_and_no_owner_is_slow_for_long(seed: int) -> None:
    """A minute at least between two guests, as the planner asks the agents again. An owner asks nobody."""
    rng, node, now_s = random.Random(seed), SharedNode("n", 1, seed=seed), 0
    pods = [guest(0)]
    now_s = pass_time(node, pods, now_s, 20)
    pods.append(owner(0))
    for number in range(1, 8):
        now_s = pass_time(node, pods, now_s, rng.randint(60, 90))
        guests = [pod for pod in pods if not pod.owns]
        if rng.random() < 0.4:
            node.crash(float(now_s), rng.uniform(3, 40))
        if rng.random() < 0.2:
            now_s = pass_time(node, guests, now_s, rng.randint(0, 40))
            pods[:] = [*guests, owner(number)]
        elif guests and rng.random() < 0.4:
            pods.remove(rng.choice(guests))
        elif len(guests) < 4:
            pods.append(guest(number))
    assert [each.sentence() for each in node.slowed] == []
    assert node.totals.shared_s > 200
    assert node.totals.guest_share_s > 0


def test_an_owner_that_nobody_protects_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is killed while a guest is alone; then an owner comes, and the guest does not notice."""
    monkeypatch.setattr(SharedNode, "_has_new_neighbour", lambda *_: False)
    node, pods = SharedNode("n", 1, seed=1), [guest(0)]
    now_s = pass_time(node, pods, 0, 20)
    node.crash(float(now_s), 30.0)
    pass_time(node, [*pods, owner(0)], now_s, 25)
    (found,) = node.slowed
    assert (found.watched, found.seconds) == (False, LONGEST_S + 1)
    assert "owner-0 on n was" in found.sentence()
    assert "without a coordinator" in found.sentence()
    assert node.totals.longest_unwatched_s > LONGEST_S


def test_a_coordinator_that_orders_too_much_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    node = SharedNode("n", 1, seed=1)
    monkeypatch.setattr("coda.sharing.pace_control.PaceState.share_of_each", lambda *_: FULL_SHARE)
    pass_time(node, [guest(0), owner(0)], 0, 30)
    assert [each.watched for each in node.slowed] == [True]


def pod(uid: str, *, phase: str = "Running", **limits: str) -> Json:
    container = {"name": "main", "resources": {"limits": limits}}
    metadata: dict[str, Any] = {"uid": uid, "name": uid, "namespace": "default", "labels": {}}
    return {"metadata": metadata, "spec": {"nodeName": NODE, "containers": [container]}, "status": {"phase": phase}}


def test_whole_gpus_are_told_of_the_pods_that_have_them_and_seats_of_nobody() -> None:
    gpus = SharedGpus(node_specs("1x2x16", racks=1), seed=1)
    gpus.on_pod(None, pod("first", **{GPU: "1", SHARING: "1"}))
    gpus.on_pod(None, pod("foreign", **{GPU: "1"}))
    gpus.on_pod(None, pod("seated", **{f"{SEAT}0": "1"}))
    gpus.on_pod(None, pod("waits", phase="Pending", **{GPU: "1"}))
    node = gpus._nodes[NODE]
    assert set(node.pods) == {"first", "foreign", "seated"}
    assert {node.pods[uid].gpus for uid in ("first", "foreign")} == {(0,), (1,)}
    assert (node.pods["first"].controls, node.pods["foreign"].controls) == (True, False)
    node.model.see(node.pods.values(), 0.0)
    node.model.tick(10.0)
    rows = [node.model.row_of(gpu, 10.0, alone_s=2.0) for gpu in (0, 1)]
    assert sorted(str(row["podUIDs"]) for row in rows) == ["['first']", "['foreign']"]
    assert ["utilization" in row for row in rows] == [False, True]  # the first one has a neighbour
    ended = pod("first", phase="Succeeded", **{GPU: "1", SHARING: "1"})
    gpus.on_pod(None, ended)
    assert set(node.pods) == {"foreign", "seated"}
