"""The cores a job starts with."""

from __future__ import annotations

import pytest

from coda.policy import CoresRule, starting_cores
from tests.builders import node

NODES = (node("a", gpus=8, cores=28), node("b", gpus=4, cores=28), node("c", gpus=0, cores=28))


@pytest.mark.parametrize(
    ("rule", "gpus", "expected"),
    [
        pytest.param(CoresRule.ASKED, 2, 6, id="as asked"),
        pytest.param(CoresRule.TUNED, 3, 9, id="the allocator's start point"),
        pytest.param(CoresRule.TUNED, 2, 7, id="no more than the GPUs' part of the node with fewest cores per GPU"),
        pytest.param(CoresRule.TUNED, 9, 9, id="the start point where no node has so many GPUs"),
        pytest.param(CoresRule.PROPORTIONAL, 2, 7, id="its GPUs' part of the node with fewest cores per GPU"),
        pytest.param(CoresRule.PROPORTIONAL, 1, 3, id="rounded down"),
        pytest.param(CoresRule.PROPORTIONAL, 8, 28, id="of the nodes that have so many GPUs"),
        pytest.param(CoresRule.PROPORTIONAL, 9, 6, id="as asked where no node has so many"),
        pytest.param(CoresRule.PROPORTIONAL, 0, 6, id="CPU jobs as asked"),
        pytest.param(CoresRule.TUNED, 0, 6, id="CPU jobs are not tuned"),
    ],
)
def test_cores_of_a_rank(rule: CoresRule, gpus: int, expected: int) -> None:
    assert starting_cores(rule, asked=6, gpus=gpus, tuned=9, nodes=NODES) == expected


def test_a_rank_has_at_least_one_core() -> None:
    thin = [node("thin", gpus=16, cores=8)]
    assert starting_cores(CoresRule.PROPORTIONAL, asked=4, gpus=1, tuned=4, nodes=thin) == 1


@pytest.mark.parametrize(
    ("tuned", "gpus", "expected"),
    [
        pytest.param(5, 1, 3, id="no more than the GPU array has for one GPU, rounded down"),
        pytest.param(24, 4, 14, id="nor for four"),
        pytest.param(8, 4, 8, id="less stays as it is"),
    ],
)
def test_a_tuned_job_starts_within_its_array(tuned: int, gpus: int, expected: int) -> None:
    found = starting_cores(CoresRule.TUNED, asked=2, gpus=gpus, tuned=tuned, nodes=NODES, reserved_per_gpu=3.5)
    assert found == expected


def test_two_jobs_of_half_a_node_fit_it() -> None:
    cores = starting_cores(CoresRule.TUNED, asked=4, gpus=4, tuned=20, nodes=NODES, reserved_per_gpu=4.0)
    assert 2 * cores <= 28


@pytest.mark.parametrize(("best", "expected"), [(5, 5), (7, 7), (9, 7), (0, 7)])
def test_at_best_a_rank_has_its_part_of_the_node_at_most(best: int, expected: int) -> None:
    assert starting_cores(CoresRule.AT_BEST, asked=6, gpus=2, tuned=9, nodes=NODES, best=best) == expected
