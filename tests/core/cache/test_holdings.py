from __future__ import annotations

from coda.cycle import decide
from coda.model import World
from coda.model.constraints import NodeConstraints, Taint, Toleration
from coda.model.decision import Refusal
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, running, world

NOW_S = 100.0
NODES = (node("n1"), node("n2"))


def refused(snapshot: World) -> list[Refusal]:
    return list(decide(snapshot, PolicyConfig(), NOW_S).refusals)


def test_names_the_largest_holders_on_matching_nodes_only() -> None:
    groups = (Taint(key="pool"),)
    nodes = [node("n1"), node("n2"), node("p1", taints=groups)]
    tolerant = NodeConstraints(tolerations=(Toleration(operator="Exists"),))
    holders = [
        running(job("small", gpus=1), "n1"),
        running(job("wide", replicas=2, gpus=3), "n1", "n2"),
        running(job("elsewhere", gpus=8, constraints=tolerant), "p1"),
        planned(job("planned", gpus=4), "n2"),
    ]
    waiting = job(gpus=8)
    [answer] = refused(world(nodes, [*holders, waiting]))
    assert answer.reason.holders == ("team/wide", "team/planned", "team/small")


def test_jobs_that_start_in_the_same_round_are_holders_too() -> None:
    plan = decide(world([node("n1")], [job("a", gpus=8), job("b", gpus=8)]), PolicyConfig(), NOW_S)
    assert [refusal.reason.holders for refusal in plan.refusals] == [("team/a",)]


def test_small_jobs_that_come_and_go_do_not_change_what_a_waiting_job_is_told() -> None:
    holders = [running(job(f"large-{number}", gpus=2), "n2" if number == 4 else "n1") for number in range(5)]
    small = [running(job(f"small-{number}"), "n2") for number in range(3)]
    assert refused(world(NODES, [*holders, job(gpus=8)])) == refused(world(NODES, [*holders, *small, job(gpus=8)]))
