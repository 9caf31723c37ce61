"""How ArrayQuotas divide nodes: each its own, the older one what two select, the rest as the installation says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import Node
from coda.model.gpu_products import PRODUCT_LABEL
from coda.model.world import ArrayQuota
from coda.policy import ArraysConfig
from coda.policy.arrays import reserved_cpu_m
from coda.policy.division import divide
from tests.builders import node

ARRAYS = ArraysConfig(reserve_cores_per_gpu=3, large_share=0.5)
OLD, A100, REST = (
    node("old", gpus=4, cores=32, labels={"gpu": "v100", "zone": "a"}),
    node("new", gpus=8, cores=64, labels={"gpu": "a100", "zone": "a"}),
    node("rest", gpus=8, cores=64),
)
NODES = (OLD, A100, REST)


def test_without_quotas_the_installation_divides_all_nodes() -> None:
    division = divide(NODES, (), ARRAYS)
    assert division.quotas == ["", "", ""]
    assert division.reserves_cpu_m == [12_000, 24_000, 24_000]
    assert division.is_large == [False, True, True]  # 10 of the 20 GPUs


@pytest.mark.parametrize(
    ("quota", "reserve_cpu_m", "is_large"),
    [
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}), 24_000, True, id="as installed"),
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}, large_gpus=0), 24_000, False, id="nothing large"),
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}, large_gpus=9), 24_000, True, id="more than it has"),
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}, large_share=0.0), 24_000, False, id="a share of 0"),
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}, large_share=1.0), 24_000, True, id="all"),
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}, reserve_cores_per_gpu=0), 0, True, id="no cores"),
        pytest.param(ArrayQuota(name="q", selector={"gpu": "a100"}, reserve_cores_per_gpu=9), 64_000, True, id="all"),
    ],
)
def test_a_quota_divides_the_nodes_that_it_selects(quota: ArrayQuota, reserve_cpu_m: int, is_large: bool) -> None:
    division = divide(NODES, (quota,), ARRAYS)
    assert division.quotas == ["", "q", ""]
    assert (division.reserves_cpu_m[1], division.is_large[1]) == (reserve_cpu_m, is_large)
    assert (division.reserves_cpu_m[0], division.is_large[0]) == (12_000, False)  # 6 of the other 12 GPUs: `rest`
    assert (division.reserves_cpu_m[2], division.is_large[2]) == (24_000, True)


def test_the_older_quota_has_a_node_that_two_select() -> None:
    young = ArrayQuota(name="a", created="2026-02-01", selector={"gpu": "a100"}, reserve_cores_per_gpu=1)
    old = ArrayQuota(name="b", created="2026-01-01", selector={"zone": "a"}, reserve_cores_per_gpu=2)
    assert divide(NODES, (young, old), ARRAYS).quotas == ["b", "b", ""]
    twin = ArrayQuota(name="a", created="2026-01-01", selector={"gpu": "a100"})
    assert divide(NODES, (old, twin), ARRAYS).quotas == ["b", "a", ""]


quotas = st.builds(
    ArrayQuota,
    name=st.sampled_from("abc"),
    created=st.sampled_from(("1", "2")),
    selector=st.sampled_from(({}, {"gpu": "a100"}, {"zone": "a"})),
    reserve_cores_per_gpu=st.none() | st.floats(0, 1024),
    large_gpus=st.none() | st.integers(0, 30),
    large_share=st.none() | st.floats(0, 1),
)


@given(
    st.lists(quotas, max_size=3, unique_by=lambda quota: quota.name),
    st.permutations(range(3)),
    st.permutations(range(3)),
)
def test_the_order_of_nodes_and_quotas_changes_nothing(
    found: list[ArrayQuota], node_order: list[int], quota_order: list[int]
) -> None:
    def by_name(nodes: list[Node], quotas: list[ArrayQuota]) -> dict[str, tuple[str, int, bool]]:
        division = divide(nodes, quotas, ARRAYS)
        rows = zip(nodes, division.quotas, division.reserves_cpu_m, division.is_large, strict=True)
        return {one.name: (quota, reserve, is_large) for one, quota, reserve, is_large in rows}

    divided = by_name(list(NODES), found)
    shuffled = [found[number] for number in quota_order if number < len(found)]
    assert by_name([NODES[number] for number in node_order], shuffled) == divided
    assert all(reserve <= one.allocatable.cpu_m for one in NODES for reserve in (divided[one.name][1],))
    assert reserved_cpu_m(REST.allocatable, 3) == divided["rest"][1] or divided["rest"][0]


MIXED = [
    *(node(f"a100-{number}", labels={PRODUCT_LABEL: "A100"}) for number in range(7)),
    *(node(f"h100-{number}", labels={PRODUCT_LABEL: "H100"}) for number in range(3)),
]


def test_names_do_not_decide_which_gpu_products_large_jobs_get() -> None:
    """By name, all large nodes of the ten were A100 nodes, and small jobs filled the H100 nodes."""
    is_large = divide(MIXED, (), ArraysConfig(large_share=0.7)).is_large
    assert (sum(is_large[:7]), sum(is_large[7:])) == (5, 2)
    assert divide(MIXED[::-1], (), ArraysConfig(large_share=0.7)).is_large == is_large[::-1]
    assert sum(divide(MIXED, (ArrayQuota(name="q", large_gpus=24),), ARRAYS).is_large) == 3  # as few nodes as before


def test_larger_nodes_are_for_large_jobs_first_whatever_their_product() -> None:
    small = node("a10", gpus=4, labels={PRODUCT_LABEL: "A10"})
    assert divide((small, *MIXED[:2]), (), ArraysConfig(large_share=0.8)).is_large == [False, True, True]


@pytest.mark.parametrize("labels", [{}, {PRODUCT_LABEL: "A100"}])
def test_nodes_of_one_product_are_divided_by_name(labels: dict[str, str]) -> None:
    nodes = [node(f"n{number}", labels=labels if number % 2 else {}) for number in range(4)]
    assert divide(nodes, (), ARRAYS).is_large == [True, True, False, False]
