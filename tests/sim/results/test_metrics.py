"""The measures of runs small enough to compute by hand."""

import pytest

from coda_sim.results.metrics import RunMetrics, metrics_of, wait_s, window_of
from coda_sim.results.series import series_of
from coda_sim.traces import Row
from tests.sim.simulating import only, simulated
from tests.sim.worlds import row

LAST = row("z9", gpus=0, cpus=1, submit_s=1000, duration_s=1)  # so that the window is 0 to 1000 s


def measured(*rows: Row, cluster: str) -> RunMetrics:
    log = simulated([*rows, LAST], cluster, traits=only("Transformer"))
    return metrics_of(log, window_of([0.0, 1000.0], warmup_s=0, drain_s=0))


def test_shares_of_time_and_of_gpus() -> None:
    # 4 GPUs; 3 held from 0 to 500 s, 2 from 500 to 700 s; the second job waits from 100 to 500 s
    first = row("a1", gpus=3, cpus=6, submit_s=0, duration_s=500)
    second = row("a2", gpus=2, cpus=4, submit_s=100, duration_s=200, user="u2")
    metrics = measured(first, second, cluster="1x4x16")
    assert metrics["gpu_active_all"] == pytest.approx((3 * 500 + 2 * 200) / 4000)
    assert metrics["gpu_active_queueing"] == pytest.approx(3 / 4)
    assert metrics["fragmentation"] == pytest.approx(1 / 4)
    assert metrics["cpu_active_all"] == pytest.approx((6 * 500 + 4 * 200) / 16_000)
    assert metrics["useful_gpu_hours_per_hour"] == pytest.approx((3 * 500 + 2 * 200) / 1000)
    assert metrics["gpu_wait_mean_s"] == pytest.approx(200)
    assert metrics["gpu_started_3min"] == 0.5
    assert metrics["gpu_jct_mean_s"] == pytest.approx((500 + 600) / 2)
    assert metrics["makespan_s"] == pytest.approx(1001)
    assert metrics["user_wait_p99_worst_s"] == pytest.approx(400)
    assert metrics["jain_users"] == pytest.approx((1 + 3) ** 2 / (2 * (1 + 9)))  # u1 has no wait, u2 400 s for 200 s


def test_idle_gpus_on_a_node_without_cores_are_lost_to_cores() -> None:
    hog = row("a1", gpus=0, cpus=8, submit_s=0, duration_s=600)
    metrics = measured(hog, row("a2", gpus=1, cpus=1, submit_s=100, duration_s=10), cluster="1x4x8")
    assert metrics["fragmentation_cores"] == metrics["fragmentation"] == pytest.approx(1.0)


def test_idle_gpus_on_several_nodes_are_lost_to_scatter() -> None:
    single = [row(f"a{number}", gpus=3, cpus=1, submit_s=0, duration_s=600) for number in range(2)]
    metrics = measured(*single, row("b1", gpus=2, cpus=1, submit_s=100, duration_s=10), cluster="2x4x8")
    assert metrics["fragmentation_scatter"] == metrics["fragmentation"] == pytest.approx(2 / 8)


def test_what_lies_before_the_window_does_not_count() -> None:
    log = simulated([row("a1", gpus=4, duration_s=100), LAST], "1x4x8", traits=only("Transformer"))
    metrics = metrics_of(log, window_of([0.0, 1000.0], warmup_s=50, drain_s=850))
    assert metrics["gpu_active_all"] == pytest.approx(50 / 100)
    assert metrics["gpu_wait_mean_s"] is None
    assert metrics["jobs_finished"] == 2


def test_the_plots_show_what_the_measures_say() -> None:
    log = simulated([row("a1", gpus=3, cpus=6, duration_s=500), LAST], "1x4x16", traits=only("Transformer"))
    window = window_of([0.0, 1000.0], warmup_s=0, drain_s=0)
    series, metrics = series_of(log, window), metrics_of(log, window)
    for curve, name in ((series.gpu_active, "gpu_active_all"), (series.gpu_util, "gpu_util_all")):
        assert sum(curve) / len(curve) == pytest.approx(metrics[name])
    assert sum(series.cpu_active) / len(series.cpu_active) == pytest.approx(metrics["cpu_active_all"])


def test_the_curve_of_waiting_jobs_has_the_area_of_their_waits() -> None:
    rows = [row(f"a{number}", gpus=4, duration_s=100, submit_s=10.0 * number) for number in range(4)]
    log = simulated([*rows, row("c1", gpus=0, cpus=16, duration_s=100, submit_s=50), LAST], "1x4x16")
    series = series_of(log, window_of([0.0, 1000.0], warmup_s=0, drain_s=0))
    waits_s = sum(wait_s(entry) or 0.0 for entry in log.entries if entry.gang.gpus)
    assert waits_s > 300
    assert sum(series.gpu_jobs_waiting) * series.bucket_s == pytest.approx(waits_s)
    later = series_of(log, window_of([0.0, 1000.0], warmup_s=100, drain_s=850))
    assert sum(later.gpu_jobs_waiting) * later.bucket_s == pytest.approx(2 * 50)  # one runs
