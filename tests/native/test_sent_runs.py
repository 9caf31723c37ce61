"""Orders and outcomes of runs go to other processes and come back, compiled or not."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from coda.policy import ArraysConfig, Level, PolicyConfig
from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.runs import RunOrder, run_order
from coda_sim.workload import MonthConfig, WorkloadSource
from coda_sim.workload.month_config import lengthened, widened

SMALL = lengthened(widened(MonthConfig(), 0.025), 1 / 60)
ORDER = RunOrder(source=WorkloadSource(month=SMALL), cluster=SMALL.cluster, profiles="paper", policy="coda", seed=1)
PLANNER = PolicyConfig(levels=(Level(name="rack", label="rack"),), arrays=ArraysConfig(large_share=0.3))


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize(
    "order", [ORDER, replace(ORDER, planner=PLANNER, costs=COSTS_BY_SETTING[CostSetting.FREE])], ids=["default", "all"]
)
def test_an_order_arrives_as_it_was_sent(order: RunOrder) -> None:
    assert sent(order) == order


def test_an_outcome_arrives_as_it_was_sent() -> None:
    outcome = run_order(ORDER)
    assert outcome.result.metrics["jobs_finished"]
    assert sent(outcome) == outcome
