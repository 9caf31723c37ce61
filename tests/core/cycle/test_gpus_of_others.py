"""Whom a reason names while pods outside Coda hold GPUs: no job whose end does not help."""

from __future__ import annotations

import pytest

from coda.cycle import decide
from coda.model import Job, Resources, WaitCode, World
from coda.model.constraints import NodeConstraints
from coda.model.decision import WaitReason
from coda.policy import PolicyConfig
from tests.builders import job, node, resources, running, world

NOW_S = 1e6
NODES = tuple(node(f"n{number}") for number in range(4))
CLAUSE = "; no job's end helps: pods outside Coda, or that outlived their TrainingJob, hold too many GPUs"


def reason_of(asked: Job, others: int, held: int, policy: str = "coda", nodes: int = 4) -> WaitReason:
    """Each of the first `nodes` has GPUs of others, and a training job with `held` GPUs runs on each."""
    runs = [running(job(f"s{number}", gpus=held), one.name) for number, one in enumerate(NODES)] if held else []
    foreign = {one.name: resources(gpus=others, pods=others) for one in NODES[:nodes]}
    seen: World = world(NODES, [*runs, asked], foreign=foreign)
    (refusal,) = decide(seen, PolicyConfig(policy=policy, levels=()), NOW_S).refusals
    assert refusal.reason.code is WaitCode.INSUFFICIENT_GPUS
    return refusal.reason


def test_a_node_that_lost_gpus_under_its_job_hides_no_pods_of_others() -> None:
    """The job still holds 8 GPUs where 4 are left. Elsewhere others hold as many as are lost."""
    nodes = (node("lost", gpus=4), node("n"))
    runs = [running(job("large", gpus=8), "lost"), running(job("small", gpus=4), "n")]
    seen = world(nodes, [*runs, job("mine", gpus=8)], foreign={"n": resources(gpus=4, pods=1)})
    (refusal,) = decide(seen, PolicyConfig(levels=()), NOW_S).refusals
    assert refusal.reason.holders == ()
    assert refusal.reason.message.endswith(CLAUSE)


@pytest.mark.parametrize("policy", ["arrival", "coda"])
@pytest.mark.parametrize(
    ("others", "held", "asked"),
    [
        pytest.param(7, 1, job("mine", gpus=8), id="in all"),
        pytest.param(1, 7, job("mine", gpus=8), id="on each node, though the jobs hold more than enough"),
        pytest.param(4, 4, job("mine", gpus=4, replicas=5), id="for one of several ranks"),
        pytest.param(4, 2, job("mine", gpus=8), id="and some are free"),
        pytest.param(7, 0, job("mine", gpus=8), id="and no job runs"),
    ],
)
def test_no_job_is_named_where_pods_of_others_alone_keep_a_gang_out(
    others: int, held: int, asked: Job, policy: str
) -> None:
    """The advice was to wait until one of the named jobs ends. After they all had, it still did not fit."""
    reason = reason_of(asked, others, held, policy)
    assert reason.holders == ()
    assert reason.message.endswith(CLAUSE)


@pytest.mark.parametrize(
    ("others", "held", "asked", "nodes"),
    [
        pytest.param(4, 4, job("mine", gpus=4), 4, id="one job's end is enough"),
        pytest.param(7, 1, job("mine", gpus=8), 3, id="on one node others hold nothing"),
        pytest.param(0, 8, job("mine", gpus=8), 0, id="others hold nothing at all"),
        pytest.param(4, 4, job("mine", gpus=4, replicas=4), 4, id="the end of all is enough"),
    ],
)
def test_jobs_are_named_where_their_end_helps(others: int, held: int, asked: Job, nodes: int) -> None:
    reason = reason_of(asked, others, held, nodes=nodes)
    assert reason.holders
    assert "outside Coda" not in reason.message


PASSING = [
    pytest.param(resources(gpus=1, pods=1), id="a foreign pod that may take any of the nodes, and takes one"),
    pytest.param(Resources(gpus=1), id="GPUs whose device plugin starts again"),
]


@pytest.mark.parametrize("in_flight", PASSING)
def test_jobs_are_named_while_gpus_are_only_held_back_for_a_moment(in_flight: Resources) -> None:
    """The reason said that no job's end helps: all but one of these nodes are whole when their job has ended."""
    runs = [running(job(f"s{number}", gpus=7), one.name) for number, one in enumerate(NODES)]
    seen = world(NODES, [*runs, job("mine", gpus=8)], in_flight={one.name: in_flight for one in NODES})
    (refusal,) = decide(seen, PolicyConfig(policy="coda", levels=()), NOW_S).refusals
    assert refusal.reason.holders
    assert "outside Coda" not in refusal.reason.message


@pytest.mark.parametrize("in_flight", [Resources(gpus=8), Resources(gpus=3)])
@pytest.mark.parametrize("elsewhere", [0, 1])
def test_no_pod_is_blamed_for_gpus_that_none_has(in_flight: Resources, elsewhere: int) -> None:
    """While a device plugin started again, the reason said that pods outside Coda held the rest. There were none."""
    others = node("other", labels={"pool": "b"})
    foreign = {"other": resources(gpus=elsewhere, pods=1)}
    asked = job("mine", gpus=8, constraints=NodeConstraints(selector={"pool": "a"}))
    mine = tuple(node(f"n{number}", labels={"pool": "a"}) for number in range(4))
    seen = world((*mine, others), [asked], foreign=foreign, in_flight={one.name: in_flight for one in mine})
    (refusal,) = decide(seen, PolicyConfig(policy="coda", levels=()), NOW_S).refusals
    assert refusal.reason.code is WaitCode.INSUFFICIENT_GPUS
    assert refusal.reason.message.endswith("; the rest is held back for a moment")


def test_pods_that_hold_gpus_are_named_beside_those_held_back() -> None:
    foreign = {one.name: resources(gpus=1, pods=1) for one in NODES[:2]}
    seen = world(
        NODES, [job("mine", gpus=8)], foreign=foreign, in_flight={"n2": Resources(gpus=8), "n3": Resources(gpus=1)}
    )
    (refusal,) = decide(seen, PolicyConfig(policy="coda", levels=()), NOW_S).refusals
    assert refusal.reason.message.endswith("; pods outside Coda, or that outlived their TrainingJob, hold the rest")
