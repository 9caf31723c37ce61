"""What becomes of GPUs and cores, by node and in sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda_extender.guard.cluster_use import ClusterUse, NodeUse, use_of
from tests.builders import node, resources
from tests.extender.guards import Known
from tests.extender.objects import placement, pod_json


@pytest.mark.parametrize(
    ("free_gpus", "free_cores", "schedulable", "expected"),
    [
        pytest.param(8, 48, True, NodeUse(gpus_on_empty_nodes=8, cpu_m_free=48_000), id="an empty node"),
        pytest.param(
            3,
            20,
            True,
            NodeUse(gpus_used=5, gpus_beside_others=3, cpu_m_used=28_000, cpu_m_free=20_000),
            id="beside others",
        ),
        pytest.param(
            3,
            1.5,
            True,
            NodeUse(gpus_used=5, gpus_without_cores=2, gpus_beside_others=1, cpu_m_used=46_500, cpu_m_free=1500),
            id="one has a core",
        ),
        pytest.param(
            8, -2, True, NodeUse(gpus_without_cores=8, cpu_m_used=48_000), id="more cores kept than there are"
        ),
        pytest.param(
            3,
            20,
            False,
            NodeUse(gpus_used=5, gpus_out_of_service=3, cpu_m_used=28_000, cpu_m_out_of_service=20_000),
            id="takes no pods",
        ),
        pytest.param(-1, 48, True, NodeUse(gpus_used=8, cpu_m_free=48_000), id="more GPUs kept than there are"),
    ],
)
def test_every_gpu_and_core_is_in_one_state(
    free_gpus: int, free_cores: float, schedulable: bool, expected: NodeUse
) -> None:
    found = use_of(node("n", gpus=8, cores=48, schedulable=schedulable), resources(gpus=free_gpus, cores=free_cores))
    assert found == expected
    assert sum(found) == 8 + 48_000


USES = st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 8), st.integers(0, 8), st.booleans())


@given(st.lists(USES, max_size=20))
def test_the_sums_are_those_of_the_nodes_that_are_left(changes: list[tuple[str, int | None, int, bool]]) -> None:
    use, left = ClusterUse(), dict[str, NodeUse]()
    for name, gpus, free, schedulable in changes:
        left.pop(name, None)
        built = None if gpus is None else node(name, gpus=gpus, cores=8, schedulable=schedulable)
        use.set_node(name, built, resources(gpus=free, cores=free))
        if built is not None:
            left[name] = use_of(built, resources(gpus=free, cores=free))
    assert use.sums == NodeUse(*[sum(each) for each in zip(NodeUse(), *left.values(), strict=True)])


def test_the_guard_counts_pods_and_what_is_kept_for_gangs() -> None:
    known = Known()
    for name in ("n1", "n2", "n3"):
        known.node(name)
    known.pod(None, pod_json("foreign", gpus=2, cpu="47", node="n1"))
    known.job("gang", gpus=8, placement=placement("n2"))
    assert known.guard.cluster_use() == NodeUse(
        gpus_used=10,
        gpus_without_cores=5,
        gpus_beside_others=1,
        gpus_on_empty_nodes=8,
        cpu_m_used=51_000,
        cpu_m_free=93_000,
    )
