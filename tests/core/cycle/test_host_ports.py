"""Host ports are part of what a rank asks for: a port of a node is used by one pod at a time."""

from __future__ import annotations

from coda.cycle import decide
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, resources, running, world

PORT = "hostPort/29500-TCP"
CONFIG = PolicyConfig()
NODES = [node(f"n{number}") for number in range(4)]


def placed(*jobs: object, **changes: object) -> list[tuple[str, ...]]:
    decision = decide(world(NODES, jobs, **changes), CONFIG, now_s=0)  # type: ignore[arg-type]  # as tests name them
    return [start.nodes for start in decision.starts]


def test_ranks_with_the_same_host_port_go_to_different_nodes() -> None:
    (nodes,) = placed(job("ports", replicas=2, other={PORT: 1}))
    assert len(set(nodes)) == 2
    (together,) = placed(job("usual", replicas=2))
    assert len(set(together)) == 1


def test_a_port_that_is_used_keeps_a_rank_away_and_another_port_does_not() -> None:
    taken = {name: resources(**{PORT: 1}) for name in ("n0", "n1", "n2")}
    assert placed(job("ports", other={PORT: 1}), foreign=taken) == [("n3",)]
    assert placed(job("other", other={"hostPort/29501-TCP": 1}), foreign=taken) != []


def test_placed_and_running_gangs_hold_their_ports() -> None:
    holders = (
        planned(job("planned", replicas=2, other={PORT: 1}), "n0", "n1"),
        running(job("running", other={PORT: 1}), "n2"),
    )
    assert placed(*holders, job("next", other={PORT: 1})) == [("n3",)]
    assert placed(*holders, job("next", replicas=2, other={PORT: 1})) == []


def test_a_job_that_waits_for_a_port_says_so() -> None:
    taken = {f"n{number}": resources(**{PORT: 1}) for number in range(4)}
    decision = decide(world(NODES, [job("ports", other={PORT: 1})], foreign=taken), CONFIG, now_s=0)
    (refusal,) = decision.refusals
    assert "hostPort/29500-TCP" in refusal.reason.message
