"""Where kube-scheduler refused a CPU job, the next pods of its owner do not go for a while."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.cycle import decide
from coda.policy import ArraysConfig, PolicyConfig
from coda_kube.cluster_state import ClusterState
from coda_kube.cpu_jobs import controller_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GATE
from coda_kube.objects.pods.scheduler_refusals import SchedulerRefusal, refusal_from_json
from coda_kube.refused_nodes import (
    FIRST_OF_ROOM_S,
    FIRST_PAUSE_S,
    FIRST_S,
    LONGEST_PAUSE_S,
    LONGEST_S,
    MOST_NODES,
    MOST_OWNERS,
    RefusedNodes,
)
from tests.extender.objects import given_up, node_json, pod_json

CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.5))
REPELLED = SchedulerRefusal("node(s) didn't satisfy existing pods anti-affinity rules")
FULL = SchedulerRefusal("Insufficient cpu", is_of_room=True)
NODE_NAMES = st.sampled_from([f"n{number}" for number in range(6)])


def waiting(name: str, kind: str = "ReplicaSet", namespace: str = "default", uid: str = "uid-web") -> Json:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": uid, "controller": True}
    metadata = {"namespace": namespace, "resourceVersion": "1", "ownerReferences": [owner]}
    return pod_json(name, cpu="1", metadata=metadata, spec={"schedulingGates": [{"name": GATE}]})


def state_of(count: int, *pods: Json) -> ClusterState:
    state = ClusterState()
    for number in range(count):
        state.on_node(None, node_json(f"n{number}"))
    for one in pods:
        state.on_pod(None, one)
    return state


def node_for(state: ClusterState) -> str | None:
    starts = decide(state.snapshot(), CODA, 1000.0).starts
    return starts[0].nodes[0] if starts else None


def refuse(state: ClusterState, pod: Json, node: str, now_s: float = 0.0) -> None:
    owner = controller_of(state.pod_by_id[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"])
    state.cpu_jobs.refused.note(owner, node, REPELLED, now_s)
    state.read_jobs(state.cpu_jobs.of_controllers((owner,)))


@given(count=st.integers(1, 6), bad=st.sets(NODE_NAMES), kind=st.sampled_from(["ReplicaSet", "Job", "Workflow"]))
def test_each_node_that_refuses_is_tried_once_until_one_takes_the_pod(count: int, bad: set[str], kind: str) -> None:
    """The owner makes another pod for each one that is refused."""
    state, tried = state_of(count), []
    for incarnation in range(count + 1):
        pod = waiting(f"web-{incarnation}", kind)
        state.on_pod(None, pod)
        node = node_for(state)
        if node is None:
            break
        tried.append(node)
        if node not in bad:
            break
        refuse(state, pod, node)
        state.on_pod(pod, None)
    nodes = {f"n{number}" for number in range(count)}
    assert len(tried) == len(set(tried))
    assert (tried[-1] not in bad) == bool(nodes - bad)
    assert nodes <= bad or len(tried) <= len(nodes & bad) + 1


def test_pods_of_one_owner_stay_one_class_and_others_are_not_concerned() -> None:
    pods = [waiting(f"web-{number}") for number in range(4)]
    others = [waiting("twin", namespace="other"), waiting("api", uid="uid-api")]  # a uid that somebody else claims
    state = state_of(2, *pods, *others)
    refuse(state, pods[0], "n0")
    avoid_by_job = {job.id: job.avoid for job in state.snapshot().jobs}
    assert {avoid for job, avoid in avoid_by_job.items() if "/web-" in job} == {frozenset({"n0"})}
    assert {avoid for job, avoid in avoid_by_job.items() if "/web-" not in job} == {frozenset()}


@pytest.mark.parametrize("gone", ["node", "Job"])
def test_nothing_is_remembered_of_who_is_gone(gone: str) -> None:
    pod = waiting("web-1", "Job")
    state = state_of(1, pod)
    refuse(state, pod, "n0")
    assert node_for(state) is None
    if gone == "node":
        state.on_node(node_json("n0"), None)
        state.on_node(None, node_json("n0"))
    else:
        state.on_batch_job({"metadata": {"namespace": "default", "name": "web", "uid": "uid-web"}}, None)
        state.on_pod(pod, None)
        state.on_pod(None, pod)
    assert node_for(state) == "n0"


NOTES = st.lists(st.tuples(NODE_NAMES, st.floats(0, LONGEST_S), st.booleans()), max_size=30)


@given(notes=NOTES)
def test_a_node_is_avoided_for_longer_each_time_but_never_for_good(notes: list[tuple[str, float, bool]]) -> None:
    refused, now_s = RefusedNodes(), 0.0
    for node, pause_s, is_of_room in notes:
        refused.note("web", node, FULL if is_of_room else REPELLED, now_s)
        assert node in refused.avoided_by("web") <= {node for node, _, _ in notes}
        now_s += pause_s
        refused.expire(now_s)
    refused.expire(now_s + LONGEST_S)
    assert refused.avoided_by("web") == frozenset()
    assert refused.text("web") == ""


@pytest.mark.parametrize(("refusal", "first_s"), [(REPELLED, FIRST_S), (FULL, FIRST_OF_ROOM_S)])
def test_the_time_doubles_with_each_refusal_that_follows_the_last_one(
    refusal: SchedulerRefusal, first_s: float
) -> None:
    refused, now_s, length_s = RefusedNodes(), 0.0, first_s
    for _ in range(12):
        assert refused.note("web", "n0", refusal, now_s)
        assert not refused.note("web", "n0", refusal, now_s + 1)  # another pod of the same wave
        assert refused.expire(now_s + length_s - 1) == []
        now_s += length_s
        assert refused.expire(now_s) == ["web"]
        length_s = min(2 * length_s, LONGEST_S)
    refused.expire(now_s + length_s)  # as long again: it is a first refusal once more
    assert refused.note("web", "n0", refusal, now_s + length_s)
    assert refused.expire(now_s + length_s + first_s) == ["web"]


@given(days=st.integers(1, 3), every_s=st.floats(2, 30))
def test_who_is_refused_everywhere_is_evicted_at_a_pace_that_falls(days: int, every_s: float) -> None:
    refused, now_s, evicted = RefusedNodes(), 0.0, 0
    while now_s < days * 86_400:
        refused.expire(now_s)
        refused.note("web", f"n{evicted}", REPELLED, now_s)
        if not refused.is_paused("web", now_s):
            refused.pause("web", now_s)
            evicted += 1
        now_s += every_s
    assert days * 86_400 / (LONGEST_PAUSE_S + 30) <= evicted <= 10 + days * 86_400 / LONGEST_PAUSE_S


@pytest.mark.parametrize("refusal", [REPELLED, FULL])
@given(stuck_s=st.floats(5, 30))
def test_pauses_grow_whether_nodes_repel_pods_or_are_full(refusal: SchedulerRefusal, stuck_s: float) -> None:
    """One pod at a time, each refused once and on another node. A pause may last longer than its node is remembered."""
    refused, now_s, evicted_s = RefusedNodes(), 0.0, list[float]()
    while now_s < 4 * 3600:
        refused.note("web", f"n{len(evicted_s)}", refusal, now_s)
        while refused.is_paused("web", now_s):
            now_s += 2
            refused.expire(now_s)
        refused.pause("web", now_s)
        evicted_s.append(now_s)
        now_s += stuck_s
        refused.expire(now_s)
    gaps_s = [later - earlier for earlier, later in pairwise(evicted_s)]
    assert all(later >= earlier - 2 for earlier, later in pairwise(gaps_s))
    assert len(evicted_s) <= 10 + 4 * 3600 / LONGEST_PAUSE_S


def test_how_long_an_owner_paused_is_forgotten_after_as_long_again() -> None:
    refused, now_s = RefusedNodes(), 0.0
    for number in range(6):
        refused.note("web", f"n{number}", FULL, now_s)
        refused.pause("web", now_s)
        now_s += FIRST_PAUSE_S * 2**number
        refused.expire(now_s)
        assert not refused.is_paused("web", now_s)
    refused.expire(now_s + FIRST_PAUSE_S * 2**5)
    refused.note("web", "n0", FULL, now_s := 2 * now_s)
    refused.pause("web", now_s)
    assert not refused.is_paused("web", now_s + FIRST_PAUSE_S)


def test_memory_is_bounded() -> None:
    refused = RefusedNodes()
    for number in range(3 * MOST_NODES):
        refused.note("web", f"n{number}", REPELLED, float(number))
    assert len(refused.avoided_by("web")) == MOST_NODES
    for number in range(2 * MOST_OWNERS):
        refused.note(f"owner-{number}", "n0", REPELLED, 1000.0)
    assert sum(bool(refused.avoided_by(f"owner-{number}")) for number in range(2 * MOST_OWNERS)) == MOST_OWNERS


def test_many_owners_of_one_namespace_make_nobody_forget_those_of_others() -> None:
    refused = RefusedNodes()
    others = [f"team-{number}/web" for number in range(MOST_OWNERS // 2)]
    for number, other in enumerate(others):
        refused.note(other, "n0", REPELLED, float(number))
    for number in range(2 * MOST_OWNERS):
        refused.note(f"loud/{number}", "n0", REPELLED, 1000.0)
    assert all(refused.avoided_by(other) for other in others)
    kept = [number for number in range(2 * MOST_OWNERS) if refused.avoided_by(f"loud/{number}")]
    assert kept == list(range(2 * MOST_OWNERS))[-MOST_OWNERS // 2 :]
    assert set(refused.expire(1001.0)) >= {f"loud/{number}" for number in range(MOST_OWNERS)}  # their pods may go there
    assert refused.expire(1002.0) == []


SAID = "0/3 nodes are available: {}. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
ELSEWHERE = "2 node(s) didn't satisfy plugin(s) [NodeAffinity]"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (given_up(message=SAID.format(f"1 {REPELLED.said}, {ELSEWHERE}")), REPELLED),
        (given_up(message=SAID.format(f"1 Insufficient cpu, {ELSEWHERE}")), FULL),
        (
            given_up(message=SAID.format("1 Insufficient cpu, 1 Too many pods, 1 node(s) had disk pressure")),
            SchedulerRefusal("Insufficient cpu, Too many pods, node(s) had disk pressure"),
        ),
        (given_up(message="no"), SchedulerRefusal("no")),
        (given_up(message=SAID.format(f"1 coda: no released plan for this pod, {ELSEWHERE}")), None),
        (given_up("SchedulerError", "an extender is away"), None),
        (given_up("SchedulingGated"), None),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, None),
        ({}, None),
    ],
)
def test_what_kube_scheduler_says_of_the_node(status: Json, expected: SchedulerRefusal | None) -> None:
    assert refusal_from_json({"status": status}) == expected
