"""Why GPUs are idle while a job waits: each cause on its own, and the sum on whole runs."""

from dataclasses import replace
from random import Random

import pytest

from coda_sim.engine import RunLog
from coda_sim.engine.cluster import Cluster
from coda_sim.engine.idle_causes import RankCounts, RankRequest
from coda_sim.results.metrics import RunMetrics, metrics_of, window_of
from coda_sim.traces import Row
from coda_sim.workload import MonthConfig
from coda_sim.workload.cluster_shape import shape_from_text
from coda_sim.workload.month import coda_month
from tests.sim.simulating import only, simulated_under
from tests.sim.worlds import row

LAST = row("z9", gpus=0, cpus=1, submit_s=1000, duration_s=1)  # so that the window is 0 to 1000 s
CAUSES = ("cores", "scatter", "memory", "quota")


def measured(log: RunLog) -> RunMetrics:
    return metrics_of(log, window_of([0.0, 1000.0], warmup_s=0, drain_s=0))


def shares(*rows: Row, cluster: str, policy: str = "fifo-skip") -> dict[str, float]:
    """The causes that have a share of the GPUs, with that share."""
    metrics = measured(simulated_under(policy, [*rows, LAST], cluster, traits=only("Transformer")))
    found = {cause: metrics[f"fragmentation_{cause}"] or 0.0 for cause in CAUSES}
    assert sum(found.values()) == pytest.approx(metrics["fragmentation"] or 0.0)
    return {cause: share for cause, share in found.items() if share}


def with_memory(one: Row, gib: float) -> Row:
    return replace(one, memory_gib=gib)


def test_a_job_without_memory_leaves_gpus_idle_for_want_of_memory() -> None:
    hog = with_memory(row("a1", gpus=0, duration_s=600), 64)
    late = with_memory(row("a2", submit_s=100, duration_s=10), 16)
    assert shares(hog, late, cluster="1x4x8x72") == {"memory": 1.0}
    assert shares(hog, late, cluster="1x4x8x80") == {}


def test_without_a_limit_nobody_lacks_memory() -> None:
    hog = with_memory(row("a1", gpus=0, duration_s=600), 64)
    assert shares(hog, with_memory(row("a2", submit_s=100), 16), cluster="1x4x8") == {}


def test_what_lacks_cores_and_memory_lacks_cores_first() -> None:
    hog = with_memory(row("a1", gpus=0, cpus=8, duration_s=600), 64)
    late = with_memory(row("a2", submit_s=100, duration_s=10), 16)
    assert shares(hog, late, cluster="1x4x8x72") == {"cores": 1.0}


def test_a_queue_that_blocks_keeps_gpus_idle_though_a_job_would_fit() -> None:
    first = row("a1", gpus=3, duration_s=600)
    large, small = row("a2", gpus=4, submit_s=100, duration_s=10), row("a3", submit_s=100, duration_s=10)
    assert shares(first, large, small, cluster="1x4x8", policy="fifo-strict") == {
        "quota": pytest.approx(500 / 510 / 4)  # while the large one runs, the small one waits and nothing is idle
    }
    assert shares(first, large, small, cluster="1x4x8") == {"scatter": pytest.approx(490 / 500 / 4)}


def test_a_gang_that_lacks_the_cores_of_one_rank_leaves_all_its_nodes_idle_for_want_of_cores() -> None:
    hog = row("a1", gpus=0, cpus=8, duration_s=600)
    gang = row("a2", gpus=4, cpus=4, nodes=2, submit_s=100, duration_s=10)
    assert shares(hog, gang, cluster="2x2x8") == {"cores": 1.0}


def test_a_gang_with_too_few_gpus_in_all_is_scattered() -> None:
    one = row("a1", gpus=1, duration_s=600)
    gang = row("a2", gpus=4, cpus=4, nodes=2, submit_s=100, duration_s=10)
    assert shares(one, gang, cluster="2x2x8") == {"scatter": 3 / 4}


@pytest.mark.parametrize("policy", ["fifo-skip", "drf", "best-fit"])
def test_who_skips_keeps_no_gpu_from_a_job_that_fits(policy: str) -> None:
    rows = coda_month(MonthConfig(days=1, gpu_jobs=200, cpu_jobs=600), seed=7)
    log = simulated_under(policy, rows, "6x8x28,8x4x28")
    kept = log.trail.idle_by_cause[2]
    assert any(log.trail.waiting_gpu_jobs)
    assert max(kept) == 0


@pytest.mark.parametrize("seed", range(5))
def test_counts_of_ranks_that_follow_the_nodes_equal_counts_from_scratch(seed: int) -> None:
    rng = Random(seed)
    cluster = Cluster(shape_from_text("6x8x32x64,2x4x16x64"))
    requests = [RankRequest(gpus, cores, memory) for gpus in (1, 3, 8) for cores in (0, 5) for memory in (0, 20 << 30)]
    counts = RankCounts(cluster)
    for _ in range(200):
        changed = rng.sample(range(len(cluster.nodes)), rng.randrange(3))
        for number in changed:
            cluster.free_gpus[number] = rng.randrange(9)
            cluster.free_cores[number] = rng.randrange(33)
            cluster.free_memory_bytes[number] = rng.randrange(65) << 30
        counts.update(changed)
        for request in rng.sample(requests, 9):
            assert counts.of(request) == RankCounts(cluster).of(request)
