"""Slowdowns that can be computed by hand."""

import pytest

from coda_sim.results.slowdown import slowdown_measures
from tests.sim.simulating import only, simulated
from tests.sim.worlds import row


def test_each_size_has_its_mean_and_short_jobs_count_as_ten_seconds() -> None:
    first = row("a1", gpus=8, cpus=16, duration_s=100)
    second = row("a2", gpus=1, cpus=2, submit_s=0.5, duration_s=50)  # waits 99.5 s
    third = row("a3", gpus=1, cpus=2, submit_s=100, duration_s=1)
    log = simulated([first, second, third], "1x8x16", traits=only("Transformer"))
    found = slowdown_measures(log.entries)
    assert found["gpu_slowdown_8_up"] == pytest.approx(1)
    assert found["gpu_slowdown_1"] == pytest.approx((149.5 / 50 + 1) / 2)  # not 1 s of a1 job: bounded
    assert found["gpu_slowdown_2_7"] is None
    assert found["gpu_slowdown_mean"] == pytest.approx((1 + 149.5 / 50 + 1) / 3)


def test_without_jobs_there_is_none() -> None:
    assert set(slowdown_measures([]).values()) == {None}
