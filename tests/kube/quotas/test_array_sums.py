"""What the jobs of each array hold and wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import Job, Phase
from coda.policy.arrays import Array
from coda_kube.quotas.array_sums import ArrayAmounts, ArraySums
from tests.builders import job, planned, running


def borrowing(one: Job) -> Job:
    assert one.placement is not None
    return replace(one, placement=replace(one.placement, borrows=True))


GANG = job("gang", gpus=2, cores=8, replicas=2)
SMALL = job("small", gpus=1, cores=3)
POD = job("pod", gpus=0, cores=1.5)


@pytest.mark.parametrize(
    ("one", "array", "expected"),
    [
        pytest.param(GANG, Array.LARGE, ArrayAmounts(waiting=1, waiting_gpus=4, waiting_cpu_m=16_000), id="waits"),
        pytest.param(running(GANG, "n1", "n2"), Array.LARGE, ArrayAmounts(1, 4, 16_000), id="runs"),
        pytest.param(planned(SMALL, "n1"), Array.SMALL, ArrayAmounts(1, 1, 3000), id="has a place, and no pods yet"),
        pytest.param(borrowing(running(POD, "n1")), Array.CPU, ArrayAmounts(1, 0, 1500, 1500), id="borrows"),
        pytest.param(planned(SMALL, "n1", phase=Phase.SUSPENDED), Array.SMALL, ArrayAmounts(), id="neither"),
    ],
)
def test_a_job_is_counted_in_its_array(one: Job, array: Array, expected: ArrayAmounts) -> None:
    use = ArraySums()
    use.count(None, one)
    assert use.amounts_by_array == dict.fromkeys(Array, ArrayAmounts()) | {array: expected}


VERSIONS = st.sampled_from(
    [None, GANG, running(GANG, "n1", "n2"), SMALL, planned(SMALL, "n1", phase=Phase.RESTARTING), running(POD, "n1")]
)


@given(st.lists(st.tuples(st.sampled_from("abc"), VERSIONS), max_size=20))
def test_counting_changes_gives_the_sum_over_the_jobs_that_are_left(changes: list[tuple[str, Job | None]]) -> None:
    use, left = ArraySums(), dict[str, Job]()
    for name, after in changes:
        use.count(left.pop(name, None), after)
        if after is not None:
            left[name] = after
    again = ArraySums()
    for one in left.values():
        again.count(None, one)
    assert use.amounts_by_array == again.amounts_by_array
