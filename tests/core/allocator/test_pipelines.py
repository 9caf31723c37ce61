"""Jobs whose speed their GPUs do not show at once. A short version of `benchmarks/search_on_pipelines.py`."""

from __future__ import annotations

import statistics

import pytest

from tests.core.allocator.pipelines import TRIED, Piped, piped

pytestmark = pytest.mark.heavy

RUNS = range(100, 103)  # one of each start; the rules were made on others


def jobs(name: str) -> list[Piped]:
    return [piped(name, TRIED[name], run) for run in RUNS]


@pytest.mark.parametrize(
    "name",
    [
        "a queue of 30 s",
        "a queue of 120 s",
        "slow storage for 10-30 min in turn",
        "a cold first epoch of 90 min",
        "CPU time per step grows by a tenth each hour",
        "rollouts of 60 s, training 120 s",
        "rollouts of 240 s, training 300 s",
        "evaluation of 120 s every 20 min",
        "8 GPUs, evaluation of 60 s every 9 min",
    ],
)
def test_tuning_costs_a_job_next_to_nothing(name: str) -> None:
    assert statistics.fmean(job.lost for job in jobs(name)) <= 0.02


def test_cores_that_idle_are_freed() -> None:
    found = jobs("a pipeline without a queue")
    assert statistics.fmean(job.kept for job in found) <= 0.85
    assert max(job.lost for job in found) <= 0.01
