"""Whom kube-scheduler may evict for a foreign pod: never a rank, and nobody for a node that the filter would refuse."""

from __future__ import annotations

import pytest

from tests.extender.guards import Known
from tests.extender.objects import placement, pod_json, rank_json

URGENT = pod_json("urgent", gpus=4)


@pytest.fixture
def full(known: Known) -> Known:
    """A foreign pod of 6 GPUs on n1, and one of 8 on n2."""
    known.pod(None, pod_json("six", gpus=6, node="n1"))
    known.pod(None, pod_json("eight", gpus=8, node="n2"))
    return known


def test_foreign_pods_may_be_evicted(full: Known) -> None:
    assert full.evictable_nodes(URGENT, n1=("uid-six",), n2=("uid-eight",)) == ["n1", "n2"]


def test_no_rank_is_evicted_even_beside_others(full: Known) -> None:
    full.job("gang", gpus=2, phase="Running", placement=placement("n1"))
    rank = rank_json("gang", 0, "n1")
    full.pod(None, rank | {"spec": rank["spec"] | {"nodeName": "n1"}})
    uid = rank["metadata"]["uid"]
    assert full.evictable_nodes(URGENT, n1=("uid-six", uid), n2=("uid-eight",)) == ["n2"]
    assert full.evictable_nodes(URGENT, n1=(uid,)) == []


def test_nobody_is_evicted_for_a_node_whose_capacity_is_withheld(full: Known) -> None:
    full.job("gang", gpus=8, placement=placement("n1"))
    assert full.evictable_nodes(URGENT, n1=("uid-six",), n2=("uid-eight",)) == ["n2"]


def test_pods_in_flight_count_beside_withheld_capacity(full: Known) -> None:
    full.job("gang", gpus=1, placement=placement("n1"))
    all_but_one = pod_json("urgent", gpus=7)
    assert full.evictable_nodes(all_but_one, n1=("uid-six",)) == ["n1"]
    assert full.ask(pod_json("first", gpus=1), "n1").passed == ["n1"]
    assert full.evictable_nodes(all_but_one, n1=("uid-six",)) == []


@pytest.mark.parametrize("uid", ["uid-nobody", "uid-eight"])
def test_victims_that_are_unknown_or_elsewhere_are_not_evicted(full: Known, uid: str) -> None:
    assert full.evictable_nodes(URGENT, n1=(uid,)) == []


def test_nobody_is_evicted_on_an_unknown_node_or_while_changes_do_not_arrive(full: Known) -> None:
    assert full.evictable_nodes(URGENT, n9=("uid-six",)) == []
    full.in_touch = False
    assert full.evictable_nodes(URGENT, n1=("uid-six",)) == []


def test_a_rank_evicts_nobody(full: Known) -> None:
    full.job("gang", gpus=4, placement=placement("n1"))
    assert full.evictable_nodes(rank_json("gang", 0, "n1"), n1=("uid-six",)) == []
