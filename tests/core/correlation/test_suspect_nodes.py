"""Nodes on which the jobs of several users fail with their GPUs."""

from __future__ import annotations

import pytest

from coda.correlation import NodeFailure, suspect_nodes
from coda.correlation.suspect_nodes import CORDON_S, MOST_NODES, WINDOW_S, ended_cordons, most_cordons

NOW_S = 1e6
ECC = "GPU ECC error"


def failed(owner: str, node: str = "n1", *, ago_s: float = 60.0, reason: str = ECC, uid: str = "") -> NodeFailure:
    return NodeFailure(
        uid=uid or f"{owner}-{node}-{ago_s}", owner=owner, node=node, reason=reason, time_s=NOW_S - ago_s
    )


def cordoned(*failures: NodeFailure, nodes: int = 40, **cleared_s: float) -> list[str]:
    return [cordon.node for cordon in suspect_nodes(failures, cleared_s, nodes, NOW_S)]


@pytest.mark.parametrize(
    ("failures", "names"),
    [
        pytest.param([failed("ann"), failed("bob")], ["n1"], id="two users on one node"),
        pytest.param([failed("ann", uid=str(n)) for n in range(50)], [], id="one user, however often"),
        pytest.param([failed("ann"), failed("bob", "n2")], [], id="two users on two nodes"),
        pytest.param([failed("ann"), failed("bob", reason="CUDA failure")], [], id="two reasons"),
        pytest.param([failed("ann", ago_s=WINDOW_S), failed("bob")], [], id="long ago"),
        pytest.param([failed("ann", ago_s=CORDON_S + 9), failed("bob", ago_s=CORDON_S)], [], id="time ends it"),
        pytest.param(
            [failed("ann", ago_s=CORDON_S + 9), failed("bob", ago_s=CORDON_S + 5), failed("eve", ago_s=5)],
            ["n1"],
            id="tried again, it failed at once",
        ),
    ],
)
def test_two_users_and_one_reason_make_a_node_suspect(failures: list[NodeFailure], names: list[str]) -> None:
    assert cordoned(*failures) == names
    assert cordoned(*reversed(failures)) == names


def test_an_administrator_ends_it_and_newer_failures_begin_it_again() -> None:
    assert cordoned(failed("ann"), failed("bob"), n1=NOW_S - 30) == []
    assert cordoned(failed("ann"), failed("bob", ago_s=20), n1=NOW_S - 30) == []
    assert cordoned(failed("ann", ago_s=25), failed("bob", ago_s=20), n1=NOW_S - 30) == ["n1"]


def test_two_users_who_lie_about_every_node_take_a_tenth_of_the_pool() -> None:
    """And those that they took first: newer lies do not push a cordon that is in force out."""
    lies = [failed(owner, f"n{n:02}", ago_s=1000.0 - n) for n in range(40) for owner in ("eve", "mallory")]
    assert cordoned(*lies) == ["n00", "n01", "n02", "n03"]
    assert cordoned(*lies, nodes=5) == ["n00"]
    assert cordoned(*lies, nodes=1) == []


@pytest.mark.parametrize(
    ("nodes", "share", "most"), [(0, 0.1, 0), (1, 0.1, 0), (2, 0.1, 1), (100, 0.1, 10), (9, 0.0, 0)]
)
def test_how_many_nodes_may_be_cordoned(nodes: int, share: float, most: int) -> None:
    assert most_cordons(nodes, share) == most
    assert most_cordons(100_000, 0.1) == MOST_NODES


def test_a_cordon_says_who_and_until_when() -> None:
    (cordon,) = suspect_nodes([failed("ann"), failed("bob", ago_s=50), failed("ann", ago_s=10)], {}, 9, NOW_S)
    assert (cordon.reason, cordon.users, cordon.since_s, cordon.until_s) == (ECC, 2, NOW_S - 50, NOW_S - 10 + CORDON_S)


def test_an_ended_cordon_is_known_by_its_time_and_other_failures_there_are_not() -> None:
    failures = (failed("ann", "n1", ago_s=100), failed("bob", "n1", ago_s=50), failed("ann", "n2", ago_s=10))
    assert ended_cordons(failures, {"n1": NOW_S}) == {"n1": frozenset({NOW_S - 50 + CORDON_S})}
    assert ended_cordons(failures, {"n1": NOW_S - 70}) == {"n1": frozenset({NOW_S - 100 + CORDON_S})}
