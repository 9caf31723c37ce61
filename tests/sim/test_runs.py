"""What an order sets in the planner's configuration, and what a run returns besides its outcome."""

from dataclasses import replace

from coda.policy import PolicyConfig
from coda.policy.config import Component
from coda_sim.runs import RunOrder, config_of, run_order, run_with_log
from coda_sim.workload import MonthConfig, WorkloadSource

SMALL = MonthConfig(days=1, gpu_jobs=12, cpu_jobs=12, cluster="1x8x28")
ORDER = RunOrder(
    source=WorkloadSource(month=SMALL), cluster=SMALL.cluster, profiles="paper", policy="coda", seed=1, warmup_s=3600.0
)


def test_an_orders_policy_and_parts_are_set_in_its_planners_numbers() -> None:
    numbers = PolicyConfig(refusal_holders=3, policy="drf")
    found = config_of("coda", ["arrays"], planner=numbers)
    assert found == PolicyConfig(refusal_holders=3, policy="coda", without=frozenset({Component.ARRAYS}), levels=())
    assert config_of("coda", racks=2, planner=numbers).levels == numbers.levels
    assert config_of("coda") == config_of("coda", planner=PolicyConfig())


def test_a_run_returns_its_log_and_the_time_that_was_measured() -> None:
    outcome, log, window = run_with_log(ORDER)
    assert outcome.result.metrics == run_order(ORDER).result.metrics
    submits_s = [entry.gang.row.submit_s for entry in log.entries]
    assert (window.from_s, window.to_s) == (min(submits_s) + 3600, max(submits_s))


def test_the_months_numbers_are_the_orders() -> None:
    larger = replace(ORDER, source=WorkloadSource(month=replace(SMALL, cpu_jobs=20)))
    assert len(run_with_log(larger)[1].entries) == 32
