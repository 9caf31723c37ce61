"""Invariants (a) and (b): a row that over-commits a node, and the rows that only look like it."""

from __future__ import annotations

import pytest

from coda_kube.objects.json_types import Json
from coda_lab.checker.capacity import fitted_after, loads_on, overloads
from coda_lab.checker.watch import Kind, put
from tests.lab.checker.checker_objects import LONG_AGO, NOW, found_in, job, node, placement, pod, rank_pod, view_of

PAST_COMMIT = "2026-03-01T12:00:30Z"

OVER = "node n1: bound pods ask for 9 nvidia.com/gpu, allocatable is 8"
PLANNED_OVER = "node n1: bound pods and released plans ask for {} nvidia.com/gpu, allocatable is 8"


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        pytest.param([node(), pod("a", gpus=8), pod("b", gpus=1)], [("a", OVER)], id="one GPU too many"),
        pytest.param([node(), pod("a", gpus=8), pod("b", gpus=1, deleted=NOW)], [("a", OVER)], id="terminating counts"),
        pytest.param([node(), pod("a", gpus=8), pod("b", gpus=1, phase="Succeeded")], [], id="ended does not"),
        pytest.param([node(), pod("a", gpus=8), pod("b", gpus=1, node=None)], [], id="unbound does not"),
        pytest.param([node(), pod("a", gpus=4), pod("b", gpus=4)], [], id="exactly full"),
        pytest.param([pod("a", gpus=9)], [], id="a node that is gone has nothing to exceed"),
        pytest.param(
            [node(gpus=0), pod("a", gpus=1)],
            [("a", "node n1: bound pods ask for 1 nvidia.com/gpu, allocatable is 0")],
            id="a resource the node lacks",
        ),
    ],
)
def test_a_nodes_are_never_over_committed(things: list[Json], expected: list[tuple[str, str]]) -> None:
    assert found_in(view_of(*things)) == expected


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        pytest.param(
            [pod("a", gpus=6), job(placement=placement("n1"), gpus=4)],
            [("b", PLANNED_OVER.format(10))],
            id="released plan on taken GPUs",
        ),
        pytest.param(
            [job(placement=placement("n1"), gpus=5), job("k", placement=placement("n1", job="k"), gpus=5)],
            [("b", PLANNED_OVER.format(10))],
            id="two plans on the same GPUs",
        ),
        pytest.param(
            [job(placement=placement("n1", "n1", "n1"), gpus=4)],
            [("b", PLANNED_OVER.format(12))],
            id="one plan of too many ranks",
        ),
        pytest.param(
            [pod("a", gpus=6), job(placement=placement("n1", state="Committed"), gpus=4)], [], id="only committed"
        ),
        pytest.param([pod("a", gpus=6), job(attempt=2, placement=placement("n1"), gpus=4)], [], id="older attempt"),
        pytest.param([pod("a", gpus=6), job(generation=2, placement=placement("n1"), gpus=4)], [], id="edited since"),
        pytest.param(
            [
                pod("a", gpus=6),
                job(phase="Launched", generation=2, placement=placement("n1"), gpus=4),
                rank_pod(0, node=None, gpus=4),
            ],
            [("b", PLANNED_OVER.format(10))],
            id="edited once launched: its shape stays",
        ),
        pytest.param(
            [pod("a", gpus=6), job(phase="Restarting", placement=placement("n1"), gpus=4)], [], id="being rolled back"
        ),
        pytest.param([pod("a", gpus=6), job(placement=placement("n1"), gpus=4, suspend=True)], [], id="suspended"),
        pytest.param(
            [pod("a", gpus=8), job(placement=placement("n1", gpus=[3]), gpus=1)],
            [("b", "node n1: bound pods and released plans ask for 1 coda.scheduler/gpu-3, allocatable is 0")],
            id="a seat where there is none takes no GPU",
        ),
        pytest.param([pod("a", gpus=6), job(placement=placement("n1"), gpus=4, deleted=True)], [], id="being deleted"),
        pytest.param(
            [job(phase="Launched", placement=placement("n1"), gpus=8), rank_pod(0, gpus=8)],
            [],
            id="a bound rank is not counted twice",
        ),
        pytest.param(
            [pod("a", gpus=6), job(phase="Launched", placement=placement("n1"), gpus=4)],
            [],
            id="after Launched a missing pod is never made",
        ),
        pytest.param(
            [
                pod("a", gpus=6),
                job(phase="Launched", placement=placement("n1"), gpus=4),
                rank_pod(0, node=None, gpus=4),
            ],
            [("b", PLANNED_OVER.format(10))],
            id="after Launched an unbound pod still wants its place",
        ),
        pytest.param(
            [
                pod("a", gpus=6, scheduler="default-scheduler", bound=PAST_COMMIT),
                job(placement=placement("n1"), gpus=4),
            ],
            [],
            id="another scheduler took the place after the commit",
        ),
        pytest.param(
            [pod("a", gpus=6, scheduler="default-scheduler", bound=LONG_AGO), job(placement=placement("n1"), gpus=4)],
            [("b", PLANNED_OVER.format(10))],
            id="another scheduler's pod was there before the commit",
        ),
    ],
)
def test_b_released_plans_fit_beside_bound_pods(things: list[Json], expected: list[tuple[str, str]]) -> None:
    assert found_in(view_of(node(), *things), "ab") == expected


def test_a_node_that_shrinks_under_its_pods_is_not_charged_but_a_new_pod_on_it_is() -> None:
    view = view_of(node(gpus=8), pod("a", gpus=6))
    fitted = fitted_after(loads_on(view, "n1"), {})
    put(view, Kind.NODE, node(gpus=4))
    assert overloads(loads_on(view, "n1"), fitted) == []
    fitted = fitted_after(loads_on(view, "n1"), fitted)
    put(view, Kind.POD, pod("b", gpus=1))
    assert [each.sentence for each in overloads(loads_on(view, "n1"), fitted)] == [
        "node n1: bound pods ask for 7 nvidia.com/gpu, allocatable is 4"
    ]


def test_a_load_that_left_a_shrunk_node_may_not_come_back() -> None:
    view = view_of(node(gpus=8), pod("a", gpus=6))
    fitted = fitted_after(loads_on(view, "n1"), {})
    put(view, Kind.NODE, node(gpus=4))
    view.drop_pod("uid-a")
    fitted = fitted_after(loads_on(view, "n1"), fitted)
    put(view, Kind.POD, pod("a", gpus=6))
    assert len(overloads(loads_on(view, "n1"), fitted)) == 1
