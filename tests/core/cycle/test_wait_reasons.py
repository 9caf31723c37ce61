from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Node, WaitCode, World
from coda.model.constraints import Taint
from coda.model.decision import Refusal
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, quota, rack, world
from tests.core.cycle.wait_reason_cases import HELD_BACK, LASTING, NODES, SHORT, capacity, refusal, refused


@pytest.mark.parametrize(("snapshot", "expected"), [*LASTING, *HELD_BACK, *SHORT])
def test_refuses_with_the_first_cause(snapshot: World, expected: Refusal) -> None:
    assert refused(snapshot) == [expected]


@pytest.mark.parametrize(
    ("nodes", "most", "told"),
    [
        pytest.param(
            [*(node(f"n{number}", rack=None) for number in range(3)), node("cpus", gpus=0, rack="r1")],
            0,
            "no node that could hold a rank has the label topology.coda.scheduler/rack",
            id="no node of its size has a rack",
        ),
        pytest.param(
            [*rack("r1", 2), node("n3", rack=None), node("cpus", gpus=0, rack=None)],
            2,
            "even empty, no rack holds more than 2 "
            "(1 of 3 nodes that could hold a rank lacks the label topology.coda.scheduler/rack)",
            id="one has none",
        ),
    ],
)
def test_nodes_without_the_label_of_a_required_level_are_told(nodes: list[Node], most: int, told: str) -> None:
    asked = "needs all 3 ranks of 8 GPUs, 1 core and 1 GiB of memory each within one rack"
    numbers = {"ranks": 3, "ranks_when_empty": most, "nodes_matching": 4}
    expected = refusal(WaitCode.NEVER_FITS, f"{asked}; {told}", numbers=numbers)
    assert refused(world(nodes, [job(replicas=3, gpus=8, within="rack")])) == [expected]


def test_a_condition_of_a_node_never_makes_a_job_impossible() -> None:
    sick = node("n1", taints=(Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"),), schedulable=False)
    assert refused(world([sick], [job()])) == [
        refusal(
            WaitCode.NO_USABLE_NODE,
            "needs 1 GPU, 1 core and 1 GiB of memory free on one node; the only matching node does not have that now; "
            "1 node cordoned, not ready, under pressure or being removed",
            numbers=capacity(1, 0, 0, 1),
        )
    ]


def test_pods_of_a_dropped_plan_hold_the_next_start_back() -> None:
    edited = replace(planned(job(), "n1"), generation=2, unbound={0: "n1"})
    assert refused(world(NODES, [edited])) == [
        refusal(WaitCode.ROLLING_BACK, "pods of a dropped placement are still being deleted")._replace(generation=2)
    ]


def test_a_job_edited_in_the_queue_waits_for_the_operator_whatever_else_there_is() -> None:
    edited = replace(planned(job(gpus=99), "n1"), generation=2, edited=True)
    expected = refusal(WaitCode.EDITED, "its spec was edited, and the operator has not accepted it yet")
    assert refused(world(NODES, [edited])) == [expected._replace(generation=2)]
    assert decide(world(NODES, [replace(edited, request=job().request)]), PolicyConfig(), 0.0).starts == ()


def test_time_alone_does_not_change_a_refusal() -> None:
    snapshot = world(NODES, [job("a", not_before_s=500), job("b", gpus=16)])
    assert decide(snapshot, PolicyConfig(), 100.0) == decide(snapshot, PolicyConfig(), 200.0)


def test_a_level_that_nobody_configured_is_told_before_a_full_quota() -> None:
    """No waiting changes it. Else whoever fills the quota for a moment ends the time in vain, which has no age."""
    full = quota("small", hard={"cpu": 1000}, used={"cpu": 1000})
    now = world(NODES, [job(within="moon", quota={"cpu": 1000})], quotas=[full])
    assert [one.code for one in refused(now)] == [WaitCode.UNKNOWN_LEVEL]
