"""Spare cores are lent to jobs that run faster with them, and to nobody beyond its best."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import JobId
from coda.policy.cores import Borrower, cores_with_loans


def borrower(name: str, own: int, best: int, *nodes: str) -> Borrower:
    return Borrower(job=JobId(name), nodes=nodes or ("a",), own=own, best=best)


@pytest.mark.parametrize(
    ("spare", "borrowers", "expected"),
    [
        pytest.param(9, [borrower("x", 3, 5)], [5], id="up to its best"),
        pytest.param(1, [borrower("x", 3, 5)], [4], id="what there is"),
        pytest.param(9, [borrower("x", 3, 2)], [3], id="a job that has more than its best keeps what is its own"),
        pytest.param(2, [borrower("x", 3, 6), borrower("y", 3, 4)], [5, 3], id="the farthest from its best first"),
        pytest.param(3, [borrower("x", 1, 8), borrower("y", 2, 8)], [3, 3], id="until they are level"),
        pytest.param(4, [borrower("x", 1, 4), borrower("y", 1, 4)], [3, 3], id="equal jobs share alike"),
        pytest.param(3, [borrower("x", 1, 4), borrower("y", 1, 4)], [3, 2], id="the first by id has the odd one"),
        pytest.param(5, [borrower("x", 1, 4, "a", "a")], [3], id="all ranks alike"),
        pytest.param(5, [borrower("x", 1, 4, "a", "b")], [1], id="as many as the scarcest of its nodes has"),
        pytest.param(-2, [borrower("x", 1, 4)], [1], id="nothing of a node that is over-committed"),
    ],
)
def test_who_is_lent_how_much(spare: int, borrowers: list[Borrower], expected: list[int]) -> None:
    cores = cores_with_loans({"a": spare}, borrowers)
    assert [cores[one.job] for one in borrowers] == expected


BORROWERS = st.lists(
    st.builds(
        borrower, st.sampled_from("uvwxyz"), st.integers(1, 6), st.integers(1, 9), st.sampled_from("ab"),
        st.sampled_from("ab"),
    ),
    unique_by=lambda one: one.job,
)  # fmt: skip
SPARE = st.fixed_dictionaries({"a": st.integers(0, 20), "b": st.integers(0, 20)})


@given(SPARE, BORROWERS, st.data())
def test_loans_are_within_what_is_spare_and_leave_nothing_that_helps(
    spare: dict[str, int], borrowers: list[Borrower], data: st.DataObject
) -> None:
    cores = cores_with_loans(spare, borrowers)
    left = {
        node: spare[node] - sum((cores[one.job] - one.own) * one.nodes.count(node) for one in borrowers)
        for node in spare
    }
    assert min(left.values()) >= 0
    for one in borrowers:
        assert one.own <= cores[one.job] <= max(one.own, one.best)
        if cores[one.job] < one.best:
            assert any(left[node] < one.nodes.count(node) for node in one.nodes)
    assert cores_with_loans(spare, data.draw(st.permutations(borrowers))) == cores


@given(SPARE, BORROWERS)
def test_who_is_nearer_to_its_best_gains_nothing_that_a_farther_one_on_its_nodes_could_have(
    spare: dict[str, int], borrowers: list[Borrower]
) -> None:
    """Max-min fair: taking the last core from one and giving it to another would only turn the two round."""
    cores = cores_with_loans(spare, borrowers)
    for one in borrowers:
        for other in borrowers:
            if sorted(one.nodes) == sorted(other.nodes) and cores[one.job] < one.best and cores[other.job] > other.own:
                assert (cores[other.job] - 1) / other.best <= cores[one.job] / one.best
