"""A job that its volumes keep from nodes is told by which claims: its template may have no affinity at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import CycleCache, CycleSnapshot, decide, run_cycle
from coda.model import Job, Node
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Taint
from coda.policy import PolicyConfig
from tests.builders import job, node, world

IN_A = NodeTerm(labels=(Requirement(key="zone", operator="In", values=("a",)),))
HERE, THERE = node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "b"})
SAID = "; its node affinity includes that of the volume of PersistentVolumeClaim data"


def with_claims(one: Job, *claims: str) -> Job:
    return replace(one, constraints=NodeConstraints(terms=(IN_A,), claims=claims))


def told(nodes: list[Node], *jobs: Job) -> list[str]:
    return [refusal.reason.message for refusal in decide(world(nodes, jobs), PolicyConfig(), now_s=0).refusals]


def test_no_node_has_its_volume() -> None:
    message = "none of 1 node accepts its pods: 1 outside its required node affinity"
    assert told([THERE], with_claims(job(), "data")) == [message + SAID]
    both = "; its node affinity includes that of the volumes of PersistentVolumeClaims a and b"
    assert told([THERE], with_claims(job(), "a", "b")) == [message + both]
    (many,) = told([THERE], with_claims(job(), *[f"data-{number}" for number in range(128)]))
    assert many.endswith("of PersistentVolumeClaims data-0, data-1, data-2 and 125 more")


def test_too_few_nodes_have_its_volume() -> None:
    (message,) = told([HERE, THERE], with_claims(job(replicas=2, gpus=8), "data"))
    assert message.startswith("needs 2 ranks of 8 GPUs")
    assert message.endswith("even empty, the only matching node holds only 1" + SAID)


@pytest.mark.parametrize(
    ("nodes", "waits"),
    [
        pytest.param([], job(), id="there is no node"),
        pytest.param([node("n1", labels={"zone": "a"}, taints=(Taint(key="lab"),))], job(), id="a taint"),
        pytest.param([HERE], job(replicas=2, gpus=8), id="all nodes have it, and are too few"),
    ],
)
def test_volumes_that_keep_it_from_no_node_are_not_told(nodes: list[Node], waits: Job) -> None:
    (message,) = told(nodes, with_claims(waits, "data"))
    assert "PersistentVolumeClaim" not in message


def test_jobs_with_claims_of_their_own_are_one_class_and_each_is_told_of_its_own() -> None:
    jobs = [with_claims(job(f"j{number}"), f"data-{number}") for number in range(3)] + [with_claims(job("none"))]
    messages = told([THERE], *jobs)
    assert [message.rpartition(" ")[2] for message in messages] == ["data-0", "data-1", "data-2", "affinity"]


def test_a_refusal_that_names_a_claim_stays_the_same_object_while_it_says_the_same() -> None:
    snapshot, cache = world([THERE], [with_claims(job(), "data")]), CycleCache()
    first, second = [
        run_cycle(CycleSnapshot(world=snapshot, epoch=1, now_s=now_s), PolicyConfig(), cache).decision.refusals[0]
        for now_s in (0.0, 1.0)
    ]
    assert first is second
