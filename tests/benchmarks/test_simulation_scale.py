from dataclasses import replace

import pytest

from simulation_scale import Measured, Point, measured, rows_of

MONTH = Measured(
    policy="coda", jobs=100, nodes=80, days=30, rounds=1, waiting_share=0, cpu_s=20, peak_rss_mib=250, ideal=1000
)


def test_a_point_has_the_months_load_on_every_node() -> None:
    month = Point(policy="coda", days=30, width=1)
    assert (month.jobs, month.nodes) == (100_000, 80)
    wide = Point(policy="coda", days=3, width=10)
    assert (wide.jobs, wide.nodes, len(wide.config.shape.groups)) == (100_000, 800, 2)


@pytest.mark.parametrize("policy", ["coda", "fifo-skip"])
def test_a_small_run_is_measured_and_the_same_every_time(policy: str) -> None:
    point = Point(policy=policy, days=1, width=0.05)
    one, other = measured(point), measured(point)
    assert (one.jobs, one.nodes, one.days, one.policy) == (167, 4, 1, policy)
    assert 167 <= one.rounds == other.rounds
    assert 0 <= one.waiting_share == other.waiting_share <= 1
    assert one.cpu_s > 0 < one.peak_rss_mib


def test_growth_is_measured_from_the_month_and_only_the_month_has_a_time() -> None:
    million = replace(MONTH, jobs=1000, nodes=2000, days=12, cpu_s=300, ideal=12_000)
    rows = {row.name: row for row in rows_of([million, MONTH])}
    growth = "time against ideal n log n"
    assert rows[f"coda: 1000 jobs, 2000 nodes: {growth}"].value == pytest.approx(300 / 20 / 12)
    assert rows[f"coda: 100 jobs, 80 nodes: {growth}"].value == 1
    assert [name for name, row in rows.items() if row.aim] == ["coda: 100 jobs, 80 nodes: CPU time"]
    assert [name for name, row in rows.items() if row.budget == "<= 500"] == ["coda: 100 jobs, 80 nodes: peak memory"]


def test_without_the_month_growth_is_measured_from_the_first_run() -> None:
    first, second = replace(MONTH, days=1, nodes=240), replace(MONTH, days=3, nodes=240, cpu_s=44, ideal=2000)
    values = [row.value for row in rows_of([first, second]) if row.name.endswith("n log n")]
    assert values == [1, pytest.approx(1.1)]
